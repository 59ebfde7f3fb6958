"""Mistakes that a person can put right: shown as one message, never as a traceback."""

from typing import Any


class UserError(ValueError):
    """Says which key, file or client is wrong, what is wrong with it, and what would work."""


def printable(value: Any) -> Any:
    """What others wrote, also inside of tables, without characters that would steer a terminal."""
    if isinstance(value, str):
        return "".join(
            c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value
        )
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value
