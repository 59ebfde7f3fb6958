"""Arrays of your own in an ``.npz`` file.

Either ``images`` and ``labels`` (and ``clients``), or ``x_train``, ``y_train``, ``x_test``,
``y_test`` (and ``clients_train``, ``clients_test``); with either, ``classes`` may name the
classes in the order that integer labels count them, and ``unlabelled`` (and ``clients_unlabelled``)
may hold images that nobody labelled. Images are uint8, [N, H, W] or [N, H, W, C] with C = 1 or 3;
labels and clients are integers or strings, [N].
"""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.formats import Part, Pixels, Raw, number_classes
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError

ONE_PART = (("images", "labels", "clients"),)
TWO_PARTS = (("x_train", "y_train", "clients_train"), ("x_test", "y_test", "clients_test"))

UNKNOWN = ("unlabelled", "clients_unlabelled")


def read(path: Path) -> Raw:
    """What an ``.npz`` file holds."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as an .npz file of plain arrays: {error}"
        ) from error
    return from_arrays(path, arrays)


def from_arrays(path: Path | str, arrays: Mapping[str, Any]) -> Raw:
    """Arrays by the names above; ``path`` is what messages call them."""
    keys = TWO_PARTS if "x_train" in arrays else ONE_PART
    for key in [key for images, labels, _ in keys for key in (images, labels)]:
        if key not in arrays:
            raise UserError(
                f"{path} has no array '{key}', only {', '.join(sorted(arrays)) or 'nothing'}; it "
                "needs images and labels, or x_train, y_train, x_test and y_test"
            )
    names = tuple(map(str, arrays["classes"])) if "classes" in arrays else None
    values = (arrays[y].ravel().tolist() for _, y, _ in keys)
    classes, labels = number_classes(path, *values, classes=names)
    train, *test = (
        Part(_images(path, x, arrays[x]), part_labels, _owners(arrays, clients))
        for (x, _, clients), part_labels in zip(keys, labels, strict=True)
    )
    return Raw(classes, train, test[0] if test else None, _unlabelled(path, arrays))


def _unlabelled(path: Path | str, arrays: Mapping[str, Any]) -> Part | None:
    if UNKNOWN[0] not in arrays:
        return None
    images = _images(path, UNKNOWN[0], arrays[UNKNOWN[0]])
    nothing = np.full(len(images), UNLABELLED, np.int64)
    return Part(images, nothing, _owners(arrays, UNKNOWN[1]))


def _owners(arrays: Mapping[str, Any], key: str) -> list[str] | None:
    return [str(owner) for owner in arrays[key].ravel()] if key in arrays else None


def _images(path: Path | str, key: str, images: Any) -> Pixels:
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
    pixels: Pixels = images
    return pixels
