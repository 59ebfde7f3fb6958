"""Whatever a person has an image in, as bytes or a file that the import's decoder reads."""

import io
import os
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from PIL import Image

from calibre.data.formats import EncodedImage
from calibre.errors import UserError

Array = np.ndarray[Any, np.dtype[np.uint8 | np.uint16]]
AnyImage = str | Path | bytes | Image.Image | Array


CHANNELS = (1, 3, 4)


def is_one(images: object) -> TypeGuard[AnyImage]:
    """Whether it is one image and not several, as arrays [N, H, W] and [N, H, W, C] are."""
    if isinstance(images, np.ndarray):
        return images.ndim < 3 or (images.ndim == 3 and images.shape[2] in CHANNELS)
    return isinstance(images, str | Path | bytes | Image.Image)


def as_encoded(picture: AnyImage, number: int) -> EncodedImage:
    """A file stays where it is; pixels are wrapped without loss, so that all go one way."""
    if isinstance(picture, str | Path):
        return EncodedImage(os.fspath(picture), os.fspath(picture))
    name = f"image {number}"
    if isinstance(picture, bytes):
        return EncodedImage(name, picture)
    if isinstance(picture, np.ndarray):
        picture = _from_array(picture, name)
    if not isinstance(picture, Image.Image):
        raise UserError(
            f"{name} is a {type(picture).__name__}: give a file, bytes, a Pillow image or an array"
        )
    wrapped = io.BytesIO()
    try:
        picture.save(wrapped, "TIFF")  # of all lossless formats, the one that knows most modes
    except Exception as error:  # of what is read only now, or of a mode that no file has
        raise UserError(
            f"{name} is a Pillow image of mode {picture.mode} that cannot be used: {error}; "
            "convert it to L or RGB"
        ) from None
    return EncodedImage(name, wrapped.getvalue())


def _from_array(pixels: Array, name: str) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    deep = pixels.dtype == np.uint16 and pixels.ndim == 2  # as a scanner gives them
    if not (pixels.dtype == np.uint8 or deep) or pixels.ndim not in (2, 3) or pixels.size == 0:
        raise UserError(
            f"{name} is an array of {pixels.dtype} {list(pixels.shape)}: give uint8 values, "
            "[height, width] or [height, width, channels]; or uint16, [height, width]"
        )
    if pixels.ndim == 3 and pixels.shape[2] not in CHANNELS:
        raise UserError(f"{name} has {pixels.shape[2]} channels: give 1, 3 or 4")
    return Image.fromarray(np.ascontiguousarray(pixels))
