"""One parquet file: opened within limits, a column of words or numbers, a column of images.

What a file says of its sizes is looked at before anything is unpacked. A column may also repeat one
value for many rows: words are read as the file stores them, each once, and images a few at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.data.formats import LONGEST_NAME
from calibre.errors import UserError

BATCH, BATCH_BYTES = 512, 2**22  # images, and about how many bytes of them, in memory at a time
MOST_BATCH_BYTES = 2**27  # whatever the file says
BUFFER = 2**20  # bytes read of a file at a time; without it, a row group: often the whole file
MOST_ROWS, MOST_TEXT = 2**26, 2**30  # of a file, and bytes of its words and numbers, unpacked
MOST_ITEMS = 20_000  # columns, row groups and the like
EXPANDS = {"UNCOMPRESSED": 1, "SNAPPY": 22, "LZ4": 255, "LZ4_RAW": 255, "GZIP": 1032}  # at most

Rows = npt.NDArray[np.intp]


def open_file(path: Path, dictionaries: tuple[str, ...] = ()) -> Any:
    """pyarrow's ParquetFile; the columns in ``dictionaries`` come with each value stored once."""
    import pyarrow.parquet as pq  # imported late: it takes half a second

    try:
        file = pq.ParquetFile(
            path, buffer_size=BUFFER, pre_buffer=False, read_dictionary=[*dictionaries] or None,
            thrift_container_size_limit=MOST_ITEMS,
        )  # fmt: skip
        names = file.schema_arrow.names
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    except Exception as error:  # damage shows in any layer of the format
        raise UserError(f"{path} cannot be read as a parquet file: {error}") from error
    if min(rows, default=0) < 0 or sum(rows) > MOST_ROWS:
        raise UserError(f"{path} says that it has {sum(rows):,} rows; {MOST_ROWS:,} is the limit")
    if len(set(names)) != len(names):
        raise UserError(f"{path}: two columns have the same name")
    return file


def values_of(path: Path, columns: list[str]) -> list[list[Any]]:
    """All rows of columns that hold whole numbers or words; None where there is nothing."""
    schema = open_file(path).schema_arrow
    with reading(path, *columns):
        words = tuple(name for name in columns if _holds_words(path, name, schema.field(name).type))
    file = open_file(path, words)
    for name in columns:
        _check_size(path, file, name)
    found: list[list[Any]] = [[] for _ in columns]
    with reading(path, *columns):
        for batch in file.iter_batches(2**16, columns=columns):
            for values, column in zip(found, batch.columns, strict=True):
                values += _plain(column)
    if {len(values) for values in found} != {file.metadata.num_rows}:
        raise UserError(f"{path} does not have as many rows as it says; write it again")
    return found


def images_of(path: Path, column: str, rows: Rows) -> Iterator[tuple[int, Any]]:
    """Each of ``rows``, which ascend, and what it holds; row groups without any are not read."""
    file = open_file(path)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    ends = accumulate((group.num_rows for group in groups), initial=0)
    for number, (start, end) in enumerate(pairwise(ends)):
        wanted = between(rows, start, end)
        if not len(wanted):
            continue
        first = 0
        size = _batch_size(groups[number], column)
        with reading(path, column):
            for batch in file.iter_batches(size, row_groups=[number], columns=[column]):
                values = batch.column(0)
                for row in between(wanted, first, first + len(batch)).tolist():
                    yield start + first + row, values[row].as_py()
                first += len(batch)
                if first > wanted[-1]:
                    break
        if first <= wanted[-1]:
            raise UserError(f"{path} does not have as many rows as it says; write it again")


def between(rows: Rows, start: int, end: int) -> Rows:
    """Those from ``start`` to before ``end``, counted from there; ``rows`` ascend."""
    first, last = np.searchsorted(rows, (start, end))
    return rows[first:last] - start


@contextmanager
def reading(path: Path, *columns: str) -> Iterator[None]:
    """What goes wrong inside is told of these columns."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of pyarrow, or bytes that are no text
        raise UserError(f"{path}: columns {', '.join(columns)} cannot be read: {error}") from error


def _holds_words(path: Path, name: str, kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    if not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        or types.is_null(kind)
    ):  # fmt: skip
        raise UserError(f"{path}: column '{name}' holds {kind}: it must be whole numbers or words")
    return False


def _plain(column: Any) -> list[Any]:
    """The values of a column, as Python's own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        values: list[Any] = column.to_pylist()
        return values
    words = column.dictionary
    if pa.types.is_string(words.type) or pa.types.is_large_string(words.type):
        longest = pc.max(pc.binary_length(words)).as_py() or 0
        if longest > 4 * LONGEST_NAME:  # bytes of a character
            raise ValueError(f"a value has {longest:,} bytes")
    named = words.to_pylist()
    return [None if place is None else named[place] for place in column.indices.to_pylist()]


def _check_size(path: Path, file: Any, name: str) -> None:
    size = sum(
        chunk.total_uncompressed_size
        for i in range(file.num_row_groups)
        for chunk in _chunks(file.metadata.row_group(i), name)
    )
    if size > MOST_TEXT:
        raise UserError(f"{path}: column '{name}' unpacks to {size / 1e9:,.1f} GB")


def _batch_size(group: Any, column: str) -> int:
    """How many images to read at a time."""
    each = group.total_byte_size / group.num_rows  # bytes of a row, if the file is honest
    size = min(BATCH, int(BATCH_BYTES / max(each, 1)))
    for chunk in _chunks(group, column):
        if chunk.has_dictionary_page:  # every row may be the largest of its values
            stored = max(1, chunk.data_page_offset - (chunk.dictionary_page_offset or 0))
            largest = stored * EXPANDS.get(chunk.compression, 2**20)
            largest = max(1, min(largest, chunk.total_uncompressed_size))
            size = min(size, MOST_BATCH_BYTES // largest)
    return max(1, size)


def _chunks(group: Any, column: str) -> Iterator[Any]:
    """Of a column, and of what is in it."""
    for i in range(group.num_columns):
        chunk = group.column(i)
        if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}."):
            yield chunk
