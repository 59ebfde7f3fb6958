import io
from dataclasses import replace

from rich.console import Console

from calibre.report.changes import changes, counted
from calibre.report.metrics import ClientResult
from calibre.screen import change_table

NORTH = ClientResult(0, "north", False, 12, 40, 20, 3, 0.8, {})
SOUTH = replace(NORTH, id=1, name="south", accuracy=0.9)
EAST = replace(NORTH, id=1, name="east")


def test_clients_are_paired_by_name_whatever_their_numbers():
    moved = replace(SOUTH, id=0, samples=20)
    found = changes([NORTH, SOUTH], [moved, EAST])
    assert [(row.name, row.what) for row in found] == [
        ("south", ""), ("east", "new"), ("north", "left"),
    ]  # fmt: skip
    assert found[0].before == SOUTH
    assert found[0].after == moved


def test_numbers_are_told_once_where_they_stayed():
    assert counted(12, 12) == "12"
    assert counted(12, 2000) == "12 → 2,000"
    assert counted(None, 3) == counted(3, None) == "3"


def test_the_table_says_what_changed():
    file = io.StringIO()
    now = [replace(SOUTH, id=0, samples=20, accuracy=0.95), replace(EAST, name="[red]east")]
    Console(file=file, width=120).print(change_table([NORTH, SOUTH], now))
    south, east, north = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in file.getvalue().splitlines()
        if "40" in line
    ]
    assert south == ["south", "", "12 → 20", "40", "20", "90.0 → 95.0", "+5.0"]
    assert east == ["[red]east", "new", "12", "40", "20", "80.0", ""]
    assert north == ["north", "left", "12", "40", "20", "80.0", ""]
