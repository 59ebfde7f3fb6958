import pytest

from calibre.errors import UserError, printable
from calibre.experiment import read


def test_what_steers_a_terminal_is_replaced_and_words_of_any_language_stay():
    hostile = "\x1b]0;owned\x07\x1b[2Jbell\x07 back\x08\r over \u202eright\u200b"
    shown = printable(hostile)
    assert len(shown) == len(hostile)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert "\u202e" not in shown
    assert printable("Zoë, 漢字, ²\n\tnext") == "Zoë, 漢字, ²\n\tnext"


def test_tables_and_lists_are_cleaned_inside():
    event = {"text\x1b": ["a\x07", {"b": "\x1b[1m"}], "round": 3, "loss": 0.5, "none": None}
    shown = printable(event)
    assert "\x1b" not in str(shown)
    assert (shown["round"], shown["loss"], shown["none"]) == (3, 0.5, None)


def test_bytes_that_are_no_text_are_told_as_any_other_mistake():
    """As a shell hands them over: half characters, which nothing can print."""
    typed = b"fed\xffavg".decode("utf-8", "surrogateescape")
    with pytest.raises(UserError, match=r"there is no method called 'fed\?avg'") as refused:
        read(None, [f"method.name={typed}"])
    str(refused.value).encode()
