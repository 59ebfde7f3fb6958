"""The process at a site that answers messages, kept warm: it loads torch once, not for each.

Started by the site's node and spoken to over a pair of sockets that nobody else can reach: a
message goes in, its answer comes out, both as Flower's own protobuf bytes. It ends with the node,
whatever happens to that, and starts anew with every run: nothing of one is left in the next.

    python -m calibre.deploy.warm SOCKET NODE_ID APP NODE_CONFIG
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto

from calibre.deploy.launch import module_path

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

APP = "calibre.deploy.client:app"
END_SECONDS = 10.0  # for a worker that has closed its socket to end


class Warm:
    """The node's end: ``answer`` is the only thing that is ever asked of the worker."""

    def __init__(self, node_id: int, config: UserConfig, app: str = APP) -> None:
        self.node_id, self.config, self.app = node_id, config, app
        self.run: int | None = None  # whose messages it has seen
        self._start()

    def answer(self, message: Message) -> Message:
        """The worker's answer; an error of its own where it ends or takes longer than it may."""
        if self.run not in (None, message.metadata.run_id):
            self.close()
            self._start()
        self.run = message.metadata.run_id
        try:
            self.connection.send_bytes(written(message))
            if not self.connection.poll(message.metadata.ttl):
                raise TimeoutError
            return read(self.connection.recv_bytes())
        except TimeoutError:
            why = "it took longer than it may"
        except (OSError, EOFError):
            why = self._ending()
        self.close()
        self._start()
        said = f"the site's worker gave no answer: {why}"
        return Message(Error(ErrorCode.CLIENT_APP_CRASHED, said), reply_to=message)

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self.connection.close()
        self.process.kill()
        self.process.communicate()

    def _ending(self) -> str:
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it is there, but does not listen"
        if code == -signal.SIGKILL:
            return "it was killed by the system, perhaps out of memory"
        name = signal.Signals(-code).name if code < 0 else f"code {code}; see the site's log"
        return f"it ended with {name}"

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.run = None
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "calibre.deploy.warm", str(theirs.fileno()),
             str(self.node_id), self.app, json.dumps(self.config)],
            pass_fds=[theirs.fileno()], stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": module_path()},
        )  # fmt: skip
        theirs.close()
        self.connection = Connection(ours.detach())


def written(message: Message) -> bytes:
    content: bytes = message_to_proto(message).SerializeToString()
    return content


def read(content: bytes) -> Message:
    proto = Proto()
    proto.ParseFromString(content)
    return message_from_proto(proto)


def serve(connection: Connection, app: "ClientApp", node_id: int, config: UserConfig) -> None:
    """The worker's end: answer until the node has gone."""
    while True:
        try:
            message = read(connection.recv_bytes())
        except EOFError:
            return
        context = Context(message.metadata.run_id, node_id, config, RecordDict(), {})
        connection.send_bytes(written(app(message, context)))


def _end_with_the_node() -> None:
    """Standard input is a pipe from the node, and nothing is ever written to it."""
    os.read(0, 1)
    os._exit(1)


def main(arguments: list[str]) -> None:
    from calibre.settings import look_up

    threading.Thread(target=_end_with_the_node, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node, which ends this
    handle, node_id, name, config = arguments
    app: Any = look_up("app", name, {})
    serve(Connection(int(handle)), app, int(node_id), json.loads(config))


if __name__ == "__main__":
    main(sys.argv[1:])
