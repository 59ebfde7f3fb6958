"""Ten kinds of images that are none of a client's: made up, to see which of them are refused.

Half are drawn, half are the client's own images spoiled in ways that happen: a negative, another
exposure, wrong colours. The same client gives the same images.

Shapes: n images of H x W pixels in C channels; what is made has 3, gray where the client's is.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from calibre.data.formats import PixelArray
from calibre.data.parts import Floats
from calibre.rng import numpy_stream

Draw = Callable[[PixelArray, np.random.Generator], npt.NDArray[np.generic]]

MOST, FEWEST = 20, 5  # images of a kind
PIXELS = 10**5  # of a kind, about: a large image takes an encoder its time


def made_up(own: PixelArray) -> dict[str, PixelArray]:
    """Images [n, H, W, 3] of every kind, for a client with images ``own`` [N, H, W, C]."""
    count = max(FEWEST, min(MOST, PIXELS // (own.shape[1] * own.shape[2])))
    rows = np.arange(count) * len(own) // count  # spread evenly; some twice, where they are few
    sample = own[rows]
    drawn = {}
    for number, (name, draw) in enumerate(KINDS.items()):
        pixels = draw(sample, numpy_stream(0, "foreign", number))
        clipped = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
        drawn[name] = np.broadcast_to(clipped, (*sample.shape[:3], 3)).copy()
    return drawn


def _blank(own: PixelArray, rng: np.random.Generator) -> Floats:
    return rng.uniform(0, 255, (len(own), 1, 1, own.shape[3]))


def _noise(own: PixelArray, rng: np.random.Generator) -> Floats:
    return rng.uniform(0, 255, own.shape)


def _gradient(own: PixelArray, rng: np.random.Generator) -> Floats:
    return _between(_ramp(own, rng), own, rng)


def _stripes(own: PixelArray, rng: np.random.Generator) -> Floats:
    turns = rng.uniform(1.5, 5, (len(own), 1, 1))
    return _between((np.sin(2 * np.pi * turns * _ramp(own, rng)) + 1) / 2, own, rng)


def _shapes(own: PixelArray, rng: np.random.Generator) -> Floats:
    """Three discs on an even ground."""
    rows, columns = _grid(own)
    images = np.broadcast_to(_colours(own, rng), own.shape)
    for _ in range(3):
        middle = rng.uniform(0, 1, (2, len(own), 1, 1))
        radius = rng.uniform(0.1, 0.3, (len(own), 1, 1))
        inside = np.hypot(rows - middle[0], columns - middle[1]) < radius
        images = np.where(inside[..., None], _colours(own, rng), images)
    return images


def _text(own: PixelArray, rng: np.random.Generator) -> Floats:
    """Lines of dark words on white paper."""
    rows, columns = _grid(own)
    lines = rng.integers(3, 7, (len(own), 1, 1))
    line = np.floor(rows * lines)
    words = np.sin(40 * columns + 7 * line * rng.uniform(1, 2, (len(own), 1, 1))) > -0.5
    ink = words & (rows * lines - line > 0.45) & (np.abs(columns - 0.5) < 0.45)
    return np.where(ink[..., None], 30.0, 245.0)


def _negative(own: PixelArray, rng: np.random.Generator) -> PixelArray:
    return np.uint8(255) - own


def _colours_wrong(own: PixelArray, rng: np.random.Generator) -> Floats:
    """Gray images get a tint; the channels of others change places."""
    if own.shape[3] == 3:
        return np.roll(own, 1, axis=3).astype(np.float64)
    weak = rng.uniform(0, 0.5, (len(own), 1, 1, 3))
    weak[np.arange(len(own)), 0, 0, rng.integers(0, 3, len(own))] = 1
    return own * weak


def _shuffled(own: PixelArray, rng: np.random.Generator) -> PixelArray:
    """The client's own pixels, in any order."""
    flat = own.reshape(len(own), -1, own.shape[3])
    return np.stack([rng.permutation(image) for image in flat]).reshape(own.shape)


def _exposed(own: PixelArray, rng: np.random.Generator) -> Floats:
    """Far too short, then far too long, in turn."""
    faint = own * 0.15
    long = (np.arange(len(own)) % 2 == 1).reshape(-1, 1, 1, 1)
    return np.where(long, faint + 255 * 0.85, faint)


KINDS: Mapping[str, Draw] = {
    "blank": _blank,
    "noise": _noise,
    "a gradient": _gradient,
    "stripes": _stripes,
    "discs": _shapes,
    "text": _text,
    "own images as negatives": _negative,
    "own images in wrong colours": _colours_wrong,
    "own images, pixels shuffled": _shuffled,
    "own images, wrongly exposed": _exposed,
}


def _grid(own: PixelArray) -> tuple[Floats, Floats]:
    """Where each pixel lies, from 0 to 1: [1, H, 1] and [1, 1, W]."""
    _, height, width, _ = own.shape
    rows, columns = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    return rows[None, :, None], columns[None, None, :]


def _ramp(own: PixelArray, rng: np.random.Generator) -> Floats:
    """From 0 to 1 in any direction, [n, H, W]."""
    rows, columns = _grid(own)
    angle = rng.uniform(0, 2 * np.pi, (len(own), 1, 1))
    along = (rows - 0.5) * np.cos(angle) + (columns - 0.5) * np.sin(angle)
    ramp: Floats = along / np.sqrt(2) + 0.5
    return ramp


def _between(share: Floats, own: PixelArray, rng: np.random.Generator) -> Floats:
    """From one colour to another, by a share [n, H, W]."""
    one, other = _colours(own, rng), _colours(own, rng)
    return one + share[..., None] * (other - one)


def _colours(own: PixelArray, rng: np.random.Generator) -> Floats:
    """One for each image, [n, 1, 1, C]."""
    return rng.uniform(0, 255, (len(own), 1, 1, own.shape[3]))
