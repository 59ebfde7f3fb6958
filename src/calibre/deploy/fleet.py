"""A site's connection to the coordinator: calls of Flower's Fleet API over TLS, signed by its key.

A call is made again, and again, while the network or the coordinator is away. Three things end it:
the run of the message has ended, the coordinator does not take the site's key, or something that
only a person can put right.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

BEAT_SECONDS = 0.5 * HEARTBEAT_DEFAULT_INTERVAL  # Flower gives a node up after twice this interval
BACK_OFF = (1.0, 20.0)  # seconds before a call is made again: at first, and at most
AWAY = (502, 503, 504)
Asked = TypeVar("Asked")
Told = TypeVar("Told")
log = logging.getLogger("calibre.node")


class RunEndedError(Exception):
    """The run that a call was for is not going on."""


class NodeRefusedError(Exception):
    """The coordinator does not take the site's key, or no longer knows the node."""


class Fleet:
    """While it is entered, the coordinator counts the site as present."""

    def __init__(self, address: str, certificates: bytes, key: EllipticCurvePrivateKey) -> None:
        self.key = public_key_to_bytes(key.public_key())
        self.client = FleetHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self._over = threading.Event()

    def __enter__(self) -> "Fleet":
        request = ActivateNodeRequest(
            public_key=self.key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        self.node = Node(node_id=self._call(self.client.ActivateNode, request).node_id)
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(httpx.HTTPError):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """A message without its content, and where that is; None if there is none."""
        told = self._call(self.client.PullMessages, PullMessagesRequest(node=self.node))
        if not told.messages_list:
            return None
        return message_from_proto(told.messages_list[0]), told.message_object_trees[0]

    def send(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        """Announce an answer: what of its content is wanted, and in which session."""
        message = message_to_proto(remove_content_from_message(reply))
        request = PushMessagesRequest(
            node=self.node, messages_list=[message], message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )  # fmt: skip
        told = self._call(self.client.PushMessages, request)
        return set(told.objects_to_push), told.session_id

    def pull(self, run: int, thing: str) -> bytes:
        """A piece of a message's content."""
        pull = make_pull_object_fn_protobuf(self._calling(self.client.PullObject), self.node, run)
        return pull(thing)

    def push(self, run: int, session: str, thing: str, content: bytes) -> None:
        """A piece of an answer's content."""
        call = self._calling(self.client.PushObject)
        make_push_object_fn_protobuf(call, self.node, run, session)(thing, content)

    def confirm(self, run: int, thing: str) -> None:
        """Say that a message has arrived whole."""
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=thing)
        self._call(self.client.ConfirmMessageReceived, request)

    def _beat(self) -> None:
        """Say every few seconds that the site is there; if something is wrong, the calls tell."""
        request = SendNodeHeartbeatRequest(
            node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        while not self._over.wait(BEAT_SECONDS):
            with suppress(httpx.HTTPError):
                self.client.SendNodeHeartbeat(request)

    def _calling(self, call: Callable[[Asked], Told]) -> Callable[[Asked], Told]:
        return lambda request: self._call(call, request)

    def _call(self, call: Callable[[Asked], Told], request: Asked) -> Told:
        pause = BACK_OFF[0]
        while True:
            try:
                return call(request)
            except httpx.HTTPStatusError as problem:
                status = problem.response.status_code
                if status == httpx.codes.UNAUTHORIZED:
                    raise NodeRefusedError from None
                if status == httpx.codes.FORBIDDEN:
                    raise RunEndedError from None
                if status not in AWAY:
                    raise
                said = f"it answers {status}"
            except httpx.TransportError as problem:
                said = str(problem) or type(problem).__name__
            log.warning("cannot reach the coordinator (%s); again in %g s", said, pause)
            time.sleep(pause)
            pause = min(2 * pause, BACK_OFF[1])
