"""Parquet files with an image column and a label column, as Hugging Face lays them out.

An image is a struct of ``bytes`` and ``path``, or binary, or the path of a file relative to the
parquet file. In a folder, files named train... and test... are those parts. (The cache notices
changes of parquet files, not of image files that they point to.)
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibre.data.formats import Raw
from calibre.data.formats.table import (
    IMAGE_NAMES,
    PARTS,
    Columns,
    Row,
    assemble,
    choose_columns,
    read_row,
)
from calibre.errors import UserError

PART = re.compile(r"(train|test)(?![a-z])")


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
    rows = (
        row
        for part, members in zip(PARTS, _parts(place, files), strict=True)
        for file in members
        for row in _rows(file, columns, part)
    )
    return assemble(place, rows, classes or _hugging_face_classes(schema, columns.label))


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


def _rows(path: Path, columns: Columns, part: str) -> Iterator[Row]:
    import pyarrow as pa

    names = columns.names
    try:
        table = _open(path).read(columns=names)
        values = [table.column(name).to_pylist() for name in names]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise UserError(f"{path}: columns {', '.join(names)} cannot be read: {error}") from error
    for number, row in enumerate(zip(*values, strict=True)):
        yield read_row(path, number, columns, row, part)


def _open(path: Path) -> Any:
    import pyarrow as pa  # imported late: it takes half a second
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a parquet file: {error}") from error


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
