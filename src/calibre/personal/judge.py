"""Is this an image that the model can judge? Cheap checks of pixels, before any network.

A network answers whatever it is given. An image that is blank, a negative, in colour where it
learned from gray ones, of other colours, far darker, brighter, rougher or smoother than all it has
seen is better refused, with the reason. What is usual is learned from training images: the range of
eight measures, each widened by a part of its spread, so that few images of the same kind fall
outside.

Shapes: N images of H x W pixels in C channels. Everything is computed in values of [0, 1].
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calibre.data.formats import PixelArray
from calibre.settings import Settings

GRID = 8  # cells a side of the mean image: what lies where, and no more of anybody's image
RARE = 0.001  # share of training images that may lie outside at either end: there are odd ones
WIDEN = 7.0  # standard errors beyond those: 1.4 standard deviations for 24 images, 0.2 for 2,000
FEWEST, MOST = 8, 2000  # images that say what is usual; of more, some
BLOCK = 256  # images that are looked at together
GRAY = 0.02  # mean distance between channels that is not called colour: JPEG leaves some
FLAT = 1 / 255  # standard deviation at which there is nothing to be seen

Floats = npt.NDArray[np.float32]
LUMA: Floats = np.array([0.299, 0.587, 0.114], np.float32)
OF_PILLOW = np.array([19595, 38470, 7471], np.uint32)  # the same in 65536ths

Problems = tuple[str, ...]  # why an image is none that the model can judge; none were found: ()


class Range(Settings):
    """What is usual."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


ANY = Range(low=-1, high=1)  # of a tint: bundles made before there were any


class Statistics(Settings):
    """What training images look like."""

    images: int
    brightness: Range  # mean
    contrast: Range  # logarithm of the standard deviation: half is as far as twice
    asymmetry: Range  # skewness: positive for bright things on dark ground
    likeness: Range  # correlation with the mean image
    roughness: Range  # how far neighbours lie apart, in standard deviations
    colour: Range  # mean distance between the brightest and the darkest channel
    warmth: Range = ANY  # how far red is above blue, on average
    greenness: Range = ANY  # how far green is above both
    mean_image: tuple[float, ...]  # gray, GRID x GRID, by rows


