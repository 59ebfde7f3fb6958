"""Arrays of your own in an ``.npz`` file.

Either ``images`` and ``labels`` (and ``clients``), or ``x_train``, ``y_train``, ``x_test``,
``y_test`` (and ``clients_train``, ``clients_test``); with either, ``classes`` may name the
classes in the order that integer labels count them, and ``unlabelled`` (and ``clients_unlabelled``)
may hold images that nobody labelled. Images are uint8, [N, H, W] or [N, H, W, C] with C = 1 or 3;
labels and clients are integers or strings, [N].
"""

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from calibre.data.class_names import one_spelling
from calibre.data.formats import Part, PixelArray, Raw, number_classes
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError
from calibre.files import open_regular

ONE_PART = (("images", "labels", "clients"),)
TWO_PARTS = (("x_train", "y_train", "clients_train"), ("x_test", "y_test", "clients_test"))
UNKNOWN = ("unlabelled", "clients_unlabelled")
NAMES = {*UNKNOWN, "classes", *(name for keys in (*ONE_PART, *TWO_PARTS) for name in keys)}

MOST_BYTES = 2**33  # that arrays may take, and no more than half of the machine's memory
CHUNK = 2**24  # bytes that are unpacked at a time
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read(path: Path) -> Raw:
    """What an ``.npz`` file holds."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if name in NAMES}
            _check_room(path, sum(info.file_size for info in wanted.values()))
            arrays = dict.fromkeys(members)  # of the others, messages tell the names
            for name, info in wanted.items():
                with archive.open(info) as member:
                    arrays[name] = _array(member, info.file_size)
    except UserError:
        raise
    except Exception as error:  # damage shows in zip files, headers and compressed data
        said = str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays: {said}") from error
    return from_arrays(path, arrays)


def _check_room(path: Path, size: int) -> None:
    """A file of a megabyte can claim to unpack to a thousand."""
    most = MOST_BYTES
    if hasattr(os, "sysconf"):
        most = min(most, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    if size > most:
        raise UserError(
            f"{path} unpacks to {size / 1e9:,.1f} GB, which this machine cannot hold in memory "
            f"({most / 1e9:,.1f} GB); store the images in a folder or as parquet"
        )


def _array(member: IO[bytes], size: int) -> npt.NDArray[Any]:
    """A member of ``size`` bytes; memory is asked for once its header is seen to fit that."""
    version = np.lib.format.read_magic(member)
    if version not in HEADERS:
        raise ValueError(f"an array is of version {version}")
    shape, by_columns, dtype = HEADERS[version](member)
    if dtype.hasobject:
        raise ValueError("an array holds objects, which would have to be unpickled")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=1) < 0 or member.tell() + claimed != size:
        raise ValueError(f"an array says that it has {claimed:,} bytes, which is not so")
    content = np.empty(claimed, np.uint8)
    for start in range(0, claimed, CHUNK):
        part = member.read(min(CHUNK, claimed - start))
        content[start : start + len(part)] = np.frombuffer(part, np.uint8)
        if len(part) < min(CHUNK, claimed - start):
            raise ValueError("an array is cut short")
    order: Literal["F", "C"] = "F" if by_columns else "C"
    return np.ndarray(shape, dtype, content.data, order=order)


def from_arrays(path: Path | str, arrays: Mapping[str, Any]) -> Raw:
    """Arrays by the names above; ``path`` is what messages call them."""
    keys = TWO_PARTS if "x_train" in arrays else ONE_PART
    for key in [key for images, labels, _ in keys for key in (images, labels)]:
        if key not in arrays:
            found = ", ".join(sorted(map(str, arrays))[:20])
            raise UserError(
                f"{path} has no array '{key}', only {found or 'nothing'}; it "
                "needs images and labels, or x_train, y_train, x_test and y_test"
            )
    names = tuple(map(str, _values(path, arrays, "classes"))) if "classes" in arrays else None
    values = [_values(path, arrays, y) for _, y, _ in keys]
    classes, labels = number_classes(path, *values, classes=names)
    train, *test = (
        Part(_images(path, x, arrays[x]), part_labels, _owners(path, arrays, clients))
        for (x, _, clients), part_labels in zip(keys, labels, strict=True)
    )
    return Raw(classes, train, test[0] if test else None, _unlabelled(path, arrays))


def _unlabelled(path: Path | str, arrays: Mapping[str, Any]) -> Part | None:
    if UNKNOWN[0] not in arrays:
        return None
    images = _images(path, UNKNOWN[0], arrays[UNKNOWN[0]])
    nothing = np.full(len(images), UNLABELLED, np.int64)
    return Part(images, nothing, _owners(path, arrays, UNKNOWN[1]))


def _owners(path: Path | str, arrays: Mapping[str, Any], key: str) -> list[str] | None:
    if key not in arrays:
        return None
    return [one_spelling(str(owner)) for owner in _values(path, arrays, key)]


def _values(path: Path | str, arrays: Mapping[str, Any], key: str) -> list[Any]:
    """Whole numbers or names; numbers with a point but nothing behind it count as whole."""
    array = arrays[key].ravel()
    kind = array.dtype.kind
    if kind == "f" and np.isfinite(array).all() and (array == np.floor(array)).all():
        return [int(value) for value in array.tolist()]
    if kind == "S":
        try:
            return [value.decode() for value in array.tolist()]
        except UnicodeDecodeError:
            raise UserError(f"{path}: '{key}' holds text that is not UTF-8") from None
    if kind not in "iubU":
        raise UserError(
            f"{path}: '{key}' is {array.dtype}: give whole numbers or strings, one per image"
        )
    values: list[Any] = array.tolist()
    return values


def _images(path: Path | str, key: str, images: Any) -> PixelArray:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8:
        raise UserError(
            f"{path}: '{key}' is {images.dtype}, images are uint8 from 0 to 255; if yours go from "
            f"0 to 1, save ({key} * 255).round().astype('uint8')"
        )
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise UserError(
            f"{path}: '{key}' has shape {images.shape}, images are [N, H, W] or [N, H, W, C] with "
            f"1 or 3 channels; from [N, C, H, W] save {key}.transpose(0, 2, 3, 1)"
        )
    pixels: PixelArray = images
    return pixels
