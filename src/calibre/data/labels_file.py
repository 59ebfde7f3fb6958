"""``labels.csv``: labels that a person gave to images that lay there without any.

    path,label,time
    scan-17.png,cat,2025-11-03T14:05:09Z

It lies beside the images, and a path is relative to it, with ``/`` between folders. A row without a
label is an image that was looked at and has none. Of several rows for an image the last one counts.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from calibre.errors import UserError
from calibre.files import open_regular, write_atomic

NAME = "labels.csv"
COLUMNS = ("path", "label", "time")
MOST_BYTES = 2**26
LONGEST_LABEL = 200  # characters


class Label(NamedTuple):
    """A row of the file."""

    path: str  # relative to the file
    label: str  # empty: none
    time: str  # when it was given, as ISO 8601 writes it; empty where nobody knows


class OddRow(NamedTuple):
    """A row that cannot be used."""

    number: int  # of its last line, from 1
    why: str


def read(path: Path) -> list[Label]:
    """Every row, in order; no file, no rows. A row that makes no sense is a mistake."""
    if not path.exists():
        return []
    rows, odd = scan(path)
    if odd:
        more = f" (and {len(odd) - 1} more such rows)" if len(odd) > 1 else ""
        raise UserError(f"{path}: row {odd[0].number} {odd[0].why}{more}; correct or delete it")
    return [label for _, label in rows]


def scan(path: Path) -> tuple[list[tuple[int, Label]], list[OddRow]]:
    """Every row that can be used, with its number, and those that cannot be."""
    rows: list[tuple[int, Label]] = []
    odd: list[OddRow] = []
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, COLUMNS)]
        places = [header.index(name) if name in header else None for name in COLUMNS]
        if places[0] is None or places[1] is None:
            raise UserError(f"{path} does not have the columns {', '.join(COLUMNS)}")
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                odd.append(OddRow(reader.line_num, f"has {len(cells)} columns, not {len(header)}"))
                continue
            found = Label(*("" if place is None else cells[place] for place in places))
            found = found._replace(label=found.label.strip(), time=found.time.strip())
            if why := _wrong(found):
                odd.append(OddRow(reader.line_num, why))
            else:
                rows.append((reader.line_num, found))
    except csv.Error as error:
        raise UserError(f"{path} is no table: line {reader.line_num}: {error}") from None
    return rows, odd


def other_columns(path: Path) -> list[str]:
    """Columns of the file that are none of ours: :func:`write` would lose them."""
    if not path.exists():
        return []
    try:
        header = next(csv.reader(io.StringIO(_text(path), newline="")), COLUMNS)
    except csv.Error:
        return []
    return [name for name in header if name.strip().lower() not in COLUMNS]


def write(path: Path, rows: Iterable[Label | tuple[str, str, str]]) -> None:
    """All rows anew, whole or not at all."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in rows:
        if why := _wrong(Label(*row)):
            raise UserError(f"{path}: '{row[0]}' cannot be written: it {why}")
        table.writerow(row)
    try:
        write_atomic(path, text.getvalue().encode())
    except UnicodeEncodeError:
        raise UserError(f"{path}: a name is not UTF-8; rename the file") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} has more than {MOST_BYTES / 1e6:.0f} MB: it is no file of labels")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error}") from None


def _wrong(row: Label) -> str:
    """Why a row cannot be used; empty where it can."""
    inside = PurePosixPath(row.path)
    if not row.path or "\0" in row.path:
        return "has no path"
    if inside.is_absolute() or ".." in inside.parts:
        return f"has the path {row.path[:LONGEST_LABEL]!r}, which leads out of its folder"
    if len(row.label) > LONGEST_LABEL:
        return f"has a label of {len(row.label):,} characters; {LONGEST_LABEL} is the most"
    return ""
