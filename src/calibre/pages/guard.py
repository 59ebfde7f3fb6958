"""Who may ask: a request must call the server by its name, come from its own pages, know the token.

A web page elsewhere that points a name of its own at this machine (DNS rebinding) gets no answer,
nor does one of another origin. Programs send the token as ``Authorization: Bearer ...``; a browser
is asked for it once, at ``/enter``, and keeps it in a cookie that no script can read.
"""

import hmac
import ipaddress
import os
import re
import secrets
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from calibre.errors import UserError
from calibre.pages.documents import assemble, policy
from calibre.pages.http import HTML, Answer, RefusedError, Request

ENTRANCE = assemble("enter.html")
SHORTEST, LONGEST = 20, 200  # characters of a token
_SAFE = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")  # what a header can carry
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{1,5})?")
_SCHEME = re.compile(r"[A-Za-z][0-9A-Za-z+.-]*")


@dataclass(frozen=True)
class Access:
    """What a caller must know, and how it is kept from others on the way."""

    names: Collection[str] = ()  # that the server may be called by, beside its addresses
    token: str | None = None  # None: everyone who reaches the server may ask
    tls: ssl.SSLContext | None = None
    unprotected: bool = False  # go without token or encryption where others can reach the server

    def check_exposure(self, address: str) -> None:
        """Refuse to let others than this machine in without a token and encryption."""
        if self.unprotected or ipaddress.ip_address(address).is_loopback:
            return
        lacking = [
            option
            for option, given in (("--token", self.token), ("--certificate and --key", self.tls))
            if given is None
        ]
        if lacking:
            raise UserError(
                f"at {address} others than this machine can ask: give {' and '.join(lacking)}, or "
                "say --open-and-unprotected if something else protects it"
            )


class Guard:
    """The check that every request passes before anything is done for it."""

    def __init__(self, access: Access, port: int) -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in access.names)}
        self._token = access.token
        self._cookie = f"calibre-{port}"  # cookies know no ports
        self._secure = "; Secure" if access.tls else ""

    def check(self, request: Request, public: bool) -> None:
        """Raise what the caller is to be told; ``public``: it needs no token."""
        host = _host(request.headers["host"])
        if host is None:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the Host of the request is malformed")
        if not self._knows(host):
            raise RefusedError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is not known by that name; start it with --name to allow it",
            )
        self._check_origin(request)
        if not public and not self._knows_token(request):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "send the server's token: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )

    def entrance(self, wrong: bool = False) -> Answer:
        """The page that asks a person for the token."""
        text = ENTRANCE.replace(" hidden>", ">") if wrong else ENTRANCE
        rules = policy(ENTRANCE).replace("form-action 'none'", "form-action 'self'")
        # without a referrer, browsers would not say which page a form is sent from
        headers = {"Referrer-Policy": "same-origin"}
        return Answer(text.encode(), HTML, HTTPStatus.UNAUTHORIZED, rules, headers)

    async def enter(self, request: Request) -> Answer:
        """``POST /enter`` with ``token=...``: a cookie for those who know it."""
        try:
            fields = parse_qs(request.body.decode("ascii"), max_num_fields=4)
        except ValueError:
            return self.entrance(wrong=True)
        if not self._is_token(fields.get("token", [""])[0].strip()):
            return self.entrance(wrong=True)
        kept = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/{self._secure}"
        headers = {"Location": "/", "Set-Cookie": kept}
        return Answer(b"", status=HTTPStatus.SEE_OTHER, headers=headers)

    def _knows(self, host: str) -> bool:
        if host in self._names:
            return True
        try:
            ipaddress.ip_address(host)  # an address cannot be made to point elsewhere
        except ValueError:
            return False
        return True

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None:
            return
        scheme, mark, authority = origin.partition("://")
        if origin != "null" and not (mark and _SCHEME.fullmatch(scheme) and _host(authority)):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the Origin of the request is malformed")
        if authority.lower() != request.headers["host"].lower():
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask")

    def _knows_token(self, request: Request) -> bool:
        if self._token is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        cookies = (part.strip() for part in request.headers.get("cookie", "").split(";"))
        return any(
            name == self._cookie and self._is_token(value)
            for name, _, value in (cookie.partition("=") for cookie in cookies)
        )

    def _is_token(self, given: str) -> bool:
        held = (self._token or "").encode()
        return bool(held) and hmac.compare_digest(given.encode("utf-8", "replace"), held)


def _host(authority: str) -> str | None:
    """The host of ``host:port``, without its last dot; None: it is malformed."""
    if _AUTHORITY.fullmatch(authority) is None:
        return None
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".") or None
    except ValueError:
        return None


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read; made if there is none."""
    try:
        if not path.exists():
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(made, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        if not path.is_file():
            raise UserError(f"{path} is not a file: give --token the file that holds the token")
        if path.stat().st_mode & 0o077 and os.name == "posix":
            raise UserError(f"others can read the token in {path}: chmod 600 {path}")
        with open(path, encoding="utf-8", errors="replace") as file:
            token = file.read(LONGEST + 2).strip()
    except OSError as error:
        raise UserError(f"cannot use {path} for the token: {error.strerror}") from None
    if _SAFE.fullmatch(token) is None:
        raise UserError(
            f"{path} holds no token: write {SHORTEST} to {LONGEST} letters, digits and signs into "
            "it, or take the file away and a good one is made"
        )
    return token


def encrypted(certificate: Path, key: Path) -> ssl.SSLContext:
    """What TLS needs, from two PEM files; nothing older than TLS 1.2 is spoken."""
    for path in (certificate, key):
        if not path.is_file():
            raise UserError(f"cannot read {path}: there is no such file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never ask the terminal
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(
            f"{certificate} and {key} are not a certificate and its unlocked key in PEM: {why}"
        ) from None
    return context
