"""A site's node, as a program: it hears the coordinator's messages and has them answered here.

To the coordinator it is a SuperNode of Flower, with one difference: it never fetches the app that
was submitted with a run. What answers is the Calibre that is installed at the site, so that nobody,
not even the coordinator, can have other code run here. It opens no port.

    python -m calibre.deploy.node SUPERLINK ROOT_CERTIFICATES PRIVATE_KEY NODE_CONFIG [APP]
"""

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Protocol

import httpx
from flwr.app import Message
from flwr.app.user_config import UserConfig
from flwr.proto.message_pb2 import ObjectTree
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

from calibre.deploy.fleet import Fleet, NodeRefusedError, RunEndedError
from calibre.deploy.keys import private_key
from calibre.deploy.warm import APP, Warm

PAUSES = (0.1, 3.0)  # seconds between looks for a message: the shortest, and the longest
AGAIN_SECONDS = 10.0  # before a coordinator that refused the site is asked again
INTERRUPTED = 130
log = logging.getLogger("calibre.node")


class Answers(Protocol):
    def answer(self, message: Message) -> Message: ...


def attend(fleet: Fleet, worker: Answers, waited: float = 0.0) -> float:
    """Look once for a message and answer it; for how long, in seconds, none has come.

    A site that has waited for long looks less often: a tenth of its wait later.
    """
    received = fleet.receive()
    if received is None:
        pause = min(max(waited / 10, PAUSES[0]), PAUSES[1])
        time.sleep(pause)
        return waited + pause
    began = time.monotonic()
    data = received[0].metadata
    run, kind = data.run_id, f"{data.message_type}{data.group_id and f' of round {data.group_id}'}"
    try:
        message = _fetch(fleet, run, received[1])
        log.info("%s: %s received", run, kind)
        _deliver(fleet, run, worker.answer(message), began)
        log.info("%s: %s answered after %.1f s", run, kind, time.monotonic() - began)
    except RunEndedError:
        log.info("%s: %s dropped, the run has ended", run, kind)
    except (ObjectPullError, ObjectPushError) as problem:
        log.warning("%s: %s lost: %s", run, kind, problem)
    return 0.0


def _fetch(fleet: Fleet, run: int, tree: ObjectTree) -> Message:
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda thing: fleet.pull(run, thing),
        lambda thing: fleet.confirm(run, thing),
        return_type=Message,
        initial_backoff=PAUSES[0],
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # Flower leaves this to the receiver
    return message


def _deliver(fleet: Fleet, run: int, reply: Message, began: float) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        tree, things = get_object_tree(reply), get_all_nested_objects(reply)
        wanted, session = fleet.send(reply, tree, time.monotonic() - began)
        push_objects(
            things,
            lambda thing, content: fleet.push(run, session, thing, content),
            object_ids_to_push=wanted,
        )


def work(superlink: str, certificates: Path, key: Path, config: UserConfig, app: str) -> None:
    """Join the coordinator and answer it, until it turns the site away."""
    with Fleet(superlink, certificates.read_bytes(), private_key(key)) as fleet:
        log.info("joined %s as node %d", superlink, fleet.node.node_id)
        worker, waited = Warm(fleet.node.node_id, config, app), 0.0
        try:
            while True:
                waited = attend(fleet, worker, waited)
        finally:
            worker.close()


def main() -> None:
    """Where the coordinator does not let the site in, or no longer knows it, ask again later."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    superlink, certificates, key, config, *app = sys.argv[1:]
    try:
        while True:
            try:
                work(superlink, Path(certificates), Path(key), json.loads(config), *(app or [APP]))
            except NodeRefusedError:
                said = "the coordinator does not take this site's key, or the clock here is wrong"
            except httpx.HTTPStatusError as problem:
                said = f"the coordinator does not let this site in yet: {problem.response.text}"
            log.warning("%s; asking again in %g s", said[:2000], AGAIN_SECONDS)
            time.sleep(AGAIN_SECONDS)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
