"""Files out of a multipart form, as ``curl -F`` and web pages send them (RFC 7578)."""

import re
from http import HTTPStatus
from typing import NamedTuple

from calibre.pages.http import RefusedError, Request

PARTS = 64  # of a form
HEAD = 4096  # bytes before a part's content
_BOUNDARY = re.compile(r'boundary=(?:"([^"\x00-\x1f]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_DISPOSITION = re.compile(r"^content-disposition:[ \t]*form-data;(.*)$", re.I | re.M)
_FILE_NAME = re.compile(r'(?:^|[; \t])filename="([^"\r\n]*)"', re.I)


class File(NamedTuple):
    name: str  # the caller's word: never a path to open
    content: bytes


def is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "multipart/form-data"


def files(request: Request) -> list[File]:
    """The files of a form, in its order; other fields are not looked at."""
    found = _BOUNDARY.search(request.headers["content-type"])
    if found is None:
        raise _malformed("it names no boundary")
    boundary = (found[1] or found[2]).encode("latin-1")
    # a boundary starts a line; the first may start the body
    pieces = (b"\r\n" + request.body).split(b"\r\n--" + boundary, PARTS + 2)
    if len(pieces) > PARTS + 2:
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {PARTS} parts"
        )
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _malformed("its last boundary is missing")
    parts = [_part(piece) for piece in pieces[1:-1]]
    return [part for part in parts if part is not None]


def _part(piece: bytes) -> File | None:
    """The file in what stands between two boundaries; None: another kind of field."""
    end = piece.find(b"\r\n\r\n", 0, HEAD)
    if not piece.startswith(b"\r\n") or end < 0:
        raise _malformed("a part of it has no headers")
    head = piece[2:end].decode("utf-8", "replace").replace("\r\n", "\n")
    disposition = _DISPOSITION.search(head)
    if disposition is None:
        raise _malformed("a part of it does not say what it is")
    name = _FILE_NAME.search(disposition[1])
    return File(name[1].replace("%22", '"'), piece[end + 4 :]) if name else None


def _malformed(why: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, f"the form is malformed: {why}")
