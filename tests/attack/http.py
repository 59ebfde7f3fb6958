"""Malformed requests, seeded: whatever comes in, the server answers properly or hangs up.

    python -m tests.attack.http [--seed 0] [--count 2000]

Every case must end in well-formed answers, none of them 500, or in a closed connection, within the
server's own deadlines. Nothing may be printed, and afterwards the server answers as before.
"""

import argparse
import contextlib
import io
import json
import random
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image

from calibre.pages.predict import Predictions
from calibre.pages.server import Access, Limits, Server
from tests.personal.made_bundle import COLOURS, make_bundle, square

TOKEN = "correct-horse-battery-staple"
LIMITS = Limits(
    head=4096, head_seconds=0.5, seconds=1.0, patience=5.0, connections=64, memory=2_000_000
)
BODY = 50_000
AT_ONCE = 8
PATIENCE = 8.0  # seconds: longer than all of the server's deadlines together
STATUSES = {200, 303, 400, 401, 403, 404, 405, 408, 411, 413, 415, 421, 422, 431, 503, 505}

METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"get", b"G\x00T", b"", b"A" * 300)
TARGETS = (b"/", b"/predict", b"/card", b"/card.md", b"/health", b"/metrics", b"/enter",
           b"/nowhere", b"*", b"//", b"http://[", b"/%", b"/%zz", b"/?%ff", b"/?" + b"a&" * 40,
           b"/\xff", b"/#", b"/..%2f", b"/" + b"a" * 5000, b"", b"/ /")  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b"HTTP/11", b"", b"HTTP/1.1 x")
HOSTS = (b"localhost", b"127.0.0.1:80", b"[::1]", b"[::", b"evil.example", b"", b"a@b", b"\xff",
         b"localhost:99999999", b".", b"[1.2.3.4]", b"[v1.x]")  # fmt: skip
NAMES = (b"Host", b"Content-Length", b"Transfer-Encoding", b"Origin", b"Cookie", b"Expect",
         b"Authorization", b"Connection", b"Content-Type", b"Accept", b"X-Any", b"", b" X", b"X ",
         b"X\x00", b"Sec-Fetch-Site", b"Upgrade")  # fmt: skip
VALUES = (b"", b"0", b"-1", b"1e9", b"chunked", b"\x00", b"\xff\xfe", b"null", b"http://[", b"://",
          b"close", b"keep-alive", b"100-continue", b"multipart/form-data", b"Bearer", b"9" * 40,
          b"multipart/form-data; boundary=x", b"Bearer " + TOKEN.encode(), b"x" * 3000,
          b"a\r\n folded", b"a\nB: c", b"text/html", b"calibre-1=; ;=;", b"\t \t")  # fmt: skip
LINE_ENDS = (b"\r\n",) * 60 + (b"\n", b"\r", b"\r\n\r\n", b"")


@dataclass(frozen=True)
class Case:
    """Bytes to send, in pieces; whether the caller says that it has finished."""

    pieces: tuple[bytes, ...]
    finished: bool


def attack(seed: int, count: int) -> Counter[str]:
    """Fire ``count`` cases at a server of our own; how they ended. A bad one raises."""
    printed = io.StringIO()
    with (
        Predictions(make_bundle(), body=BODY, pixels=1_000_000) as made,
        Server(
            made.routes, port=0, access=Access(token=TOKEN), limits=LIMITS, metrics=made.metrics
        ).in_background() as server,
        contextlib.redirect_stderr(printed),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        _answers_properly(server.port)
        ended = Counter(pool.map(lambda number: _one(server.port, seed, number), range(count)))
        _answers_properly(server.port)
    assert printed.getvalue() == "", printed.getvalue()
    return ended


def _one(port: int, seed: int, number: int) -> str:
    case = made(seed, number)
    try:
        heard = _heard(port, case)
        return _ending(heard, with_bodies=b"HEAD " not in b"".join(case.pieces))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, case {number}: {error}\n{case}") from None


def made(seed: int, number: int) -> Case:
    """One case, the same for the same numbers."""
    rng = random.Random(f"{seed} {number}")
    kinds: tuple[Callable[[random.Random], bytes], ...] = (
        _noise, _mutated, _odd, _odd, _images, _forms, _pipeline
    )  # fmt: skip
    content = rng.choice(kinds)(rng)
    cuts = sorted(rng.randrange(len(content) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    edges = [0, *cuts, len(content)]
    pieces = tuple(content[a:b] for a, b in pairwise(edges))
    return Case(pieces, finished=rng.random() < 0.97)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 10, 1000, 10_000)))


def _request(method: bytes, target: bytes, body: bytes | None = None, *fields: bytes) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: localhost", *fields]
    lines.append(b"Authorization: Bearer " + TOKEN.encode())
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def _mutated(rng: random.Random) -> bytes:
    """A good request with a few changes anywhere."""
    good = _request(b"POST", b"/predict", _picture(rng), b"Content-Type: image/png")
    return _changed(rng, good, rng.choice((1, 2, 5)))


def _changed(rng: random.Random, content: bytes, changes: int) -> bytes:
    changed = bytearray(content)
    for _ in range(changes):
        # half of them where structure is: in the beginning
        place = rng.randrange(1 + (len(changed) if rng.random() < 0.5 else min(len(changed), 200)))
        match rng.randrange(5):
            case 0:
                changed[place : place + 1] = rng.randbytes(1)
            case 1:
                changed[place:place] = rng.choice((b"\r\n", b"\x00", b" ", b":", rng.randbytes(3)))
            case 2:
                del changed[place : place + rng.choice((1, 2, 20))]
            case 3:
                changed[place:place] = changed[place : place + rng.choice((1, 30, 300))]
            case 4:
                del changed[place:]
    return bytes(changed)


