"""A CSV file with a row per image: its path relative to the file, its label, maybe its client.

The columns are named in the first line; comma, semicolon and tab separate them.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from calibre.data.formats import EncodedImage, Raw
from calibre.data.formats.table import (
    IMAGE_NAMES,
    Columns,
    TableRow,
    assemble,
    choose_columns,
    read_image,
    read_row,
)
from calibre.errors import UserError

SUFFIXES = (".csv", ".tsv")
MOST_BYTES = 2**30  # of a table
LONGEST_LINE = 2**16  # that is looked at to find what separates the columns


@dataclass(frozen=True)
class Line:
    """An image, and what its line says of it."""

    image: EncodedImage
    row: TableRow


def rows(
    path: Path,
    image_column: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
) -> list[Line]:
    """Every row; labels that are whole numbers everywhere count as numbers."""
    (_, header), *lines = _without_index([*_lines(path)] or [(1, [])])
    names = [name.strip() for name in header]
    if len(set(names)) != len(names) or "" in names:
        raise UserError(f"{path}: every column needs a name of its own in the first line")
    images = [name for name in IMAGE_NAMES if name in names][:1]
    wanted = (image_column, label_column, client_column)
    columns = choose_columns(path, names, wanted, images, names)
    found = [_line(path, number, columns, names, line) for number, line in lines]
    labels = [line.row.label for line in found]
    if all(label is None or _is_whole(label) for label in labels):
        found = [
            Line(line.image, replace(line.row, label=None if label is None else int(label)))
            for line, label in zip(found, labels, strict=True)
        ]
    return found


def read(path: Path, found: list[Line]) -> Raw:
    return assemble(path, [line.row for line in found], [line.image for line in found])


def _without_index(lines: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """pandas writes the numbers of rows into a first column without a name."""
    (_, header), *others = lines
    counts = (line[:1] == [str(row)] for row, (_, line) in enumerate(others))
    if header[:1] != [""] or len(header) < 2 or not all(counts):
        return lines
    return [(number, line[1:]) for number, line in lines]


def _line(path: Path, number: int, columns: Columns, names: list[str], line: list[str]) -> Line:
    if len(line) != len(names):
        raise UserError(f"{path}: row {number} has {len(line)} columns, the first has {len(names)}")
    cells = dict(zip(names, map(str.strip, line), strict=True))
    image = read_image(path, number, columns.image, cells[columns.image])
    return Line(image, read_row(path, number, columns, cells))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, numbered from 1."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} has more than {MOST_BYTES / 1e9:.0f} GB; split it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(LONGEST_LINE)
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
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19