def statistics(pixels: PixelArray) -> Statistics | None:
    """Of training images [N, H, W, C]; None: they are too few to say what is usual."""
    if len(pixels) < FEWEST:
        return None
    pixels = pixels[:: -(-len(pixels) // MOST)]
    gray, colour = _gray(pixels), _colour(pixels)
    mean_image = _cells(gray).mean(0)
    columns = _measures(gray, mean_image)
    ranges = {name: _usual(values) for name, values in {**columns, "colour": colour}.items()}
    ranges |= {name: _usual(values, GRAY) for name, values in _tints(pixels).items()}
    values = {"images": len(pixels), "mean_image": tuple(map(float, mean_image)), **ranges}
    return Statistics.model_validate(values)


def problems(images: PixelArray, usual: Statistics) -> list[Problems]:
    """What is wrong with each of images [N, H, W, C].

    Images in colour are given as such (C = 3), also to a model that was trained on gray ones.
    """
    found: list[Problems] = []
    for start in range(0, len(images), BLOCK):
        found += _problems(images[start : start + BLOCK], usual)
    return found


def _problems(images: PixelArray, usual: Statistics) -> list[Problems]:
    gray, mean_image = _gray(images), np.array(usual.mean_image, np.float32)
    colours = {"colour": _colour(images), **_tints(images)}
    found = _by_image({**_measures(gray, mean_image), **colours})
    negatives = _by_image(_measures(1 - gray, mean_image))
    return [tuple(_reasons(*both, usual)) for both in zip(found, negatives, strict=True)]


def as_trained(images: PixelArray, channels: int) -> PixelArray:
    """Images [N, H, W, 3] with the model's number of channels: gray as Pillow would make them."""
    if images.shape[-1] == channels:
        return images
    sums = images.astype(np.uint32) @ OF_PILLOW + 2**15
    gray: PixelArray = (sums >> 16).astype(np.uint8)[..., None]
    return gray


def _by_image(columns: dict[str, Floats]) -> Sequence[dict[str, float]]:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _reasons(found: dict[str, float], negative: dict[str, float], usual: Statistics) -> list[str]:
    if found["contrast"] <= max(usual.contrast.low - math.log(2), math.log(FLAT)):
        return ["it is blank, or nearly so"]
    reasons = []
    if found["colour"] > max(usual.colour.high, GRAY):
        reasons.append(
            "it is in colour, and the model was trained on gray images"
            if usual.colour.high <= GRAY
            else "it is far more colourful than the images that the model was trained on"
        )
    elif not (usual.warmth.holds(found["warmth"]) and usual.greenness.holds(found["greenness"])):
        reasons.append("its colours are not those of the images that the model was trained on")
    if not _sides(found, usual) and _is_usual(negative, usual):
        reasons.append("it looks inverted: bright where the training images are dark")
    elif not usual.brightness.holds(found["brightness"]):
        dark = found["brightness"] < usual.brightness.low
        how = "darker" if dark else "brighter"
        reasons.append(f"it is far {how} than the images that the model was trained on")
    smooth = found["roughness"] < usual.roughness.low / 2  # a little blur is no harm
    if smooth or found["roughness"] > usual.roughness.high:
        how = "smoother (blurred?)" if smooth else "rougher (noise?)"
        reasons.append(f"it is far {how} than the images that the model was trained on")
    return reasons


def _sides(found: dict[str, float], usual: Statistics) -> bool:
    """Whether bright and dark are where they usually are: a negative swaps them."""
    return usual.asymmetry.holds(found["asymmetry"]) and usual.likeness.holds(found["likeness"])


def _is_usual(found: dict[str, float], usual: Statistics) -> bool:
    return usual.brightness.holds(found["brightness"]) and _sides(found, usual)


def _measures(gray: Floats, mean_image: Floats) -> dict[str, Floats]:
    """Each of images [N, H, W]: [N]."""
    flat = gray.reshape(len(gray), -1)
    brightness = flat.mean(1)
    apart = flat - brightness[:, None]
    spread = np.maximum(flat.std(1), FLAT)
    asymmetry = (apart**3).mean(1) / spread**3
    cells, whole = _cells(gray), mean_image - mean_image.mean()
    cells = cells - cells.mean(1, keepdims=True)
    lengths = np.linalg.norm(cells, axis=1) * np.linalg.norm(whole)
    likeness = cells @ whole / np.maximum(lengths, 1e-6)
    return {
        "brightness": brightness,
        "contrast": np.log(spread),
        "asymmetry": asymmetry,
        "likeness": likeness,
        "roughness": _steps(gray) / spread,
    }


def _steps(gray: Floats) -> Floats:
    """The root mean square of differences between neighbours, [N]; an image of one pixel has 0."""
    squares = [np.square(np.diff(gray, axis=axis)).reshape(len(gray), -1) for axis in (1, 2)]
    both = np.concatenate(squares, axis=1)
    steps: Floats = np.sqrt(both.sum(1) / max(both.shape[1], 1))
    return steps


def _usual(values: Floats, least: float = 0.0) -> Range:
    """All but the rarest, and some way beyond: the fewer the images, the less they say of it."""
    low, high = np.quantile(values, [RARE, 1 - RARE])
    reach = least + WIDEN * values.std() / math.sqrt(len(values))
    return Range(low=float(low - reach), high=float(high + reach))


def _gray(pixels: PixelArray) -> Floats:
    """[N, H, W]."""
    values: Floats = pixels.astype(np.float32) / np.float32(255)
    gray: Floats = values[..., 0] if values.shape[-1] == 1 else values @ LUMA
    return gray


def _colour(pixels: PixelArray) -> Floats:
    """[N]: 0 for gray images."""
    apart = pixels.max(-1).astype(np.float32) - pixels.min(-1)
    found: Floats = apart.mean((1, 2)) / 255
    return found


def _tints(pixels: PixelArray) -> dict[str, Floats]:
    """Each [N]: 0 for gray images."""
    means: Floats = pixels.mean((1, 2), dtype=np.float32) / np.float32(255)
    red, green, blue = (means[:, channel % means.shape[1]] for channel in range(3))
    return {"warmth": red - blue, "greenness": green - (red + blue) / 2}


def _cells(gray: Floats) -> Floats:
    """Means over a grid of cells, [N, GRID * GRID]; sides shorter than the grid repeat pixels."""
    _, height, width = gray.shape
    rows = np.linspace(0, height, GRID, endpoint=False).astype(int)
    columns = np.linspace(0, width, GRID, endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(gray, rows, axis=1), columns, axis=2)
    high = np.maximum(np.diff([*rows, height]), 1)
    wide = np.maximum(np.diff([*columns, width]), 1)
    means: Floats = (sums / (high[:, None] * wide)).astype(np.float32)
    return means.reshape(len(gray), -1)
