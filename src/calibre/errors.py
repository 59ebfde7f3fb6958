"""Mistakes that a person can put right: shown as one message, never as a traceback."""

import unicodedata
from typing import Any

# characters that turn the direction of writing, and so can make a text read as another
TURNING = {*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


class UserError(ValueError):
    """Says which key, file or client is wrong, what is wrong with it, and what would work."""

    def __init__(self, said: str = "") -> None:
        # half a character, as of bytes typed that are no text, can neither be printed nor kept
        super().__init__(said.encode("utf-8", "replace").decode())


def printable(value: Any) -> Any:
    """What others wrote, also inside of tables, without characters that would steer a terminal."""
    if isinstance(value, str):
        return "".join("\N{REPLACEMENT CHARACTER}" if _steers(c) else c for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def _steers(character: str) -> bool:
    control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    return control or ord(character) in TURNING
