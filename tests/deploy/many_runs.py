"""Several experiments in one run of Flower's simulation, so that Ray is started once for all."""

import copy
import tomllib
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from calibre.deploy import client as calibre_client
from calibre.deploy import coordinator as calibre_server
from calibre.deploy.records import JobRequest, text_of
from calibre.engine.messages import read
from calibre.experiment import read as read_experiment

server = ServerApp()
client = ClientApp()


@server.main()
def run_all(grid, context):
    """The experiments of the files beside the run folder, each in a folder of its name."""
    for file in sorted(Path(context.run_config["out"]).parent.glob("*.toml")):
        calibre_server.coordinate(
            grid, read_experiment(file), file.with_suffix(""), lambda event: None, patience=600
        )
    calibre_server.main(grid, context)


def at_home(message, context):
    """Clients keep what they keep in the run folder of the experiment that asks."""
    request = read(text_of(message.content), JobRequest)
    name = tomllib.loads(request.experiment)["name"]
    moved = copy.copy(context)
    moved.run_config = {
        **context.run_config, "out": str(Path(context.run_config["out"]).with_name(name)),
    }  # fmt: skip
    return moved


@client.query()
def query(message, context):
    return calibre_client.query(message, context)


@client.train()
def train(message, context):
    return calibre_client.train(message, at_home(message, context))


@client.evaluate()
def evaluate(message, context):
    return calibre_client.evaluate(message, at_home(message, context))
