"""A site's node, as a program: it hears the coordinator's messages and has them answered here.

It is a SuperNode of Flower, made of Flower's own connection (TLS, the site's key, heartbeats), with
one difference: it never fetches the app that was submitted with a run. What answers is the Calibre
that is installed at the site, so that nobody, not even the coordinator, can have other code run
here. It opens no port.

    python -m calibre.deploy.node SUPERLINK ROOT_CERTIFICATES PRIVATE_KEY NODE_CONFIG [APP]
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.app import Message
from flwr.app.user_config import UserConfig
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import FORCE_EXIT_TIMEOUT_SECONDS
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from calibre.deploy.keys import private_key
from calibre.deploy.warm import APP, Warm

PAUSES = (0.1, 3.0)  # seconds between looks for a message: the shortest, and the longest
AGAIN_SECONDS = FORCE_EXIT_TIMEOUT_SECONDS - 1.0  # before a coordinator is asked again
INTERRUPTED = 130
log = logging.getLogger("calibre.node")


class Answers(Protocol):
    def answer(self, message: Message) -> Message: ...


@dataclass(frozen=True)
class Link:
    """What a node needs of its connection to the coordinator; each may raise what Flower raises."""

    receive: Callable[[], tuple[Message, ObjectTree] | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


def attend(link: Link, worker: Answers, waited: float = 0.0) -> float:
    """Look once for a message and answer it; for how long, in seconds, none has come.

    A site that has waited for long looks less often: a tenth of its wait later.
    """
    received = link.receive()
    if received is None:
        pause = min(max(waited / 10, PAUSES[0]), PAUSES[1])
        time.sleep(pause)
        return waited + pause
    began = time.monotonic()
    data = received[0].metadata
    run, kind = data.run_id, f"{data.message_type}{data.group_id and f' of round {data.group_id}'}"
    try:
        message = _fetch(link, run, received[1])
        log.info("%s: %s received", run, kind)
        _deliver(link, run, worker.answer(message), began)
        log.info("%s: %s answered after %.1f s", run, kind, time.monotonic() - began)
    except RunNotRunningException:
        log.info("%s: %s dropped, the run has ended", run, kind)
    except (ObjectPullError, ObjectPushError) as problem:
        log.warning("%s: %s lost: %s", run, kind, problem)
    return 0.0


def _fetch(link: Link, run: int, tree: ObjectTree) -> Message:
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda thing: link.pull(run, thing),
        lambda thing: link.confirm(run, thing),
        return_type=Message,
        initial_backoff=PAUSES[0],
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # Flower leaves this to the receiver
    return message


def _deliver(link: Link, run: int, reply: Message, began: float) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        tree, things = get_object_tree(reply), get_all_nested_objects(reply)
        wanted, session = link.send(reply, tree, time.monotonic() - began)
        push_objects(
            things,
            lambda thing, content: link.push(run, session, thing, content),
            object_ids_to_push=wanted,
        )


def work(superlink: str, certificates: Path, key: Path, config: UserConfig, app: str) -> None:
    """Join the coordinator and answer it until the connection is lost for good."""
    own = private_key(key)
    keys = own, own.public_key()
    with http_request_response(superlink, False, certificates.read_bytes(), keys) as connection:
        node_id, receive, send, _, _, pull, push, confirm = connection
        log.info("joined %s as node %d", superlink, node_id)
        worker, waited = Warm(node_id, config, app), 0.0
        try:
            while True:
                waited = attend(Link(receive, send, pull, push, confirm), worker, waited)
        finally:
            worker.close()


def main() -> None:
    """Where the coordinator turns the site away, or is lost, ask again, and again."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    superlink, certificates, key, config, *app = sys.argv[1:]
    try:
        work(superlink, Path(certificates), Path(key), json.loads(config), app[0] if app else APP)
    except KeyboardInterrupt:  # Flower raises it, too
        log.info("stopped, or the coordinator no longer takes this site's key")
        sys.exit(INTERRUPTED)
    except SystemExit:  # Flower's word that it could not join
        pass
    log.warning("not connected: trying again")
    time.sleep(AGAIN_SECONDS)
    # Flower has seen to it that this process ends within seconds: go on in its place
    command = [sys.executable, "-P", "-m", "calibre.deploy.node", *sys.argv[1:]]
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
