"""The coordinator's SuperLink, as a program: ``python -m calibre.deploy.link KEYS ADDRESS``.

Flower's own listens on one port, where anybody can submit a run: code that it executes. This is the
same SuperLink, on two. Sites reach the public one, behind a :class:`Gate`. Runs are submitted at
the other, which only this machine reaches, with a token that is made at each start and that only
the owner of the keys can read; so is the secret of the program that starts the coordinator's app.
What a person should know is written to standard output, Flower's log to standard error.
"""

import asyncio
import base64
import hmac
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from flwr.cli.constant import (
    ACCESS_TOKEN_STORE_KEY,
    AUTHN_TYPE_STORE_KEY,
    REFRESH_TOKEN_STORE_KEY,
)
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
    AuthnType,
)
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.auth.typing import (
    AccountAuthCredentials,
    AccountAuthLoginDetails,
    AccountInfo,
)
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NodeStatus
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from calibre.deploy import launch
from calibre.deploy.gate import Gate
from calibre.deploy.keys import coordinator, public_keys
from calibre.errors import UserError
from calibre.files import private_folder, write_atomic

LOOK_SECONDS = 1.0  # between looks whether keys or certificates have changed
STOP_SECONDS = 1  # for open calls to end
Say = Callable[[str], None]


class Token(ControlAuthnPlugin):
    """Flower's account authentication with one account: whoever has the token of this start."""

    def __init__(self, token: str) -> None:
        self._token = token

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        given = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        given = given.encode() if isinstance(given, str) else given
        if hmac.compare_digest(given, self._token.encode()):
            return True, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)
        return False, None

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        return None

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        raise FlowerError(ApiErrorCode.NO_ACCOUNT_AUTH, "tokens are not given out")

    def refresh_tokens(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
        return None, None


class Sites:
    """The sites whose public keys lie in the folder, now: kept in step with what Flower knows."""

    def __init__(self, keys: Path, state: LinkState, say: Say) -> None:
        self.keys, self.state, self.say = keys, state, say
        self.names: dict[bytes, str] = {}
        self._seen: dict[str, int] | None = None

    def known(self, key: bytes) -> bool:
        return key in self.names

    def look(self) -> None:
        """Let sites join whose keys are new, and turn those away whose keys have gone."""
        seen = _changes((self.keys / "sites").glob("*.pub"))
        if seen == self._seen:
            return
        names, problems = public_keys(self.keys)
        for key, name in names.items():
            if self.names.get(key) != name:
                problems += self._let_join(key, name)
        for key in self.names.keys() - names.keys():
            self.say(f"site {self.names[key]} may no longer join: its key has gone")
        for node in self.state.get_node_info(statuses=[NodeStatus.ONLINE]):
            if node.public_key not in names:
                self.state.deactivate_node(node.node_id)
        for problem in problems:
            self.say(f"warning: {problem}")
        self.names, self._seen = names, seen

    def _let_join(self, key: bytes, name: str) -> list[str]:
        if self.state.get_node_id_by_public_key(key) is None:
            account = NOOP_FLWR_AID, NOOP_ACCOUNT_NAME
            try:
                self.state.create_node(*account, key, HEARTBEAT_DEFAULT_INTERVAL, name=name)
            except ValueError:
                return [f"site {name}: Flower was told to unregister this key; make a new one"]
        self.say(f"site {name} may join")
        return []


def _changes(files: Iterable[Path]) -> dict[str, int]:
    """Unlike when a file has come, gone or changed."""
    times = {}
    for file in files:
        with suppress(FileNotFoundError):  # gone meanwhile
            times[file.name] = file.stat().st_mtime_ns
    return times


def write_token(home: Path, address: str, token: str) -> None:
    """Where Flower's programs look for the token of an address."""
    values = {
        AUTHN_TYPE_STORE_KEY: AuthnType.OIDC,
        ACCESS_TOKEN_STORE_KEY: token,
        REFRESH_TOKEN_STORE_KEY: token,  # Flower's programs want one; it is never given out anew
    }
    content = {
        key % address: base64.b64encode(value.encode()).decode() for key, value in values.items()
    }
    # JSON is YAML
    write_atomic(home / "credentials.yaml", json.dumps(content), private=True)


class LinkServer(uvicorn.Server):
    """One of two in a process: signals are for the process, not for each of them."""

    def __init__(self, app: object, keys: Path, **more: Any) -> None:
        self.files = keys / "server.crt", keys / "server.key"
        self._seen = _changes(self.files)
        super().__init__(
            uvicorn.Config(
                app, ssl_certfile=self.files[0], ssl_keyfile=self.files[1], log_config=None,  # type: ignore[arg-type]
                access_log=False, timeout_graceful_shutdown=STOP_SECONDS, **more,
            )
        )  # fmt: skip

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def renewed(self) -> bool:
        """Greet new connections with a certificate that was renewed; whether it was."""
        seen = _changes(self.files)
        if seen == self._seen or self.config.ssl is None:
            return False
        try:
            self.config.ssl.load_cert_chain(*self.files)
        except (OSError, ssl.SSLError):  # one of the two files is not there yet
            return False
        self._seen = seen
        return True


def listen(host: str, port: int) -> socket.socket:
    """A place to be called at; what is wrong with the address, in words."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0])
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None


async def serve(keys: Path, bind: str, say: Say) -> None:
    """Until it is asked to stop, or cannot go on."""
    where, home = coordinator(keys), private_folder(keys / "flwr")
    public, private = listen(bind, where.port), listen("127.0.0.1", 0)
    port = private.getsockname()[1]
    address = f"127.0.0.1:{port}"
    token, secret = secrets.token_urlsafe(32), secrets.token_bytes(32)
    launch.write_connection(home, address, keys / "ca.crt")
    write_token(home, address, token)
    write_atomic(home / "superexec.secret", secret, private=True)
    app = create_app(_config(port, token, secret), SuperLinkLifespan)
    sites = Sites(keys, app.state.linkstate_factory.state(), say)
    sites.look()
    inner = LinkServer(app, keys, lifespan="on")
    outer = LinkServer(Gate(app, sites.known), keys, lifespan="off")
    pairs = (inner, private), (outer, public)
    tasks = [asyncio.create_task(server.serve([place])) for server, place in pairs]
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    executor = subprocess.Popen(  # noqa: S603
        [launch.program("flower-superexec"), "--runtime-api-address", address,
         "--root-certificates", str(keys / "ca.crt"), "--parent-pid", str(os.getpid()),
         "--superexec-auth-secret-file", str(home / "superexec.secret")],
    )  # fmt: skip

    def going() -> bool:
        ended = stop.is_set() or executor.poll() is not None
        return not (ended or any(task.done() for task in tasks))

    try:
        while going() and not (inner.started and outer.started):
            await asyncio.sleep(0.05)
        if going():
            say(f"listening on {bind}:{where.port} for sites, on {address} for runs")
        while going():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
            sites.look()
            if any([inner.renewed(), outer.renewed()]):
                say("the new certificate is in use")
    finally:
        executor.terminate()
        inner.should_exit = outer.should_exit = True
        await asyncio.gather(*tasks)


def _config(port: int, token: str, secret: bytes) -> SuperLinkLifespanConfig:
    """Flower's settings: sites known by key, runs by token, its executor by secret."""
    return SuperLinkLifespanConfig(
        control_address="", health_server_address=None, host="127.0.0.1", port=port,
        insecure=False, certificates=None, superexec_auth_secret=secret,
        authn_plugin=Token(token), event_log_plugin=None, fleet_event_log_plugin=None,
        enable_event_log=False, artifact_provider=None, enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE, fleet_api_address=None, simulation=False,
        ssl_ca_certfile=None, ssl_certfile=None, ssl_keyfile=None,  # the servers here have theirs
        database=FLWR_IN_MEMORY_DB_NAME,  # a disk would only slow tensors down
        isolation=ISOLATION_MODE_PROCESS, runtime_dependency_install=False,
    )  # fmt: skip


def main() -> None:
    """Standard output is for words to a person; Flower writes where errors go."""
    words = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder, bind = sys.argv[1:]
    try:
        asyncio.run(serve(Path(folder), bind, lambda text: print(text, file=words)))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
