"""A Flower grid without processes: every message is answered when replies are asked for."""

import itertools

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from calibre.deploy.client import app


class LocalGrid(Grid):
    """Nodes in this process. ``fail(node, message)`` may answer in a node's place."""

    def __init__(self, node_configs, run_config=None, fail=lambda node, message: None):
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.contexts = {
            number: Context(0, number, config, RecordDict(), run_config or {})
            for number, config in enumerate(node_configs, start=100)
        }
        self.fail = fail
        self.waiting = {}
        self.bytes = []
        self.ids = itertools.count()

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            self.waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        for message_id in message_ids:
            message = self.waiting.pop(message_id, None)
            if message is not None and (reply := self._answer(message)) is not None:
                return [reply]
        return []

    def _answer(self, message):
        node = message.metadata.dst_node_id
        reply = self.fail(node, message)
        if isinstance(reply, Exception):
            return Message(Error(0, str(reply)), reply_to=message)
        if reply == "silence":
            return None
        reply = reply or app(message, self.contexts[node])
        self.bytes.append((message.metadata.message_type, size(message), size(reply)))
        return reply

    def set_run(self, run): ...

    def create_message(self, *_, **__):
        raise NotImplementedError

    def send_and_receive(self, *_, **__):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError


def size(message):
    """Bytes of a message as Flower writes it, everything included."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(thing.deflate()) for thing in get_all_nested_objects(message).values())
