"""What the coordinator's public port lets through: the few calls of known sites, and nothing else.

Flower answers sites, its own programs and whoever submits a run on one port, and a run is code that
it executes. So this stands before Flower on the port that others reach. It knows the calls that a
site needs; it knows sites by their keys, and forgets them as soon as their keys are gone; it lets a
site answer for itself alone (Flower would let it answer for others, and give them orders); and
nobody can make it hold more than a few megabytes, or wait for long. Whether a caller really has its
key is checked by Flower, behind this.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from google.protobuf.message import DecodeError

LARGEST = 2**25  # bytes of one call: Flower cuts tensors into pieces of 5 MiB
SLOWEST = 600.0  # seconds for one call to arrive
ANSWERS = "/v1/fleet/push-messages"
CALLS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages",
        "push-messages", "pull-object", "push-object", "confirm-message-received",
    )
)  # fmt: skip
HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI application before another one; ``known`` tells whether a key is a site's."""

    def __init__(self, app: App, known: Callable[[bytes], bool]) -> None:
        self.app = app
        self.known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or scope["path"] not in CALLS:
            await _refuse(send, 404, "nothing is offered here")
            return
        if not self.known(_key(scope)):
            await _refuse(send, 401, "this key is not known to the coordinator")
            return
        try:
            body = await asyncio.wait_for(_whole(receive), SLOWEST)
        except (ValueError, TimeoutError):
            await _refuse(send, 413, "the call is too large or too slow")
            return
        if scope["path"] == ANSWERS and not _for_itself(body):
            await _refuse(send, 403, "a site may answer for itself alone")
            return
        await self.app(scope, _again(body, receive), send)


def _key(scope: Scope) -> bytes:
    """Which key the caller says it has: none, if it does not say so in one clear way."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    try:
        (text,) = given
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


async def _whole(receive: Receive) -> bytes:
    """All of a call; ValueError where it is too large or breaks off."""
    pieces, size, more = [], 0, True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            raise ValueError("the caller has gone")
        pieces.append(event.get("body", b""))
        size += len(pieces[-1])
        if size > LARGEST:
            raise ValueError("too large")
        more = event.get("more_body", False)
    return b"".join(pieces)


def _again(body: bytes, receive: Receive) -> Receive:
    """The call as if it had not been read yet."""
    unread = [body]

    async def once_more() -> MutableMapping[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return once_more


def _for_itself(body: bytes) -> bool:
    """Whether every message in a call is an answer, and comes from the node that calls."""
    call = PushMessagesRequest()
    try:
        call.ParseFromString(body)
    except DecodeError:
        return False
    told = [message.metadata for message in call.messages_list]
    return all(
        data.src_node_id == call.node.node_id and data.reply_to_message_id != "" for data in told
    )


async def _refuse(send: Send, status: int, reason: str) -> None:
    content = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": content})
    await send({"type": "http.response.body", "body": reason.encode()})
