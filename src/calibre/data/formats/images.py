"""From compressed images to arrays: decoding, turning upright, gray or colour, resizing."""

import hashlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from calibre.data.formats import EncodedImage, Pixels
from calibre.errors import UserError

MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 2**26  # a file of a few bytes can claim to hold any number
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
LARGEST = 64  # pixels that we choose, where sizes differ: what a CPU trains in minutes
PRINT = "V16"  # a hash of an image's pixels

# What had to be done to an image; a datasheet counts these.
TURNED, FLATTENED, DEEP, DIM = "turned upright", "laid on white", "16 bits", "16 bits, all dim"
CMYK, MADE_GRAY, RESIZED = "from CMYK", "made gray", "resized"


@dataclass(frozen=True)
class Survey:
    """What images say of themselves before they are decoded."""

    sizes: Counter[tuple[int, int]]  # height, width
    colour: bool

    @property
    def alike(self) -> bool:
        return len(self.sizes) == 1

    def shape(self, size: int | None = None) -> tuple[int, int, int]:
        """Height, width and channels that all images will have."""
        height, width = next(iter(self.sizes))
        if size or not self.alike:
            height = width = size or self.common_size()
        return height, width, 3 if self.colour else 1

    def common_size(self) -> int:
        """The side of a square that suits most: the median shorter side, but of 64 at most."""
        sides = np.sort([min(size) for size in self.sizes.elements()])
        side = min(int(sides[len(sides) // 2]), LARGEST)
        return side // 8 * 8 if side >= 16 else side

    def words(self) -> str:
        """``28 x 28``, or ``from 31 x 40 to 640 x 480``, width first."""
        smallest, *others = sorted(self.sizes, key=lambda size: (size[0] * size[1], size))
        ends = [f"{width} x {height}" for height, width in (smallest, *others[-1:])]
        return ends[0] if len(ends) == 1 else f"from {ends[0]} to {ends[1]}"


@dataclass(frozen=True)
class Block:
    """Decoded images, and what is to be told of them."""

    pixels: Pixels  # [n, H, W, C]; black where an image cannot be read
    prints: npt.NDArray[np.void]  # [n]: equal for equal pixels
    problems: dict[int, str] = field(default_factory=dict)  # why it cannot be read, by place
    changes: Counter[str] = field(default_factory=Counter)


def survey(images: Iterable[EncodedImage], count: int) -> Survey:
    """From the headers of some of ``count`` images; unreadable ones do not count."""
    sizes: Counter[tuple[int, int]] = Counter()
    colour = False
    problem = ""
    with _own_words():
        for image in images:
            try:
                with opened(image) as picture:
                    turned = "exif" in picture.info and _orientation(picture) in SIDEWAYS
                    sizes[picture.size if turned else picture.size[::-1]] += 1
                    colour = colour or not _is_gray(picture)
            except UnreadableError as error:
                problem = problem or f"{image.name} {error}"
    if not sizes:
        raise UserError(f"none of the {count:,} images can be read: {problem}")
    return Survey(sizes, colour)


def decode_block(images: Sequence[EncodedImage], shape: tuple[int, int, int]) -> Block:
    """All of ``images`` in one array; ``shape`` is height, width and channels."""
    pixels = np.zeros((len(images), *shape), np.uint8)
    problems: dict[int, str] = {}
    changes: Counter[str] = Counter()
    with _own_words():
        for place, image in enumerate(images):
            try:
                with opened(image) as picture:
                    pixels[place], changed = _upright(picture, shape)
                changes.update(changed)
            except UnreadableError as error:
                problems[place] = str(error)
    return Block(pixels, prints(pixels), problems, changes)


def prints(pixels: Pixels) -> npt.NDArray[np.void]:
    """A hash of each image's pixels, [n]."""
    hashes = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in pixels]
    return np.frombuffer(b"".join(hashes), PRINT)


def resize(images: Pixels, size: int | None, block: int) -> Iterator[Pixels]:
    """Blocks of an array of images, each ``size`` x ``size``."""
    for start in range(0, len(images), block):
        part = images[start : start + block]
        if size is None or part.shape[1:3] == (size, size):
            yield np.ascontiguousarray(part)
        else:
            yield np.stack([_resized(image, size) for image in part])


def _resized(image: Pixels, size: int) -> Pixels:
    channels = image.shape[-1]
    picture = Image.fromarray(image[..., 0] if channels == 1 else np.ascontiguousarray(image))
    return _array(picture.resize((size, size), Image.Resampling.BILINEAR), channels)


def _upright(picture: Image.Image, shape: tuple[int, int, int]) -> tuple[Pixels, list[str]]:
    """The pixels of an image as they shall be, and what had to be done for that."""
    height, width, channels = shape
    changed = []
    if picture.size != (width, height):
        # a JPEG can be decoded at a fraction of its size: most of the time that photographs take
        picture.draft(None, (2 * width, 2 * height))
    if "exif" in picture.info and _orientation(picture) not in (None, 1):
        ImageOps.exif_transpose(picture, in_place=True)
        changed.append(TURNED)
    if picture.mode.startswith("I"):
        picture, word = _eight_bits(picture)
        changed.append(word)
    elif picture.has_transparency_data:
        clear = picture.convert("RGBA")
        if clear.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", clear.size, "white")
            picture = Image.alpha_composite(white, clear)  # as a browser shows it
            changed.append(FLATTENED)
    elif picture.mode == "CMYK":
        changed.append(CMYK)
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        if channels == 1 and not _is_gray(picture) and not changed:
            changed.append(MADE_GRAY)
        picture = picture.convert(mode)
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        changed.append(RESIZED)
    return _array(picture, channels), changed


def _eight_bits(picture: Image.Image) -> tuple[Image.Image, str]:
    """Pillow would clip 16 bits a pixel to 255; we keep the upper eight."""
    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have 32 bits; save it with 8 or 16")
    word = DEEP if values.max() >= 4096 else DIM
    return Image.fromarray((values >> 8).astype(np.uint8)), word


def _array(picture: Image.Image, channels: int) -> Pixels:
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _is_gray(picture: Image.Image) -> bool:
    return picture.mode in ("1", "L", "LA", "La") or picture.mode.startswith("I")


def _orientation(picture: Image.Image) -> int | None:
    orientation: int | None = picture.getexif().get(ExifTags.Base.Orientation)
    return orientation


class UnreadableError(Exception):
    """Why an image cannot be read, to be said after its name."""


@contextmanager
def _own_words() -> Iterator[None]:
    """Pillow warns of damaged metadata and of many pixels; we tell what matters ourselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def opened(image: EncodedImage) -> Iterator[Image.Image]:
    """An image of a kind and size that can be decoded."""
    content = image.content
    try:
        if isinstance(content, str) and not os.path.isfile(content):  # a pipe would never answer
            raise FileNotFoundError("there is no such file")
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as picture:
            wide, high = picture.size
            if wide * high > MOST_PIXELS:
                raise Image.DecompressionBombError
            if picture.mode == "F":
                raise ValueError("its pixels are floating-point numbers; save it with 8 bits")
            yield picture
    except Image.DecompressionBombError:
        raise UnreadableError(
            f"has more than {MOST_PIXELS / 1e6:.0f} million pixels; make it smaller"
        ) from None
    except UnidentifiedImageError:
        raise UnreadableError("is no image of a kind that is known; take it away") from None
    except Exception as error:  # every one of Pillow's decoders fails in a way of its own
        said = str(error).replace(str(content), "it") if isinstance(content, str) else str(error)
        raise UnreadableError(
            f"cannot be decoded: {said or type(error).__name__}; repair the file or take it away"
        ) from None
