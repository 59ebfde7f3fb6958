"""Parquet files with an image column and a label column, as Hugging Face lays them out.

An image is a struct of ``bytes`` and ``path``, or binary, or the path of a file relative to the
parquet file. In a folder, files named train... and test... are those parts. (The cache notices
changes of parquet files, not of image files that they point to.)

Labels and owners are read at once; images stay in their file until somebody comes to them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.formats import EncodedImage, Raw
from calibre.data.formats.parquet_file import Rows, between, images_of, open_file, values_of
from calibre.data.formats.table import (
    IMAGE_NAMES,
    PARTS,
    Columns,
    TableRow,
    assemble,
    choose_columns,
    read_image,
    read_row,
)
from calibre.errors import UserError

PART = re.compile(r"(train|test)(?![a-z])")


@dataclass(frozen=True, eq=False)
class Stored:
    """The images of parquet files, row by row."""

    files: tuple[Path, ...]
    lengths: tuple[int, ...]  # rows of each file
    column: str
    rows: Rows  # those that count, in the order of the files

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: Rows) -> "Stored":
        return replace(self, rows=self.rows[places])

    def __iter__(self) -> Iterator[EncodedImage]:
        ends = accumulate(self.lengths, initial=0)
        for path, (start, end) in zip(self.files, pairwise(ends), strict=True):
            here = between(self.rows, start, end)
            for row, value in images_of(path, self.column, here) if len(here) else ():
                yield read_image(path, row, self.column, value)


def read(
    place: Path,
    image_column: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    classes: tuple[str, ...] | None = None,
    files: Sequence[Path] = (),
) -> Raw:
    """``classes`` names integer labels; without it the file's own names or values do.

    ``files`` are those of a folder; without them all that are called ``*.parquet``.
    """
    files = files or ([place] if place.is_file() else sorted(place.rglob("*.parquet")))
    schema = open_file(files[0]).schema_arrow
    columns = choose_columns(
        files[0],
        schema.names,
        (image_column, label_column, client_column),
        _image_columns(schema),
        _label_columns(schema),
    )
    members = [
        (file, _rows(file, columns, part))
        for part, files in zip(PARTS, _parts(place, files), strict=True)
        for file in files
    ]
    rows = [row for _, found in members for row in found]
    images = Stored(
        tuple(file for file, _ in members),
        tuple(len(found) for _, found in members),
        columns.image,
        np.arange(len(rows)),
    )
    return assemble(place, rows, images, classes or _hugging_face_classes(schema, columns.label))


def _parts(place: Path, files: Sequence[Path]) -> tuple[Sequence[Path], Sequence[Path]]:
    """Files to train on and to test on, by their names or the folders they are in."""
    if place.is_file():
        return files, []
    found = {}
    for file in files:
        names = file.relative_to(place).parts
        found[file] = next((m[1] for m in map(PART.match, map(str.lower, names)) if m), None)
    if not any(found.values()):
        return files, []
    for file, part in found.items():
        if part is None:
            raise UserError(f"{file} is neither train... nor test... by its name; take it away")
    return [f for f in files if found[f] == "train"], [f for f in files if found[f] == "test"]


def _rows(path: Path, columns: Columns, part: str) -> list[TableRow]:
    names = columns.about
    return [
        read_row(path, number, columns, dict(zip(names, row, strict=True)), part)
        for number, row in enumerate(zip(*values_of(path, names), strict=True))
    ]


def _image_columns(schema: Any) -> list[str]:
    import pyarrow as pa

    def holds_bytes(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    found = [field.name for field in schema if holds_bytes(field.type)]
    return found or [name for name in IMAGE_NAMES if name in schema.names][:1]


def _label_columns(schema: Any) -> list[str]:
    import pyarrow as pa

    def holds_classes(kind: Any) -> bool:
        types = pa.types
        return bool(types.is_integer(kind) or types.is_string(kind) or types.is_dictionary(kind))

    return [field.name for field in schema if holds_classes(field.type)]


def _hugging_face_classes(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names that Hugging Face's ``datasets`` writes into the schema's metadata."""
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][label]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):  # absent, or of another make
        return None
    said = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if said and names else None
