"""What the public port lets through, call by call, without a network."""

import asyncio
import base64

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from calibre.deploy import gate
from calibre.deploy.gate import Gate

KEY = b"-----BEGIN PUBLIC KEY-----\nanna\n"
HEADER = (b"flwr-public-key", base64.b64encode(KEY))


async def behind(scope, receive, send):
    """What stands behind the gate: it repeats what it was sent."""
    event = await receive()
    assert not event["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": event["body"]})


def call(path, pieces=(b"",), headers=(HEADER,), method="POST", kind="http", wait=None):
    sent, queue = [], list(pieces)

    async def receive():
        if wait is not None:
            await asyncio.sleep(wait)
        if not queue:
            return {"type": "http.disconnect"}
        piece = queue.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(queue)}

    async def send(event):
        sent.append(event)

    scope = {"type": kind, "method": method, "path": path, "headers": list(headers)}
    asyncio.run(Gate(behind, lambda key: key == KEY)(scope, receive, send))
    if not sent:
        return None, b""
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])


@pytest.mark.parametrize("name", ["activate-node", "pull-messages", "push-object", "pull-object"])
def test_the_calls_of_a_known_site_pass_whole(name):
    assert call(f"/v1/fleet/{name}", [b"one ", b"two ", b"three"]) == (200, b"one two three")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run", "/v1/fleet//pull-messages", "/v1/fleet/pull-messages/",
        "/v1/fleet/register-node", "/v1/fleet/get-fab", "/docs", "/openapi.json", "/health", "/",
    ],
)  # fmt: skip
def test_everything_else_is_not_there_also_for_a_known_site(path):
    assert call(path)[0] == 404


def test_only_posts_are_calls_and_other_protocols_get_nothing():
    assert call("/v1/fleet/pull-messages", method="GET")[0] == 404
    assert call("/v1/fleet/pull-messages", kind="websocket") == (None, b"")


@pytest.mark.parametrize(
    "headers",
    [
        [], [(b"flwr-public-key", b"")], [(b"flwr-public-key", base64.b64encode(b"eve"))],
        [(b"flwr-public-key", KEY)], [(b"flwr-public-key", b"\xff\xfe")], [HEADER, HEADER],
        [(b"flwr-public-key", base64.b64encode(b"eve")), HEADER],
    ],
)  # fmt: skip
def test_a_key_that_is_not_known_or_not_clear_is_refused_before_anything_is_read(headers):
    assert call("/v1/fleet/pull-messages", [b"x"], headers, wait=5)[0] == 401


def test_nobody_sends_more_than_fits_or_takes_longer_than_is_due(monkeypatch):
    monkeypatch.setattr(gate, "LARGEST", 10)
    assert call("/v1/fleet/push-object", [b"12345", b"12345"])[0] == 200
    assert call("/v1/fleet/push-object", [b"12345", b"123456"])[0] == 413
    monkeypatch.setattr(gate, "SLOWEST", 0.01)
    assert call("/v1/fleet/push-object", [b"1"], wait=1)[0] == 413


def test_a_caller_that_has_gone_is_left():
    assert call("/v1/fleet/push-object", [])[0] == 413


def answers(*metadata, node=77):
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[Message(metadata=data) for data in metadata]
    ).SerializeToString()


OWN = Metadata(src_node_id=77, dst_node_id=1, reply_to_message_id="m1")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (answers(OWN), 200),
        (answers(Metadata(src_node_id=78, dst_node_id=1, reply_to_message_id="m1")), 403),
        (answers(OWN, Metadata(src_node_id=78, dst_node_id=1, reply_to_message_id="m")), 403),
        (answers(Metadata(src_node_id=1, dst_node_id=78)), 403),
        (answers(Metadata(src_node_id=77, dst_node_id=78)), 403),
        (answers(OWN, node=78), 403),
        (b"\xff\xff no protobuf", 403),
    ],
    ids=["own", "for another", "also for another", "an order", "to another", "as another", "odd"],
)
def test_a_site_answers_for_itself_and_gives_no_orders(body, status):
    assert call("/v1/fleet/push-messages", [body])[0] == status
