"""HTTP/1.1 as values: what a request says, and what an answer is in bytes.

Strict on purpose: what two programs could read in two ways (a header twice, a folded line, a bare
line feed, a length beside a transfer encoding) is refused, and nothing is guessed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

FIELDS = 100  # headers of a request
PARAMETERS = 16  # of a query
JSON, HTML, TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rf"({WORD}) ([!-~]+) HTTP/([0-9])\.([0-9])")
_NAME = re.compile(WORD)
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_TARGET = re.compile(r"/(?:[^%#]|%[0-9A-Fa-f]{2})*")
_ONCE = ("host", "origin", "authorization", "content-length", "content-type", "expect")


class RefusedError(Exception):
    """An answer other than the one asked for, with the reason in words."""

    def __init__(self, status: HTTPStatus, why: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(why)
        self.status = status
        self.headers = dict(headers)


@dataclass(frozen=True)
class Request:
    """What was asked, once it is known to be well formed."""

    method: str
    path: str  # as it stands in the request: nothing is unescaped
    query: Mapping[str, str]
    headers: Mapping[str, str]  # by names in small letters
    lasting: bool  # whether the caller would ask again on the same connection
    body: bytes = b""

    @property
    def wants_page(self) -> bool:
        """Whether a browser is about to show the answer to a person."""
        return self.method in ("GET", "HEAD") and "text/html" in self.headers.get("accept", "")

    @property
    def length(self) -> int:
        """How many bytes the body has, by the caller's word."""
        return int(self.headers.get("content-length", "0"))


def read_head(head: bytes) -> Request:
    """The request of a head that ends with its empty line; the body is still to come."""
    first, *lines = head.removesuffix(b"\r\n\r\n").decode("latin-1").split("\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise _bad("the first line of the request is not one of HTTP")
    method, target, major, minor = found.groups()
    if major != "1":
        raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server speaks HTTP/1.1")
    if _TARGET.fullmatch(target) is None:
        raise _bad("the target of the request is not a path on this server")
    path, _, query = target.partition("?")
    headers = _fields(lines)
    if "host" not in headers:
        raise _bad("the request does not say which host it is for")
    _check_length(method, headers)
    closing = "close" in headers.get("connection", "").lower()
    return Request(method, path, _parameters(query), headers, minor != "0" and not closing)


def _fields(lines: list[str]) -> dict[str, str]:
    if len(lines) > FIELDS:
        raise RefusedError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {FIELDS} headers, please"
        )
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _bad("a header of the request is malformed")
        if name in fields and name in _ONCE:
            raise _bad(f"the request has more than one {name}")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _check_length(method: str, headers: Mapping[str, str]) -> None:
    length = headers.get("content-length")
    if "transfer-encoding" in headers:
        if length is not None:
            raise _bad("the request has a Content-Length and a Transfer-Encoding")
        raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send the body whole, with Content-Length")
    if length is None and method in ("POST", "PUT", "PATCH"):
        raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "say the body's Content-Length")
    if length is not None and not re.fullmatch("[0-9]{1,18}", length):
        raise _bad("the Content-Length is not a number of bytes")


def _parameters(query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS)
    except ValueError:
        raise _bad("the query of the request is malformed") from None
    return dict(pairs)


def _bad(why: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, why)


@dataclass(frozen=True)
class Answer:
    """What goes back. ``policy`` is what a browser may do with it: by default nothing at all."""

    body: bytes
    kind: str = JSON
    status: HTTPStatus = HTTPStatus.OK
    policy: str = NOTHING
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, status: HTTPStatus = HTTPStatus.OK) -> "Answer":
        """A value as JSON."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return cls(text.encode(errors="replace"), status=status)

    @classmethod
    def refusing(cls, refusal: RefusedError) -> "Answer":
        body = json.dumps({"error": str(refusal)}).encode()
        return cls(body, status=refusal.status, headers=refusal.headers)

    def encoded(self, lasting: bool, with_body: bool = True) -> bytes:
        """The bytes to send; ``lasting``: the connection stays open for another request."""
        lines = {
            "Date": formatdate(usegmt=True),
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            "Connection": "keep-alive" if lasting else "close",
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **self.headers,
        }
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items()
        )
        assert head.count("\n") == len(lines) + 1, "a header of an answer holds a line break"
        return head.encode("latin-1") + b"\r\n" + (self.body if with_body else b"")
