"""The walk-through of docs/deployment.md, command by command, with TLS and authenticated sites."""

import contextlib
import re
import ssl

import httpx
import pytest

import calibre
from calibre.deploy import launch
from calibre.deploy.keys import make_keys
from calibre.engine import rounds
from calibre.experiment import read
from tests.deploy.folders import write_folders
from tests.deploy.foreign import write_foreign_app, write_home
from tests.deploy.machines import DOCUMENT, HOST, LASTING, OWNERS, Machines, documented

SETTINGS = (
    "federation.scheme=natural", "federation.novel=0", "network.width=2",
    "method.sgd.batch=16", "training.rounds=2", "training.clients_per_round=2",
    "training.epochs=1", "personal.epochs=2", "personal.floors=[]", "engine.workers=0",
)  # fmt: skip

REFUSED = "does not take this site's key"
SMALL_HEADS = ("method.objective.hidden=8", "method.objective.projection=4")


def strangers_are_kept_out(machines, port):
    """Without TLS, trusting another authority, without a key, with a strange one."""
    make_keys(machines.place / "other", "localhost", port, ["eve"])
    for certificate in ("keys", "other"):
        trusted = ssl.create_default_context(cafile=machines.place / certificate / "ca.crt")
        with httpx.Client(verify=trusted) as client:
            for path, status in (("fleet/pull-messages", 401), ("control/start-run", 404)):
                with contextlib.suppress(httpx.ConnectError):
                    answer = client.post(f"https://localhost:{port}/v1/{path}")
                    assert certificate == "keys"
                    assert answer.status_code == status
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://localhost:{port}/v1/fleet/pull-messages")
    machines.start(
        "eve",
        f"python -m calibre.deploy.node localhost:{port} keys/ca.crt other/sites/eve"
        f' \'{{"site": "{machines.place}/anna/site.toml"}}\'',
    )
    machines.wait("eve to be turned away", lambda: REFUSED in machines.log("eve"))
    assert "joined" not in machines.log("eve")
    machines.stop("eve")


def a_foreign_app_runs_nowhere(machines, port):
    """Neither by who knows address and certificate, nor, at sites, by the coordinator's hand."""
    place = machines.place
    signs = place / "signs"
    signs.mkdir()
    write_foreign_app(place / "foreign-app", signs)
    write_home(place / "eves-home", f"localhost:{port}", place / "keys" / "ca.crt")
    machines.say("FLWR_HOME=eves-home flwr run foreign-app target", fails=True)
    inside = re.search(r"on (127\.0\.0\.1:\d+) for runs", machines.log("keys")).group(1)
    write_home(place / "eves-other-home", inside, place / "keys" / "ca.crt")
    said = machines.say("FLWR_HOME=eves-other-home flwr run foreign-app target", fails=True)
    assert "Authentication failed" in said
    assert list(signs.iterdir()) == []
    machines.say("FLWR_HOME=keys/flwr flwr run foreign-app calibre")
    machines.wait("the foreign app", (signs / "ended").exists)
    seen = sorted(sign.name for sign in signs.iterdir())
    assert "ran-at-the-coordinator" in seen
    assert len([name for name in seen if name.startswith("answer-of-")]) == 2  # carl has gone
    assert not [name for name in seen if name.startswith("ran-at-") and name[-1].isdigit()]


def same_as_embedded(place, experiment, run):
    rounds.run(experiment, place / "embedded")
    assert not list((place / run).glob("clients/*/*"))
    for file in ("model.safetensors", "clients.csv"):
        assert (place / run / file).read_bytes() == (place / "embedded" / file).read_bytes()


def private(folder):
    return folder.stat().st_mode & 0o077 == 0


def test_every_command_of_the_walk_through_works_and_attackers_get_nowhere(tmp_path):
    port = launch.free_port()
    write_folders(tmp_path, OWNERS)
    short = ("method.name=fedrep", "training.rounds=1")
    experiment = read(None, [*SETTINGS, *short, f"data.source={tmp_path / 'all'}"])
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    with Machines(tmp_path) as machines:
        for block in documented():
            block = block.replace("8000", str(port))
            if not block.startswith(LASTING):
                machines.say(block)
                continue
            for line in block.splitlines():
                name = line.split("/")[0].split()[-1]
                machines.start(name, line)
                if "deploy start" in line:
                    machines.wait("listening", lambda: "listening" in machines.log("keys"))
        machines.wait("carl to be turned away", lambda: REFUSED in machines.log("carl"))
        machines.wait("renewal", lambda: "new certificate is in use" in machines.log("keys"))
        strangers_are_kept_out(machines, port)
        a_foreign_app_runs_nowhere(machines, port)
    same_as_embedded(tmp_path, experiment, "run")
    for owner in OWNERS:
        picture = next((tmp_path / owner / "images" / "test").glob("*/*.png"))
        (bundle,) = (tmp_path / owner / "state").glob("*/bundle")
        (found,) = calibre.load(bundle).predict(picture)
        assert found.nearest in found.probabilities
    assert all(private(tmp_path / name) for name in ("keys", "run", "anna/state"))


@pytest.mark.minutes
def test_nodes_that_share_an_experiment_give_its_bits(tmp_path):
    port = launch.free_port()
    write_folders(tmp_path, OWNERS)
    experiment = read(None, [*SETTINGS, *SMALL_HEADS, f"data.source={tmp_path / 'all'}"])
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    text = DOCUMENT.read_text()
    (node,) = re.findall(r"calibre-fl site start --share .*", text)
    (run,) = re.findall(r"calibre-fl deploy run .* --shared", text)
    with Machines(tmp_path) as machines:
        machines.coordinator(port)
        for i, owner in enumerate(OWNERS):
            mine = node.replace("localhost:8000", f"{HOST}:{port}").replace("0/3", f"{i}/3")
            machines.start(owner, mine.replace("anna", owner) + f" --state {owner}/state")
        machines.say(run)
    same_as_embedded(tmp_path, experiment, "run")
