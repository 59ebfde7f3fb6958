"""The walk-through of docs/deployment.md, command by command, with TLS and authenticated sites."""

import re

import pytest

import calibre
from calibre.deploy import launch
from calibre.deploy.keys import make_keys
from calibre.engine import rounds
from calibre.experiment import read
from tests.deploy.folders import write_folders
from tests.deploy.machines import DOCUMENT, LASTING, OWNERS, Machines, documented

SETTINGS = (
    "federation.scheme=natural", "federation.novel=0", "network.width=2",
    "method.sgd.batch=16", "training.rounds=2", "training.clients_per_round=2",
    "training.epochs=1", "personal.epochs=2", "personal.floors=[]", "engine.workers=0",
)  # fmt: skip

SMALL_HEADS = ("method.objective.hidden=8", "method.objective.projection=4")


def foreign_nodes(machines, port):
    """Nodes that must not get in: without TLS, trusting another authority, with a strange key."""
    make_keys(machines.place / "other", "localhost", port, ["anna", "eve"])
    secure = "--root-certificates keys/ca.crt --auth-supernode-private-key"
    other = "--root-certificates other/ca.crt --auth-supernode-private-key keys/sites/anna"
    options = {
        "plaintext": "--insecure",
        "authority": other,
        "stranger": f"{secure} other/sites/eve",
    }
    node = f"flower-supernode --superlink localhost:{port}"
    for name, option in options.items():
        config = f"--node-config 'site=\"{machines.place}/anna/site.toml\"'"
        machines.start(name, f"{node} {option} --port {launch.free_port()} {config}")
    return list(options)


def turned_away(machines, strangers):
    """Each of them tries more than once, and gets nowhere."""
    for name in strangers:
        machines.wait(name, lambda name=name: tries(machines, name) > 1)
        machines.stop(name)
        assert "Connection successful" not in machines.log(name)


def tries(machines, name):
    return machines.log(name).count("Connection attempt failed")


def same_as_embedded(place, experiment, run):
    rounds.run(experiment, place / "embedded")
    assert not list((place / run).glob("clients/*/*"))
    for file in ("model.safetensors", "clients.csv"):
        assert (place / run / file).read_bytes() == (place / "embedded" / file).read_bytes()


@pytest.mark.slow
def test_every_command_of_the_walk_through_works(tmp_path):
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
    same_as_embedded(tmp_path, experiment, "run")
    for owner in OWNERS:
        picture = next((tmp_path / owner / "images" / "test").glob("*/*.png"))
        (bundle,) = (tmp_path / owner / "state").glob("*/bundle")
        (found,) = calibre.load(bundle).predict(picture)
        assert found.nearest in found.probabilities


@pytest.mark.slow
def test_nodes_that_share_an_experiment_give_its_bits_and_strangers_are_kept_out(tmp_path):
    port = launch.free_port()
    write_folders(tmp_path, OWNERS)
    experiment = read(None, [*SETTINGS, *SMALL_HEADS, f"data.source={tmp_path / 'all'}"])
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    (command,) = re.findall(r"calibre-fl site start --share .*", DOCUMENT.read_text())
    with Machines(tmp_path) as machines:
        machines.coordinator(port)
        strangers = foreign_nodes(machines, port)
        for i, owner in enumerate(OWNERS):
            mine = command.replace("8000", str(port)).replace("0/3", f"{i}/3")
            machines.start(owner, mine.replace("anna", owner) + f" --state {owner}/state")
        machines.say(
            "calibre-fl deploy run experiment.toml --keys keys --out run --set engine.sites=3"
        )
        turned_away(machines, strangers)
        active = (tmp_path / "keys/superlink.log").read_text().count("Activated node_id")
        assert active == len(OWNERS)
    same_as_embedded(tmp_path, experiment, "run")
