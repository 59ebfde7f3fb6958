"""A site's node against a coordinator of dictionaries: what it fetches, answers and delivers."""

from types import SimpleNamespace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity

from calibre.deploy import node
from calibre.deploy.fleet import RunEndedError
from calibre.deploy.node import attend


class Coordinator:
    """One message that waits, and what comes back."""

    def __init__(self, content):
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 5, 1, 1
        message = Message(content, 77, "train", group_id="3")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.id, self.tree = message.object_id, get_object_tree(message)
        self.things = {
            name: thing.deflate() for name, thing in get_all_nested_objects(message).items()
        }
        self.waiting = [(message, self.tree)]
        self.confirmed, self.sent, self.contents = [], [], {}

    def fleet(self, **others):
        calls = {
            "receive": lambda: self.waiting.pop() if self.waiting else None,
            "send": self._send,
            "pull": lambda run, thing: self.things[thing],
            "push": lambda run, session, thing, content: self.contents.__setitem__(thing, content),
            "confirm": lambda run, thing: self.confirmed.append(thing),
        }
        return SimpleNamespace(**calls | others)

    def _send(self, message, tree, seconds):
        self.sent.append((message.metadata, tree))
        return {tree.object_id, *_below(tree)}, "session"

    def reply(self):
        ((metadata, tree),) = self.sent
        assert metadata.message_id == tree.object_id
        return inflate_object_from_contents(tree.object_id, self.contents)


def _below(tree):
    return {name for child in tree.children for name in (child.object_id, *_below(child))}


class Echo:
    """Answers with what it was sent."""

    def __init__(self):
        self.heard = []

    def answer(self, message):
        self.heard.append(message)
        return Message(message.content, reply_to=message)


def content(size=7_000_000):  # more than one of the pieces into which Flower cuts tensors
    data = bytes(range(250)) * (size // 250)
    block = ArrayRecord({"block": Array("uint8", (len(data),), "raw", data)})
    return RecordDict({"text": ConfigRecord({"json": "{}"}), "tensors": block})


def test_a_message_is_fetched_answered_and_the_answer_delivered_whole():
    coordinator, worker = Coordinator(content()), Echo()
    assert attend(coordinator.fleet(), worker, waited=50.0) == 0.0
    (heard,) = worker.heard
    assert heard.metadata.message_id == coordinator.id
    assert coordinator.confirmed == [coordinator.id]
    reply = coordinator.reply()
    assert reply.metadata.reply_to_message_id == coordinator.id
    assert reply.content["tensors"]["block"].data == content()["tensors"]["block"].data


def test_a_node_that_waits_for_long_looks_less_often(monkeypatch):
    pauses = []
    monkeypatch.setattr(node.time, "sleep", pauses.append)
    silent, waited = Coordinator(content(250)).fleet(receive=lambda: None), 0.0
    for _ in range(200):
        waited = attend(silent, Echo(), waited)
    assert waited == pytest.approx(sum(pauses))
    assert pauses[0] == 0.1
    assert pauses[-1] == 3.0
    assert pauses == sorted(pauses)
    for i, pause in enumerate(pauses):
        assert pause <= max(0.1, sum(pauses[:i]) / 10) + 1e-9  # at most a tenth is added to a wait


def fail(problem):
    def call(*_):
        raise problem

    return call


@pytest.mark.parametrize(
    "broken",
    [
        {"pull": fail(RunEndedError())},
        {"send": fail(RunEndedError())},
        {"pull": fail(ObjectPullError("x", "gone"))},
        {"confirm": fail(RunEndedError())},
    ],
    ids=["ended before", "ended meanwhile", "tensors gone", "ended at once"],
)
def test_a_message_of_a_run_that_has_ended_is_dropped_and_the_node_goes_on(broken):
    coordinator = Coordinator(content(250))
    assert attend(coordinator.fleet(**broken), Echo()) == 0.0
    assert coordinator.contents == {}
