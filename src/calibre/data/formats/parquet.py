"""Parquet files with an image column and a label column, as Hugging Face lays them out.

An image is a struct of ``bytes`` and ``path``, or binary, or the path of a file relative to the
parquet file. In a folder, files named train... and test... are those parts. (The cache notices
changes of parquet files, not of image files that they point to.)

Labels and owners are read at once; images stay in their file until somebody comes to them.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.data.formats import EncodedImage, Raw
from calibre.data.formats.table import (
    IMAGE_NAMES,
    PARTS,
    Columns,
    Row,
    assemble,
    choose_columns,
    read_image,
    read_row,
)
from calibre.errors import UserError

PART = re.compile(r"(train|test)(?![a-z])")
BATCH, BATCH_BYTES = 512, 2**22  # images, and about how many bytes of them, in memory at a time
BUFFER = 2**20  # bytes read of a file at a time; without it, a row group: often the whole file

Rows = npt.NDArray[np.intp]


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
            if len(here := _between(self.rows, start, end)):
                yield from _images(path, self.column, here)


def parquet_files(place: Path) -> list[Path]:
    is_one = place.is_file() and place.suffix == ".parquet"
    return [place] if is_one else sorted(place.rglob("*.parquet"))


def read(
    place: Path,
    image_column: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    classes: tuple[str, ...] | None = None,
) -> Raw:
    """``classes`` names integer labels; without it the file's own names or values do."""
    files = parquet_files(place)
    schema = _open(files[0]).schema_arrow
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


def _parts(place: Path, files: list[Path]) -> tuple[list[Path], list[Path]]:
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


def _rows(path: Path, columns: Columns, part: str) -> list[Row]:
    names = columns.about
    with _reading(path, *names):
        table = _open(path).read(columns=names)
        values = [table.column(name).to_pylist() for name in names]
    return [
        read_row(path, number, columns, dict(zip(names, row, strict=True)), part)
        for number, row in enumerate(zip(*values, strict=True))
    ]


def _images(path: Path, column: str, rows: Rows) -> Iterator[EncodedImage]:
    """The images in ``rows`` of one file; row groups without any are not read."""
    file = _open(path)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    ends = accumulate((group.num_rows for group in groups), initial=0)
    for number, (start, end) in enumerate(pairwise(ends)):
        wanted = _between(rows, start, end)
        if not len(wanted):
            continue
        each = groups[number].total_byte_size / (end - start)  # bytes of a row
        size = max(1, min(BATCH, int(BATCH_BYTES / max(each, 1))))
        first = 0
        with _reading(path, column):
            for batch in file.iter_batches(size, row_groups=[number], columns=[column]):
                values = batch.column(0)
                for row in _between(wanted, first, first + len(batch)).tolist():
                    yield read_image(path, start + first + row, column, values[row].as_py())
                first += len(batch)
                if first > wanted[-1]:
                    break


def _between(rows: Rows, start: int, end: int) -> Rows:
    """Those from ``start`` to before ``end``, counted from there; ``rows`` ascend."""
    first, last = np.searchsorted(rows, (start, end))
    return rows[first:last] - start


def _open(path: Path) -> Any:
    import pyarrow as pa  # imported late: it takes half a second
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a parquet file: {error}") from error


@contextmanager
def _reading(path: Path, *columns: str) -> Iterator[None]:
    """What goes wrong inside is told of these columns."""
    import pyarrow as pa

    try:
        yield
    except (OSError, KeyError, pa.ArrowException) as error:
        raise UserError(f"{path}: columns {', '.join(columns)} cannot be read: {error}") from error


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
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = about.get("info", {}).get("features", {}).get(label, {}).get("names")
    return tuple(names) if names else None
