from calibre.errors import printable


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
