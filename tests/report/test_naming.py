from pathlib import Path

import pytest

from calibre.errors import UserError
from calibre.report.metrics import ClientResult
from calibre.report.naming import find_clients, find_listed, folder_names, short_name


def clients(*names: str) -> list[ClientResult]:
    return [ClientResult(i, name, False, 1, 0, 1, 1, 1.0, {}) for i, name in enumerate(names)]


def test_an_axis_shows_names_that_people_gave_and_numbers_of_clients_that_were_made_up():
    assert short_name(3, "client-3") == "3"
    assert short_name(3, "novel-3") == "3"
    assert short_name(3, "client-4") == "client-4"  # somebody's own
    assert short_name(1, "hospital-2") == "hospital-2"
    assert short_name(0, "x" * 18) == "x" * 18
    assert short_name(0, "x" * 19) == "x" * 17 + "…"


def test_a_safe_name_is_the_folder_s_name():
    names = ["hospital-2", "Hôpital Nord", "St. Mary's (East)", "診療所", "client-7"]
    assert folder_names(names) == names


EVIL = [
    "../../etc", "..", ".", "", "/abs", "a/b", "a\\b", ".hidden", "end.", "nul", "COM1.txt",
    "a\x00b", "a\nb", "~", "C:", "x" * 500, " ", "a*b", "\u202eevil", "north", "North", "NORTH",
    "a_b", "north-20", "e\u0301", "\u00e9", "ǆ" * 300,
]  # fmt: skip


def test_no_name_leads_out_of_the_folder_or_falls_together_with_another(tmp_path: Path):
    folders = folder_names(EVIL)
    assert len({folder.casefold() for folder in folders}) == len(EVIL)
    for folder in folders:
        place = tmp_path / folder
        assert place.resolve().parent == tmp_path.resolve()
        assert not folder.startswith(".")
        assert folder.isprintable()
        assert not folder.endswith((".", " "))
        place.mkdir()
    assert len([*tmp_path.iterdir()]) == len(EVIL)


def test_the_same_client_has_the_same_folder_every_time():
    assert folder_names(EVIL) == folder_names(EVIL)
    assert folder_names(["North", "north"]) == ["North-0", "north-1"]
    assert folder_names(["a/b", "a_b-0"]) == ["a_b-0+", "a_b-0"]


def test_clients_are_found_by_name_and_number():
    rows = clients("north", "south", "east wing, left")
    assert find_clients(rows, ["south", "0", "north"]) == [1, 0]
    with pytest.raises(UserError, match=r"no client 'nort': did you mean 'north'\? known: east"):
        find_clients(rows, ["nort"])


def test_a_name_that_is_a_number_counts_before_the_number():
    assert find_clients(clients("2", "0", "1"), ["2", "1", "0"]) == [0, 2, 1]
    assert find_listed(clients("2", "0", "1"), "0-1") == [0, 1]  # a range is of numbers


def test_a_list_of_clients_takes_names_numbers_and_ranges():
    rows = clients("north", "south", "east wing, left", "a-b", "3-4")
    assert find_listed(rows, "south, 0,2-3") == [1, 0, 2, 3]
    assert find_listed(rows, "east wing, left") == [2]
    assert find_listed(rows, "a-b") == [3]
    assert find_listed(rows, "3-4") == [4]
    for nonsense in ("7-9", "x", "1,,2", "-3"):
        with pytest.raises(UserError, match="the run has no client"):
            find_listed(rows, nonsense)


def test_of_very_many_clients_a_message_names_some():
    with pytest.raises(UserError, match=r"and 940 more$"):
        find_clients(clients(*(f"site {i}" for i in range(1000))), ["nobody"])
