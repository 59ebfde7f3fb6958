"""From an opened image to pixels of one size: upright, gray or colour, eight bits.

Large images go through in strips, each shrunk before the next one is touched, so that nothing but
the decoded image itself is ever whole in memory.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from PIL import ExifTags, Image

from calibre.data.formats import PixelArray, Shape, UnreadableError
from calibre.data.formats.turns import turn
from calibre.data.formats.window import STRIP, by_table, own_window

LARGE = 2**22  # pixels, from which on an image is shrunk by whole numbers before it is resized
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation
SIDEWAYS = (5, 6, 7, 8)  # those that swap width and height
DIM = 15  # of 255: no pixel of a colour image of 16 bits is brighter when it uses 12 of them

# What had to be done to an image; a datasheet counts these.
TURNED, FLATTENED, DEEP, CMYK = "turned upright", "laid on white", "more than 8 bits", "from CMYK"
DEEP_COLOUR, MADE_GRAY, RESIZED = "16 bits a colour", "made gray", "resized"
ANIMATED, PAGES = "animated", "several pages"

BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # of a pixel; or 4


@dataclass(frozen=True)
class Picture:
    """An image that Pillow opened."""

    image: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.image.size
        return (width, height) if self._orientation() in SIDEWAYS else (height, width)

    @property
    def gray(self) -> bool:
        mode = self.image.mode
        return mode in ("1", "L", "LA", "La") or mode.startswith("I")

    def pixels(self, shape: Shape) -> tuple[PixelArray, list[str]]:
        height, width, channels = shape
        image, changed = self.image, []
        orientation = self._orientation()
        target = (height, width) if orientation in SIDEWAYS else (width, height)
        if image.size != target:
            # a JPEG can be decoded at a fraction of its size: most of the time photographs take
            image.draft(None, (2 * target[0], 2 * target[1]))
        if getattr(image, "is_animated", False) and image.format != "MPO":  # a photograph's preview
            changed.append(PAGES if image.format == "TIFF" else ANIMATED)
        deep_colour = not self.gray and ";16" in str([tile.args for tile in _tiles(image)])
        if image.mode == "CMYK":
            changed.append(CMYK)
        if channels == 1 and not self.gray:
            changed.append(MADE_GRAY)
        with turn(_bytes_needed(image), image.width * image.height):
            image.load()
            if deep_colour:
                _check_bright(image)
                changed.append(DEEP_COLOUR)
            factor = _factor(image, target)
            plain, words = _plain(image, "L" if channels == 1 else "RGB", factor)
            if plain is not image:
                image.close()  # the next one in turn needs its memory
        changed += words
        if plain.size != target:
            # of the last row and column that shrinking left, a part may be image
            inside = (0, 0, image.width / factor, image.height / factor) if factor > 1 else None
            plain = plain.resize(target, Image.Resampling.BILINEAR, inside)
            changed.append(RESIZED)
        if orientation in UPRIGHT:
            plain = plain.transpose(UPRIGHT[orientation])
            changed.append(TURNED)
        return as_array(plain, channels), changed

    def _orientation(self) -> int:
        """As EXIF says; 1 where it says nothing, or nothing that makes sense."""
        said = None
        if "exif" in self.image.info:
            with suppress(Exception):  # damage in there costs no pixel
                said = self.image.getexif().get(ExifTags.Base.Orientation)
        return said if isinstance(said, int) and said in UPRIGHT else 1


def as_array(picture: Image.Image, channels: int) -> PixelArray:
    """[H, W, C]."""
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _bytes_needed(image: Image.Image) -> int:
    """About what decoding takes, from the header alone."""
    held = pixels = image.width * image.height
    if image.format == "WEBP":
        held = 4 * pixels
    if image.info.get("progressive"):
        scale = getattr(image, "decoderconfig", (1,))[0]  # a draft saves none of its coefficients
        held += pixels * scale**2
    if image.format == "TIFF":  # a tile, or rows, beside the image
        tags = getattr(image, "tag_v2", {})
        rows = min(int(tags.get(278, 2**32)), image.height)
        held += max(int(tags.get(322, 0)) * int(tags.get(323, 0)), rows * image.width)
    return held * BYTES.get(image.mode, 4)


def _tiles(image: Image.Image) -> list[Any]:
    return list(getattr(image, "tile", []))


def _check_bright(image: Image.Image) -> None:
    """Pillow keeps the upper eight bits of each colour; where only 12 are used, that is black."""
    if image.mode not in ("RGB", "RGBA"):
        return
    bands = zip(image.getbands(), cast(Any, image.getextrema()), strict=True)
    if max(high for band, (_, high) in bands if band != "A") <= DIM:
        raise UnreadableError(
            "has 16 bits in each colour and uses no more than the lower 12: it would come out "
            "black; save it with 8"
        )


def _factor(image: Image.Image, target: tuple[int, int]) -> int:
    """By how much to shrink an image at once: at least twice the target's size is left."""
    if image.width * image.height < LARGE:
        return 1
    return max(1, min(image.width // (2 * target[0]), image.height // (2 * target[1])))


def _plain(image: Image.Image, mode: str, factor: int) -> tuple[Image.Image, set[str]]:
    """All of a decoded image in this mode, ``factor`` times smaller; and what was done."""
    changed: set[str] = set()
    table = None
    if image.mode.startswith("I"):
        table = own_window(np.asarray(strip) for _, strip in _strips(image, factor))
        changed.add(DEEP)
    joined = None
    for top, strip in _strips(image, factor):
        if table is not None:
            strip = Image.fromarray(by_table(table, np.asarray(strip)))
        elif strip.has_transparency_data:
            strip, seen_through = _on_white(strip)
            changed |= seen_through
        if strip.mode != mode:
            strip = strip.convert(mode)
        if factor > 1:
            strip = strip.reduce(factor)
        if strip.size == image.size:
            return strip, changed
        if joined is None:
            joined = Image.new(mode, (strip.width, -(-image.height // factor)))
        joined.paste(strip, (0, top // factor))
    assert joined is not None, "an image has at least one row"
    return joined, changed


def _strips(image: Image.Image, factor: int) -> Iterator[tuple[int, Image.Image]]:
    """Rows of an image, and where they start: whole multiples of ``factor``."""
    if image.width * image.height <= STRIP:
        yield 0, image
        return
    rows = max(1, STRIP // (image.width * factor)) * factor
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(picture: Image.Image) -> tuple[Image.Image, set[str]]:
    """As a browser shows what is transparent."""
    clear = picture.convert("RGBA")
    if clear.getchannel("A").getextrema() == (255, 255):
        return picture, set()
    white = Image.new("RGBA", clear.size, "white")
    return Image.alpha_composite(white, clear), {FLATTENED}
