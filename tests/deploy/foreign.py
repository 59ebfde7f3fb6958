"""Somebody else's Flower app: wherever a part of it runs, it leaves a sign."""

import tomli_w

from calibre.deploy import launch

SERVER = """
from pathlib import Path
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    signs = Path(context.run_config["signs"])
    (signs / "ran-at-the-coordinator").touch()
    asked = [Message(RecordDict(), node, MessageType.QUERY) for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(asked, timeout=60):
        (signs / f"answer-of-{reply.metadata.src_node_id}").touch()
    (signs / "ended").touch()
"""

CLIENT = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    (Path(context.run_config["signs"]) / f"ran-at-{context.node_id}").touch()
    return Message(RecordDict(), reply_to=message)
"""


def write_foreign_app(place, signs):
    """The folder that ``flwr run`` takes; its parts leave their signs in ``signs``."""
    launch.write_app(place, {"signs": str(signs)}, "foreign.server:app", "foreign.client:app")
    module = place / "foreign"
    module.mkdir()
    for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
        (module / f"{name}.py").write_text(text)


def write_home(place, address, certificate):
    """What anybody may write who knows the coordinator's address and its public certificate."""
    place.mkdir()
    link = {"address": address, "root-certificates": str(certificate)}
    (place / "config.toml").write_text(
        tomli_w.dumps({"superlink": {"default": "target", "target": link}})
    )
