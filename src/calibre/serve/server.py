"""A small web server around one bundle.

    GET /           a page to drop an image on
    GET /card       the model card, as JSON
    POST /predict   an image file as the body; the prediction, as JSON

Nothing is read from disk for a request, so there is nothing to climb out of. What a stranger may
send is limited in bytes, pixels, kinds of files, seconds and number at a time. A request must call
the server by an address or by a name that it was given: a web page elsewhere that points a name of
its own at this machine (DNS rebinding) gets no answer, nor does one of another origin.
"""

import base64
import hashlib
import io
import ipaddress
import json
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from calibre.errors import UserError
from calibre.personal.bundle import Bundle

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
CHUNK = 2**16


@dataclass(frozen=True)
class Limits:
    """What one request may take."""

    body: int = 20 * 2**20  # bytes
    pixels: int = 40_000_000
    seconds: float = 20.0  # to send it
    at_once: int = 4  # images being decoded; more wait their turn, for as many seconds


class Server(ThreadingHTTPServer):
    """One bundle at one address."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(
        self,
        bundle: Bundle,
        host: str = "127.0.0.1",
        port: int = 8000,
        names: Collection[str] = (),
        limits: Limits = Limits(),  # noqa: B008, frozen
    ) -> None:
        self.bundle = bundle
        self.limits = limits
        self.names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self.turns = threading.BoundedSemaphore(limits.at_once)
        self.page = files("calibre.serve").joinpath("page.html").read_bytes()
        self.policy = _policy(self.page.decode())
        self.card = json.dumps(bundle.card.model_dump(mode="json"), ensure_ascii=False).encode()
        try:
            self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on {host} port {port}: {error}") from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host if isinstance(host, str) else host.decode()
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    def knows(self, authority: str) -> bool:
        """Whether a request that calls the server so is meant for it: by address or known name."""
        try:
            host = (urlsplit(f"//{authority}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if host in self.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is nobody's mistake; anything else is ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class RefusedError(Exception):
    """An answer other than the one asked for."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One request; every answer but the page is JSON."""

    server: Server
    server_version = "calibre"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.seconds)

    def do_GET(self) -> None:
        self._answer({"/": self._page, "/card": self._card})

    def do_POST(self) -> None:
        self._answer({"/predict": self._predict})

    def _answer(self, routes: dict[str, Any]) -> None:
        try:
            self._check_caller()
            path = urlsplit(self.path).path
            if path not in routes:
                raise RefusedError(
                    HTTPStatus.NOT_FOUND, f"{self.command} knows {', '.join(routes)}"
                )
            routes[path]()
        except RefusedError as refusal:
            self._send(refusal.status, json.dumps({"error": str(refusal)}).encode())
            self._drain()
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            traceback.print_exc()
            said = b'{"error": "the server failed; its screen says why"}'
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, said)

    def _check_caller(self) -> None:
        if not self.server.knows(self.headers.get("Host", "")):
            raise RefusedError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is not known by that name; start it with --name to allow it",
            )
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.headers.get("Host"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask")

    def _page(self) -> None:
        self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def _card(self) -> None:
        self._send(HTTPStatus.OK, self.server.card)

    def _predict(self) -> None:
        body = self._body()
        if not self.server.turns.acquire(timeout=self.server.limits.seconds):
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many images at once; try again")
        try:
            self._check_image(body)
            (found,) = self.server.bundle.predict(body)
        finally:
            self.server.turns.release()
        if found.error is not None:
            raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"the image {found.error}")
        said = {**asdict(found), "answer": found.answer, "limit": self.server.bundle.limit}
        del said["image"], said["error"]
        self._send(HTTPStatus.OK, json.dumps(said, ensure_ascii=False).encode())

    def _body(self) -> bytes:
        limits = self.server.limits
        length = self.headers.get("Content-Length")
        if length is None or not re.fullmatch(r"[0-9]{1,18}", length):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send the image with its Content-Length")
        if int(length) > limits.body:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the image has {int(length) / 2**20:.1f} MB; at most {limits.body / 2**20:.1f}",
            )
        end = time.monotonic() + limits.seconds  # a caller may not trickle bytes for ever
        parts, left = [], int(length)
        try:
            while left:
                if time.monotonic() > end:
                    raise TimeoutError
                part = self.rfile.read1(min(left, CHUNK))
                if not part:
                    raise RefusedError(HTTPStatus.BAD_REQUEST, "the image was cut short")
                parts.append(part)
                left -= len(part)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, f"the image took longer than {limits.seconds:g} s"
            ) from None
        return b"".join(parts)

    def _check_image(self, body: bytes) -> None:
        """From its header: a small file may unpack to gigabytes."""
        try:
            with Image.open(io.BytesIO(body), formats=FORMATS) as picture:
                wide, high = picture.size
        except Image.DecompressionBombError:
            wide = high = 2**16
        except Exception:  # every one of Pillow's decoders fails in a way of its own
            raise RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send an image file: {', '.join(FORMATS)}"
            ) from None
        if wide * high > (most := self.server.limits.pixels):
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the image has more than {most / 1e6:g} million pixels",
            )

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself: a method, a malformed request."""
        status = HTTPStatus(code)
        self._send(status, json.dumps({"error": message or status.description}).encode())

    def _drain(self) -> None:
        """Hear a refused caller out, within bounds: closed in mid-sentence, it would not listen."""
        self.connection.settimeout(1)
        end, left = time.monotonic() + 2, 4 * self.server.limits.body
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and time.monotonic() < end and (part := self.connection.recv(CHUNK)):
                left -= len(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what is asked is the caller's own business."""


def _policy(page: str) -> str:
    """Only the page's own script and style may run; nothing comes from elsewhere."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (hashlib.sha256(text.encode()).digest() for text in found)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
