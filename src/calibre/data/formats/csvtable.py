"""A CSV file with a row per image: its path relative to the file, its label, maybe its client.

The columns are named in the first line; comma, semicolon and tab separate them.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from calibre.data.formats import Raw
from calibre.data.formats.table import (
    IMAGE_NAMES,
    Columns,
    Row,
    assemble,
    choose_columns,
    read_row,
)
from calibre.errors import UserError

SUFFIXES = (".csv", ".tsv")


def rows(
    path: Path,
    image_column: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
) -> list[Row]:
    """Every row; labels that are whole numbers everywhere count as numbers."""
    lines = _lines(path)
    _, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    if len(set(names)) != len(names) or "" in names:
        raise UserError(f"{path}: every column needs a name of its own in the first line")
    images = [name for name in IMAGE_NAMES if name in names][:1]
    wanted = (image_column, label_column, client_column)
    columns = choose_columns(path, names, wanted, images, names)
    found = [_row(path, number, columns, names, line) for number, line in lines]
    if all(row.label is None or _is_whole(row.label) for row in found):
        found = [
            Row(row.image, None if row.label is None else int(row.label), row.client, row.part)
            for row in found
        ]
    return found


def read(path: Path, found: list[Row]) -> Raw:
    return assemble(path, found)


def _row(path: Path, number: int, columns: Columns, names: list[str], line: list[str]) -> Row:
    if len(line) != len(names):
        raise UserError(f"{path}: row {number} has {len(line)} columns, the first has {len(names)}")
    cells = dict(zip(names, map(str.strip, line), strict=True))
    return read_row(path, number, columns, [cells[name] for name in columns.names], "train")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, numbered from 1."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            for line in reader:
                if any(cell.strip() for cell in line):
                    yield reader.line_num, line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as a table of text in UTF-8 with columns separated by commas: "
            f"{error}"
        ) from error


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()