def _odd(rng: random.Random) -> bytes:
    """Put together from parts that are odd, each on its own or in combination."""

    def mostly(usual: bytes, odd: tuple[bytes, ...]) -> bytes:
        return usual if rng.random() < 0.8 else rng.choice(odd)

    line = b" ".join(
        (mostly(b"POST", METHODS), mostly(b"/predict", TARGETS), mostly(b"HTTP/1.1", VERSIONS))
    )
    body = rng.choice((b"", b"token=x", b"x" * 10, _picture(rng), b"x" * (BODY + 1)))
    fields = [b"Host: " + mostly(b"localhost", HOSTS)]
    if rng.random() < 0.8:
        length = len(body) + rng.choice((0, 0, 0, 0, 1, -1, 1000))
        fields.append(b"Content-Length: %d" % length)
    if rng.random() < 0.7:
        fields.append(b"Authorization: Bearer " + TOKEN.encode())
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 150))):
        fields.append(rng.choice(NAMES) + b": " + rng.choice(VALUES))
    rng.shuffle(fields)
    return b"".join(part + rng.choice(LINE_ENDS) for part in (line, *fields, b"")) + body


def _picture(rng: random.Random) -> bytes:
    file = io.BytesIO()
    kind = rng.choice(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"))
    Image.fromarray(square(rng.choice(list(COLOURS.values())), 1)).save(file, kind)
    return file.getvalue()


def _images(rng: random.Random) -> bytes:
    """A good request with a damaged image."""
    return _request(b"POST", b"/predict", _changed(rng, _picture(rng), rng.choice((1, 3, 10))))


def _forms(rng: random.Random) -> bytes:
    edge = rng.choice((b"edge", b"e", b"e" * 70, b"e" * 71, b'"e"', b"", b"e\xff", b"--"))
    parts = b"".join(
        b"--" + edge + b'\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
        + _picture(rng) + b"\r\n"
        for _ in range(rng.choice((0, 1, 2, 70)))
    )  # fmt: skip
    body = parts + b"--" + edge + b"--\r\n"
    if rng.random() < 0.7:
        body = _changed(rng, body, rng.choice((1, 3)))
    kind = b"Content-Type: multipart/form-data; boundary=" + edge
    return _request(b"POST", b"/predict", body[:BODY], kind)


def _pipeline(rng: random.Random) -> bytes:
    """Several requests at once, the last of them spoilt."""
    good = [_request(b"GET", rng.choice(TARGETS[:7])) for _ in range(rng.randrange(1, 6))]
    return b"".join(good) + rng.choice((_odd, _noise, _images))(rng)


def _heard(port: int, case: Case) -> bytes:
    """All that comes back; the server has to hang up in time."""
    end = time.monotonic() + PATIENCE
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            for piece in case.pieces:
                line.sendall(piece)
            if case.finished:
                line.shutdown(socket.SHUT_WR)
        try:
            while True:
                line.settimeout(max(end - time.monotonic(), 0.01))
                if not (part := line.recv(65536)):
                    break
                parts.append(part)
        except TimeoutError:
            raise AssertionError(f"no end after {PATIENCE} s") from None
        except OSError:
            parts.append(b"")  # reset: an end, too; what came before it is read below
            return b"".join(parts) or b"reset"
    return b"".join(parts)


def _ending(heard: bytes, with_bodies: bool) -> str:
    """What the last answer was, all of them being well formed."""
    if heard in (b"", b"reset"):
        return "closed"
    last = ""
    for status, kind, body in _answers(heard, with_bodies):
        assert status in STATUSES, f"answered {status}: {body[:200]!r}"
        if kind == "application/json" and body:
            said = json.loads(body)
            assert status < 400 or set(said) == {"error"}, said
        last = str(status)
    return last


def _answers(heard: bytes, with_bodies: bool) -> Iterator[tuple[int, str, bytes]]:
    while heard:
        head, found, rest = heard.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = re.fullmatch(rb"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]+", lines[0])
        assert found, f"no whole answer: {heard[:200]!r}"
        assert status, f"no answer of HTTP: {heard[:200]!r}"
        if status[1] == b"100":
            heard = rest
            continue
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        length = int(fields[b"Content-Length"])
        body = rest[:length] if with_bodies or not rest.startswith(b"HTTP/") else b""
        assert len(body) == length or not with_bodies, f"a body of {len(body)}, not {length} bytes"
        yield int(status[1]), fields[b"Content-Type"].decode(), body if with_bodies else b""
        heard = rest[len(body) :]


def _answers_properly(port: int) -> None:
    for name, colour in COLOURS.items():
        file = io.BytesIO()
        Image.fromarray(square(colour, 5)).save(file, "PNG")
        request = _request(b"POST", b"/predict", file.getvalue(), b"Connection: close")
        ((status, _, body),) = _answers(_heard(port, Case((request,), False)), with_bodies=True)
        assert (status, json.loads(body)["label"]) == (200, name), body


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.attack.http")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    began = time.monotonic()
    for ending, cases in attack(given.seed, given.count).most_common():
        print(f"{cases:6d}  {ending}")
    print(f"{given.count} cases in {time.monotonic() - began:.0f} s", file=sys.stderr)
