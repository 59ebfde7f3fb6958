"""Odd values, texts and bytes, drawn by a seeded generator."""

import copy
import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 2**31, 2**63, 10**30, 10**400, -(10**30), 0.0, -0.0, 0.5, 1e-300, 5e-324,
    1e30, 1e308, float("nan"), float("inf"), -float("inf"), True, False, None, "", " ", "x", "nan",
    "-1", "1e9", "²", "../../x", "/etc/passwd", "a:b", "calibre:run", "os:system", "\x00",
    "\x1b[2J", "\ud800", "x" * 5000, "ü" * 99, [], [[]], [0], [1, 2], [0.1, 0.9], [0.9, 0.1], ["a"],
    [None] * 50, {}, {"name": "x"}, {"name": 3}, {"name": "byol"}, {"": {}}, {"weight": 1}, "auto",
    "cpu", "test", "digits", "cnn", "mean", "median",
)  # fmt: skip


def check_words(refused: Exception) -> None:
    """A refusal says why."""
    if not str(refused).strip():
        raise AssertionError("an empty message")


def value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def places(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything within tables and lists."""
    found = [path] if path else []
    if isinstance(table, dict):
        for key, held in table.items():
            found += places(held, (*path, key))
    elif isinstance(table, list):
        for i, held in enumerate(table):
            found += places(held, (*path, i))
    return found


def altered(rng: random.Random, table: Any, changes: int) -> Any:
    """A table with odd values in some places, some keys gone, and some new."""
    table = json.loads(json.dumps(table))
    for _ in range(changes):
        if not (known := places(table)):
            return value(rng)
        *way, last = rng.choice(known)
        held = table
        for step in way:
            held = held[step]
        match rng.randrange(6):
            case 0:
                del held[last]
            case 1 if isinstance(held, dict):
                held[rng.choice(("surprise", "", "name", "is", "\x1b", "9" * 30))] = value(rng)
            case 2:
                held[last] = [held[last]] * rng.choice((0, 1, 2, 100))
            case _:
                held[last] = value(rng)
    return table


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes changed, cut, grown or replaced."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 | 1 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 2:
                del changed[place:]
            case 3:
                del changed[place : place + rng.choice((1, 8, 100))]
            case 4:
                changed[place:place] = rng.randbytes(rng.choice((1, 8, 100)))
            case 5 if changed:
                changed[place % len(changed)] = rng.choice(b'0123456789.-,"[]{}\n\x00\xff')
            case 6 if rng.random() < 0.2:
                changed = bytearray(rng.choice((b"", b"{}", b"[]", b"null", b"\x00" * 64)))
    return bytes(changed)
