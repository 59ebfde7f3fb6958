"""Mistakes that a person can put right: shown as one message, never as a traceback."""

import unicodedata


class UserError(ValueError):
    """Says which key, file or client is wrong, what is wrong with it, and what would work."""


# characters that turn the direction of writing, and so can make a text read as another
TURNING = {*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def printable(text: str) -> str:
    """A text for a terminal: what could rule it becomes a question mark; lines and tabs stay."""
    return "".join("?" if _rules(character) else character for character in text)


def _rules(character: str) -> bool:
    control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    return control or ord(character) in TURNING
