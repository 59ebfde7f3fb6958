"""Many images: what they say of themselves, their pixels in one array, arrays resized."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from calibre.data.formats import EncodedImage, PixelArray, Shape, UnreadableError
from calibre.data.formats.opening import opened
from calibre.data.formats.rendering import as_array
from calibre.errors import UserError

LARGEST = 64  # pixels that we choose, where sizes differ: what a CPU trains in minutes
PRINT = "V16"  # a hash of an image's pixels


@dataclass(frozen=True)
class Survey:
    """What images say of themselves before they are decoded."""

    sizes: Counter[tuple[int, int]]  # height, width
    colour: bool

    @property
    def alike(self) -> bool:
        return len(self.sizes) == 1

    def shape(self, size: int | None = None) -> Shape:
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
class DecodedBlock:
    """Decoded images, and what is to be told of them."""

    pixels: PixelArray  # [n, H, W, C]; black where an image cannot be read
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
                    sizes[picture.size] += 1
                    colour = colour or not picture.gray
            except UnreadableError as error:
                problem = problem or f"{image.name} {error}"
    if not sizes:
        raise UserError(f"none of the {count:,} images can be read: {problem}")
    return Survey(sizes, colour)


def decode_block(images: Sequence[EncodedImage], shape: Shape) -> DecodedBlock:
    """All of ``images`` in one array; ``shape`` is height, width and channels."""
    pixels = np.zeros((len(images), *shape), np.uint8)
    problems: dict[int, str] = {}
    changes: Counter[str] = Counter()
    with _own_words():
        for place, image in enumerate(images):
            try:
                with opened(image) as picture:
                    pixels[place], changed = picture.pixels(shape)
                changes.update(changed)
            except UnreadableError as error:
                problems[place] = str(error)
    return DecodedBlock(pixels, prints(pixels), problems, changes)


def prints(pixels: PixelArray) -> npt.NDArray[np.void]:
    """A hash of each image's pixels, [n]."""
    hashes = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in pixels]
    return np.frombuffer(b"".join(hashes), PRINT)


def resize(images: PixelArray, size: int | None, block: int) -> Iterator[PixelArray]:
    """Blocks of an array of images, each ``size`` x ``size``."""
    for start in range(0, len(images), block):
        part = images[start : start + block]
        if size is None or part.shape[1:3] == (size, size):
            yield np.ascontiguousarray(part)
        else:
            yield np.stack([_resized(image, size) for image in part])


def _resized(image: PixelArray, size: int) -> PixelArray:
    channels = image.shape[-1]
    picture = Image.fromarray(image[..., 0] if channels == 1 else np.ascontiguousarray(image))
    return as_array(picture.resize((size, size), Image.Resampling.BILINEAR), channels)


@contextmanager
def _own_words() -> Iterator[None]:
    """Pillow warns of damaged metadata and of many pixels; we tell what matters ourselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
