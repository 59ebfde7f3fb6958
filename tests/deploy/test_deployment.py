"""The walk-through of docs/deployment.md, command by command, with TLS and authenticated sites."""

import pytest

import calibre
from calibre.deploy import launch
from calibre.deploy.keys import make_keys
from calibre.engine import rounds
from calibre.experiment import read
from tests.deploy.folders import write_folders
from tests.deploy.machines import LASTING, Machines, documented

OWNERS = ("anna", "bert", "carl")
SETTINGS = (
    "federation.scheme=natural", "federation.novel=0", "method.name=fedrep", "network.width=2",
    "method.sgd.batch=16", "training.rounds=2", "training.clients_per_round=2",
    "training.epochs=1", "personal.epochs=2", "personal.floors=[]", "engine.workers=0",
)  # fmt: skip

SMALL_HEADS = (
    "method.sgd.batch=16", "method.objective.hidden=8", "method.objective.projection=4",
)  # fmt: skip


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


@pytest.mark.slow
def test_every_command_of_the_walk_through_works_and_strangers_are_kept_out(tmp_path):
    port = launch.free_port()
    write_folders(tmp_path, OWNERS)
    experiment = read(None, [f"data.source={tmp_path / 'all'}", *SETTINGS])
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    second = read(experiment, ["method.name=calibre", "training.rounds=1", *SMALL_HEADS])
    (tmp_path / "second.toml").write_text(second.to_toml())
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
                    strangers = foreign_nodes(machines, port)
                if "carl" in line:
                    turned_away(machines, strangers)
        # the same coordinator and sites serve another experiment
        machines.say(
            "calibre-fl deploy run second.toml --keys keys --out second --set engine.sites=3"
        )
        active = (tmp_path / "keys/superlink.log").read_text().count("Activated node_id")
        assert active == len(OWNERS)
    for asked, run in ((experiment, "run"), (second, "second")):
        rounds.run(asked, tmp_path / "embedded" / run)
        assert not list((tmp_path / run).glob("clients/*/*"))
        for file in ("model.safetensors", "clients.csv"):
            mine = (tmp_path / run / file).read_bytes()
            assert mine == (tmp_path / "embedded" / run / file).read_bytes()
    for owner in OWNERS:
        picture = next((tmp_path / owner / "images" / "test").glob("*/*.png"))
        bundles = list((tmp_path / owner / "state").glob("*/bundle"))
        assert len(bundles) == 2
        for bundle in bundles:
            (found,) = calibre.load(bundle).predict(picture)
            assert found.nearest in found.probabilities
