"""Parquet files with an image column and a label column, as Hugging Face lays them out.

An image is a struct of ``bytes`` and ``path``, or binary, or the path of a file relative to the
parquet file. In a folder, files named train... and test... are those parts. (The cache notices
changes of parquet files, not of image files that they point to.)
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calibre.data.formats import EncodedImage, Part, Raw, number_classes
from calibre.errors import UserError

PART = re.compile(r"(train|test)(?![a-z])")
IMAGE_NAMES = ("image", "img", "path", "file", "file_name")  # of columns that hold paths
LABEL_NAMES = ("label", "labels", "fine_label", "class", "target")


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
    image = _choose(files[0], "image", image_column, _image_columns(schema), schema.names)
    client = client_column and _choose(files[0], "client", client_column, [], schema.names)
    taken = {image, client}
    label = _choose(files[0], "label", label_column, _label_columns(schema, taken), schema.names)
    classes = classes or _hugging_face_classes(schema, label)

    columns = [name for name in (image, label, client) if name]
    train, test = (
        [row for file in part for row in _rows(file, columns)] for part in _parts(place, files)
    )
    if not train:
        raise UserError(f"{place} holds no training images")
    values = [[row[1] for row in part] for part in (train, test)]
    classes, labels = number_classes(place, *values, classes=classes)
    parts = [
        Part(
            [row[0] for row in part],
            part_labels,
            [str(row[2]) for row in part] if client else None,
        )
        for part, part_labels in zip((train, test), labels, strict=True)
    ]
    return Raw(classes, parts[0], parts[1] if test else None)


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


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    try:
        table = _open(path).read(columns=list(columns))
        values = [table.column(name).to_pylist() for name in columns]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise UserError(f"{path}: columns {', '.join(columns)} cannot be read: {error}") from error
    for number, row in enumerate(zip(*values, strict=True)):
        for name, value in zip(columns, row, strict=True):
            if value is None:
                raise UserError(f"{path}: row {number} has nothing in column '{name}'")
        yield _encoded(path, number, row[0]), *row[1:]


def _encoded(path: Path, number: int, image: Any) -> EncodedImage:
    content = image
    if isinstance(image, dict):
        content = image["bytes"] or image.get("path")
    if content is None:
        raise UserError(f"{path}: row {number} has neither image bytes nor a path")
    return EncodedImage(
        f"{path} row {number}", path.parent / content if isinstance(content, str) else content
    )


def _open(path: Path) -> Any:
    import pyarrow as pa  # imported late: it takes half a second
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a parquet file: {error}") from error


def _choose(path: Path, what: str, wanted: str | None, likely: list[str], names: list[str]) -> str:
    if wanted is not None and wanted not in names:
        raise UserError(
            f"data.{what}_column = '{wanted}': {path} has no such column, only {', '.join(names)}"
        )
    if wanted is None and len(likely) != 1:
        raise UserError(
            f"{path}: which column holds the {what}? Set data.{what}_column to one of "
            f"{', '.join(likely or names)}"
        )
    return wanted or likely[0]


def _image_columns(schema: Any) -> list[str]:
    import pyarrow as pa

    def holds_bytes(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    found = [field.name for field in schema if holds_bytes(field.type)]
    return found or [name for name in IMAGE_NAMES if name in schema.names][:1]


def _label_columns(schema: Any, taken: set[str | None]) -> list[str]:
    import pyarrow as pa

    def holds_classes(kind: Any) -> bool:
        types = pa.types
        return bool(types.is_integer(kind) or types.is_string(kind) or types.is_dictionary(kind))

    usual = [name for name in LABEL_NAMES if name in schema.names and name not in taken]
    found = [f.name for f in schema if holds_classes(f.type) and f.name not in taken]
    return usual[:1] or found


def _hugging_face_classes(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names that Hugging Face's ``datasets`` writes into the schema's metadata."""
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = about.get("info", {}).get("features", {}).get(label, {}).get("names")
    return tuple(names) if names else None
