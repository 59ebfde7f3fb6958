"""A ClientApp for tests of the worker that answers messages: it does what the message asks."""

import os
import signal
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
seen = []


def asking(what, **more):
    return RecordDict({"asked": ConfigRecord({"what": what, **more})})


@app.query()
def query(message, context):
    asked = message.content["asked"]
    seen.append(asked["what"])
    match asked["what"]:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os._exit(7)
        case "sleep":
            time.sleep(600)
    told = {
        "pid": os.getpid(), "seen": list(seen), "node": context.node_id, "run": context.run_id,
        "given": str(context.node_config["given"]), "settings": len(context.run_config),
    }  # fmt: skip
    content = RecordDict({"told": ConfigRecord(told), **message.content.array_records})
    return Message(content, reply_to=message)
