"""Ways in which bytes go wrong, by chance or by intent."""

import numpy as np

ABSURD = (
    b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\x80\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\0\0\x01\0",
)  # fmt: skip
OTHERS = (
    b"", b"\0", b"\0" * 5000, b"<html>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"PK\x03\x04", b"PAR1",
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"II*\0\xff\xff\xff\xff",
    b"\x80\x04", b"path,label\n", bytes(128) + b"DICM",
)  # fmt: skip


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """One thing wrong with ``content``, or a few of one kind."""
    ways = (_cut, _flip, _flip, _absurd, _absurd, _zero, _shift, _repeat, _another, _encode)
    return ways[rng.integers(len(ways))](content, rng)


def _place(content: bytes, rng: np.random.Generator) -> int:
    """Headers are at the start, of some formats at the end: there more happens."""
    size = len(content)
    near = min(size, 256)
    where = rng.integers(3)
    if size == 0:
        return 0
    if where == 0:
        return int(rng.integers(near))
    return int(size - 1 - rng.integers(near)) if where == 1 else int(rng.integers(size))


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    place = _place(content, rng)
    return content[:place] if rng.random() < 0.7 else content[place:]


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 2, 8, 64])) if content else 0):
        changed[_place(content, rng)] = int(rng.integers(256))
    return bytes(changed)


def _absurd(content: bytes, rng: np.random.Generator) -> bytes:
    """A number, most likely, that is far too large."""
    place, number = _place(content, rng), ABSURD[rng.integers(len(ABSURD))]
    return content[:place] + number + content[place + len(number) :]


def _zero(content: bytes, rng: np.random.Generator) -> bytes:
    """A block that was never written."""
    place, length = _place(content, rng), int(rng.choice([1, 16, 512, 4096]))
    return content[:place] + bytes(min(length, len(content) - place)) + content[place + length :]


def _shift(content: bytes, rng: np.random.Generator) -> bytes:
    place = _place(content, rng)
    return content[:place] + rng.bytes(int(rng.integers(1, 9))) + content[place:]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    first, second = sorted(_place(content, rng) for _ in range(2))
    return content[:second] + content[first:second] * int(rng.integers(1, 50)) + content[second:]


def _another(content: bytes, rng: np.random.Generator) -> bytes:
    """Something else altogether, or the start of it."""
    other = OTHERS[rng.integers(len(OTHERS))]
    return other if rng.random() < 0.5 else other + content[len(other) :]


def _encode(content: bytes, rng: np.random.Generator) -> bytes:
    encoding = str(rng.choice(["utf-16", "utf-32", "utf-8"]))
    return content.decode("latin1").encode(encoding)
