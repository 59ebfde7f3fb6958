"""The command that shows a run while it goes on."""

from pathlib import Path
from typing import Annotated

import typer

from calibre.cli.listening import (
    Address,
    Certificate,
    Key,
    Port,
    ServerNames,
    TokenFile,
    Unprotected,
    access,
    answer_until_stopped,
)


def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run, going on or ended.",
                                        metavar="RUN")],
    host: Address = "127.0.0.1",
    port: Port = 8000,
    name: ServerNames = None,
    token: TokenFile = None,
    certificate: Certificate = None,
    key: Key = None,
    unprotected: Unprotected = False,
) -> None:  # fmt: skip
    """A page that follows a run: rounds, losses, who failed, the time left; then its report.

    A coordinator's run on Flower is watched the same way.
    """
    from calibre.pages.server import Server
    from calibre.pages.watch import Watched
    from calibre.report.live import LiveRun

    known = access(name, token, certificate, key, unprotected)
    live = LiveRun(run)
    server = Server(Watched(live).routes, host, port, known)
    answer_until_stopped(server, f"watch {live.name}", token)
