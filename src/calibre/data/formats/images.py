"""From compressed images to arrays: decoding, turning upright, gray or colour, resizing."""

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from PIL import ExifTags, Image, ImageOps

from calibre.data.formats import EncodedImage, Pixels
from calibre.errors import UserError

BLOCK = 512  # images held in memory at a time
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Decoding releases Python's lock, but below this size handing the lock over costs more than it
# gains: two threads took half as long again as one for 32x32 JPEGs of 2 kB.
WORTH_A_THREAD = 8192  # bytes of an average compressed image


def survey(images: Sequence[EncodedImage], size: int | None) -> tuple[int, int, int]:
    """Height, width and channels that all images will have, from their headers alone.

    A look at every header first means that a stray size is reported before minutes of decoding.
    """
    colour = False
    shape = None  # of the images so far, before resizing
    for image in images:
        with _opened(image) as picture:
            colour = colour or not _is_gray(picture)
            turned = "exif" in picture.info and _orientation(picture) in SIDEWAYS
            here = picture.size if turned else picture.size[::-1]
        shape = shape or here
        if size is None and here != shape:
            raise _unlike(images[0], shape, image, here)
    assert shape is not None, "a reader returns at least one image"
    height, width = (size, size) if size else shape
    return height, width, 3 if colour else 1


def decode(images: Sequence[EncodedImage], shape: tuple[int, int, int]) -> Iterator[Pixels]:
    """Blocks of decoded images, in order; ``shape`` is what :func:`survey` found."""

    def pixels(image: EncodedImage) -> Pixels:
        with _opened(image) as picture:
            return _upright(picture, shape)

    sizes = [
        len(image.content) if isinstance(image.content, bytes) else image.content.stat().st_size
        for image in images[:BLOCK]
    ]
    threads = (os.cpu_count() or 1) if np.mean(sizes) >= WORTH_A_THREAD else 1
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(images), BLOCK):
            block = images[start : start + BLOCK]
            yield np.stack(list(map(pixels, block) if threads == 1 else pool.map(pixels, block)))


def resize(images: Pixels, size: int | None) -> Iterator[Pixels]:
    """Blocks of an array of images, each ``size`` x ``size``."""
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK]
        if size is None or block.shape[1:3] == (size, size):
            yield np.ascontiguousarray(block)
        else:
            yield np.stack([_resized(image, size) for image in block])


def _resized(image: Pixels, size: int) -> Pixels:
    channels = image.shape[-1]
    picture = Image.fromarray(image[..., 0] if channels == 1 else np.ascontiguousarray(image))
    return _array(picture.resize((size, size), Image.Resampling.BILINEAR), channels)


def _upright(picture: Image.Image, shape: tuple[int, int, int]) -> Pixels:
    height, width, channels = shape
    if picture.size != (width, height):
        # a JPEG can be decoded at a fraction of its size: most of the time that photographs take
        picture.draft(None, (2 * width, 2 * height))
    if "exif" in picture.info:
        ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode.startswith("I"):  # 16 bits a pixel: Pillow would clip, we keep the upper 8
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return _array(picture, channels)


def _array(picture: Image.Image, channels: int) -> Pixels:
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _is_gray(picture: Image.Image) -> bool:
    return picture.mode in ("1", "L", "LA", "La") or picture.mode.startswith("I")


def _orientation(picture: Image.Image) -> int | None:
    orientation: int | None = picture.getexif().get(ExifTags.Base.Orientation)
    return orientation


@contextmanager
def _opened(image: EncodedImage) -> Iterator[Image.Image]:
    content = image.content
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as picture:
            if picture.mode == "F":
                raise ValueError("its pixels are floating-point numbers; save it with 8 bits")
            yield picture
    except Exception as error:  # every one of Pillow's decoders fails in a way of its own
        raise UserError(
            f"{image.name} cannot be decoded: {error}; repair the file or take it away"
        ) from error


def _unlike(
    one: EncodedImage, shape: tuple[int, int], other: EncodedImage, unlike: tuple[int, int]
) -> UserError:
    return UserError(
        f"images differ in size: {one.name} is {shape[1]}x{shape[0]}, {other.name} is "
        f"{unlike[1]}x{unlike[0]}; bring all to one size with e.g. --set data.size=32"
    )
