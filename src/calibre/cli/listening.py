"""What the commands that answer browsers share: where they listen, and who may ask."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibre.cli.common import errors
from calibre.errors import UserError

if TYPE_CHECKING:
    from calibre.pages.server import Access, Server

Address = Annotated[
    str,
    typer.Option(help="Address to listen on; 0.0.0.0 lets the network in, given token and TLS."),
]
Port = Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)]
ServerNames = Annotated[
    list[str] | None,
    typer.Option("--name", help="A name that callers may call this server by, beside addresses."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token that callers must know; made if it is not there."),
]
Certificate = Annotated[
    Path | None, typer.Option(help="PEM file of the server's certificate: encrypt with TLS.")
]
Key = Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.")]
Log = Annotated[
    Path | None, typer.Option(help="File to log requests to, one line each, without contents.")
]
Unprotected = Annotated[
    bool,
    typer.Option(
        "--open-and-unprotected",
        help="Do without token or TLS although others than this machine can ask.",
    ),
]


def access(
    names: Sequence[str] | None, token: Path | None, certificate: Path | None, key: Path | None,
    unprotected: bool,
) -> "Access":  # fmt: skip
    """From the options of a command."""
    from calibre.pages.guard import Access, encrypted, read_token

    if (certificate is None) != (key is None):
        raise UserError("--certificate and --key belong together: give both, or neither")
    return Access(
        names=tuple(names or ()),
        token=read_token(token) if token else None,
        tls=encrypted(certificate, key) if certificate and key else None,
        unprotected=unprotected,
    )


def is_this_machine(host: str) -> bool:
    """Whether nobody but this machine can ask."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, of whichever address
        return False


def answer_until_stopped(server: "Server", what: str, token: Path | None) -> None:
    """Say where, and go on until Ctrl-C."""
    errors.print(f"{what} at  {server.url}", markup=False, soft_wrap=True)
    if token is not None:
        errors.print(f"callers need the token in {token}", markup=False, soft_wrap=True)
    try:
        server.run()
    except KeyboardInterrupt:
        errors.print("stopped")
