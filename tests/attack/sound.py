"""A small sound source of every format, to be damaged: each writes it and says how it is called."""

import functools
import gzip
import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from calibre.data import labels_file
from calibre.data.formats.cifar import (
    BINARY_FILES_10,
    BINARY_FILES_100,
    PYTHON_FILES_10,
    PYTHON_FILES_100,
)
from calibre.sections import DataSettings

COUNT = 12  # one of them may be unreadable
KINDS = {
    "png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tif": "TIFF",
    "ppm": "PPM",
}  # fmt: skip


def shades(count: int = COUNT, side: int = 6, channels: int = 3) -> np.ndarray:
    """No two are the same."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, side, side, channels), dtype=np.uint8)


@functools.cache
def encoded(number: int, kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(shades()[number]).convert(mode)
    options = {"compression": "tiff_adobe_deflate"} if kind == "TIFF" and number % 2 else {}
    picture.save(file, kind, **options)
    return file.getvalue()


@functools.cache
def deep(number: int, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(16 * shades()[number, ..., 0].astype(np.uint16)).save(file, kind)
    return file.getvalue()


@functools.cache
def dicom(number: int) -> bytes:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = [ExplicitVRLittleEndian, ImplicitVRLittleEndian][number % 2]
    made.SOPClassUID, made.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", "1.2.3"
    made.PatientName = "Doe^Jane"
    made.Rows = made.Columns = 6
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 12, 11, 0
    made.WindowCenter, made.WindowWidth, made.RescaleSlope, made.RescaleIntercept = 900, 800, 1, 0
    made.PixelData = (16 * shades()[number, ..., 0].astype("<u2")).tobytes()
    file = io.BytesIO()
    made.save_as(file, enforce_file_format=True)
    return file.getvalue()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _images(folder: Path, suffix: str, content: Callable[[int], bytes]) -> DataSettings:
    for i in range(COUNT):
        put(folder / f"x/{'ab'[i % 2]}/{'cat' if i % 4 < 2 else 'dog'}/{i}.{suffix}", content(i))
    return DataSettings(source=str(folder / "x"))


def _of_kind(folder: Path, suffix: str, mode: str = "RGB") -> DataSettings:
    return _images(folder, suffix, lambda i: encoded(i, KINDS[suffix], mode))


def _labelled(folder: Path) -> DataSettings:
    """A flat folder with labels.csv."""
    for i in range(COUNT):
        put(folder / f"x/{i}.png", encoded(i, "PNG"))
    rows = [(f"{i}.png", "cat" if i % 2 else "dog", "2025-01-02T03:04:05Z") for i in range(10)]
    labels_file.write(folder / "x/labels.csv", rows)
    return DataSettings(source=str(folder / "x"))


def _csv(folder: Path) -> DataSettings:
    lines = ["path,label,client,split"]
    for i in range(COUNT):
        put(folder / f"{i}.png", encoded(i, "PNG"))
        lines.append(
            f"{i}.png,{'cat' if i % 2 else 'dog'},{'ab'[i % 2]},{'train' if i < 8 else 'test'}"
        )
    put(folder / "x.csv", "\n".join(lines).encode())
    return DataSettings(source=str(folder / "x.csv"))


def _npz(folder: Path, save: Callable[..., None]) -> DataSettings:
    images = shades()
    save(
        folder / "x.npz", x_train=images[:8], y_train=["cat", "dog"] * 4, x_test=images[8:],
        y_test=["cat", "dog"] * 2, clients_train=[0, 0, 1, 1] * 2, clients_test=[0, 1, 0, 1],
    )  # fmt: skip
    return DataSettings(source=str(folder / "x.npz"))


@functools.cache
def _parquet_bytes(layout: str) -> bytes:
    images = [encoded(i, "PNG") for i in range(COUNT)]
    columns = {
        "image": [{"bytes": image, "path": None} for image in images]
        if layout == "struct"
        else images,
        "label": [i % 2 for i in range(COUNT)],
        "client": ["ab"[i // 2 % 2] for i in range(COUNT)],
    }
    table = pa.table(columns)
    about = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    file = io.BytesIO()
    codec = {"struct": "snappy", "binary": "none", "gzip": "gzip", "zstd": "zstd"}[layout]
    pq.write_table(table, file, row_group_size=5, compression=codec)
    return file.getvalue()


def _parquet(folder: Path, layout: str) -> DataSettings:
    put(folder / "x.parquet", _parquet_bytes(layout))
    return DataSettings(source=str(folder / "x.parquet"))


def _parquet_folder(folder: Path) -> DataSettings:
    put(folder / "x/train-0.parquet", _parquet_bytes("struct"))
    put(folder / "x/test-0.parquet", _parquet_bytes("binary"))
    return DataSettings(source=str(folder / "x"))


def _idx(folder: Path, gz: bool) -> DataSettings:
    for part, count in (("train", 10), ("t10k", 6)):
        images = shades(count, 28, 1)
        labels = np.arange(count, dtype=np.uint8) % 10
        for name, array, axes in (("images", images[..., 0], 3), ("labels", labels, 1)):
            content = struct.pack(f">BBBB{axes}I", 0, 0, 8, axes, *array.shape) + array.tobytes()
            end = ".gz" if gz else ""
            content = gzip.compress(content) if gz else content
            put(folder / f"mnist/{part}-{name}-idx{axes}-ubyte{end}", content)
    return DataSettings(source="mnist")


def _cifar_binary(folder: Path, files: tuple[str, ...], labels: int, name: str) -> DataSettings:
    for i, file in enumerate(files):
        rows = shades(3, 32, 3).reshape(3, -1)
        content = b"".join(bytes([i % 10] * labels) + row.tobytes() for row in rows)
        put(folder / name / file, content)
    return DataSettings(source=name)


def _cifar_python(folder: Path, files: tuple[str, ...], key: bytes, name: str) -> DataSettings:
    for i, file in enumerate(files):
        rows = shades(3, 32, 3).reshape(3, -1)
        batch = {b"data": rows, key: [i % 10] * 3, b"filenames": ["a"] * 3}
        put(folder / name / file, pickle.dumps(batch, protocol=2))
    return DataSettings(source=name)


def _stl10(folder: Path) -> DataSettings:
    for part, count in (("train", 3), ("test", 2)):
        put(folder / f"stl10/{part}_X.bin", shades(count, 96, 3).tobytes())
        put(folder / f"stl10/{part}_y.bin", bytes(range(1, count + 1)))
    put(folder / "stl10/unlabeled_X.bin", shades(2, 96, 3).tobytes())
    put(folder / "stl10/class_names.txt", b"\n".join(b"%d" % i for i in range(10)))
    return DataSettings(source="stl10")


SOURCES: dict[str, Callable[[Path], DataSettings]] = {
    **{suffix: functools.partial(_of_kind, suffix=suffix) for suffix in KINDS},
    "gif palette": functools.partial(_of_kind, suffix="gif", mode="P"),
    "png palette": functools.partial(_of_kind, suffix="png", mode="P"),
    "png transparent": functools.partial(_of_kind, suffix="png", mode="LA"),
    "tif cmyk": functools.partial(_of_kind, suffix="tif", mode="CMYK"),
    "png deep": lambda folder: _images(folder, "png", lambda i: deep(i, "PNG")),
    "tif deep": lambda folder: _images(folder, "tif", lambda i: deep(i, "TIFF")),
    "dicom": lambda folder: _images(folder, "dcm", dicom),
    "labels.csv": _labelled,
    "csv": _csv,
    "npz": functools.partial(_npz, save=np.savez),
    "npz compressed": functools.partial(_npz, save=np.savez_compressed),
    **{
        f"parquet {layout}": functools.partial(_parquet, layout=layout)
        for layout in ("struct", "binary", "gzip", "zstd")
    },
    "parquet folder": _parquet_folder,
    "idx": functools.partial(_idx, gz=False),
    "idx gzip": functools.partial(_idx, gz=True),
    "cifar10": functools.partial(
        _cifar_binary, files=BINARY_FILES_10, labels=1, name="cifar10"
    ),
    "cifar100": functools.partial(
        _cifar_binary, files=BINARY_FILES_100, labels=2, name="cifar100"
    ),
    "cifar10 pickled": functools.partial(
        _cifar_python, files=PYTHON_FILES_10, key=b"labels", name="cifar10"
    ),
    "cifar100 pickled": functools.partial(
        _cifar_python, files=PYTHON_FILES_100, key=b"fine_labels", name="cifar100"
    ),
    "stl10": _stl10,
}  # fmt: skip
