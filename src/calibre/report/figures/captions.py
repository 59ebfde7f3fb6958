"""Words beside points, placed so that none covers another."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.report.figures.style import SMALL

DISTANCES = (7, 13, 20, 28, 38, 50, 64)  # points away from the marker, tried in turn
DIRECTIONS = [k * math.pi / 8 for k in (0, 8, 4, 12, 2, 6, 10, 14, 1, 7, 9, 15, 3, 5, 11, 13)]
TIED_FROM = 10  # points: a label as far off has a line to its marker
PASSES = 4

Boxes = npt.NDArray[np.float64]  # [n, 4]: x0, y0, x1, y1 in pixels


def label_points(
    panel: Any,
    points: Sequence[tuple[float, float]],
    words: Sequence[str],
    colours: Sequence[str],
    others: npt.NDArray[np.float64],  # [n, 2]: points without words, not to be covered if possible
) -> None:
    """Write each point's words beside it; axis limits and panel positions must be final.

    Every label takes the free place nearest to its point, given where the others are; a few rounds
    of that leave next to no overlap.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb

    figure = panel.figure
    renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    pixel = figure.dpi / 72
    at = panel.transData.transform(points)
    texts = [
        panel.annotate(
            word, point, xytext=(0, 0), textcoords="offset points", size=SMALL,
            color=[0.7 * part for part in to_rgb(colour)], ha="center", va="center",
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 3},
        )
        for word, point, colour in zip(words, points, colours, strict=True)
    ]  # fmt: skip
    extents = [text.get_window_extent(renderer) for text in texts]
    sizes = [(box.width + 2 * pixel, box.height + 1 * pixel) for box in extents]
    markers = np.hstack([at - 3.5 * pixel, at + 3.5 * pixel])
    dots = panel.transData.transform(others)
    dots = np.hstack([dots - pixel, dots + pixel])
    frame = panel.bbox.extents
    places = np.tile(markers[:, :1] * np.nan, 4)  # none yet
    chosen = [(0.0, 0.0)] * len(texts)
    for _ in range(PASSES):
        for i, (centre, size) in enumerate(zip(at, sizes, strict=True)):
            taken = np.vstack([np.delete(places, i, axis=0), markers, dots])
            offsets = [_offset(size, way, d * pixel) for d in DISTANCES for way in DIRECTIONS]
            boxes = np.array([_box(centre + offset, size) for offset in offsets])
            cost = _overlap(boxes, taken) + 10 * _outside(boxes, frame)
            best = int(np.argmin(cost + 1e-3 * np.repeat(DISTANCES, len(DIRECTIONS))))
            places[i], chosen[i] = boxes[best], (offsets[best][0], offsets[best][1])
    for text, offset, place, centre in zip(texts, chosen, places, at, strict=True):
        text.set_position((offset[0] / pixel, offset[1] / pixel))
        gap = np.maximum(0, np.maximum(place[:2] - centre, centre - place[2:]))
        if math.hypot(*gap) < TIED_FROM * pixel:
            text.arrow_patch.set_visible(False)


def _offset(size: tuple[float, float], way: float, gap: float) -> npt.NDArray[np.float64]:
    """From a point to the middle of a label whose edge is ``gap`` away in a direction."""
    x, y = math.cos(way), math.sin(way)
    return np.array([x * (gap + size[0] / 2), y * (gap + size[1] / 2)])


def _box(centre: npt.NDArray[np.float64], size: tuple[float, float]) -> npt.NDArray[np.float64]:
    half = np.array(size) / 2
    return np.concatenate([centre - half, centre + half])


def _overlap(boxes: Boxes, taken: Boxes) -> npt.NDArray[np.float64]:
    """The area of each box that others cover, [n]."""
    low = np.maximum(boxes[:, None, :2], taken[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], taken[None, :, 2:])
    sides = np.nan_to_num(np.clip(high - low, 0, None))
    area: npt.NDArray[np.float64] = sides.prod(axis=2).sum(axis=1)
    return area


def _outside(boxes: Boxes, frame: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How far each box sticks out of a frame, in pixels, [n]."""
    low = np.clip(frame[:2] - boxes[:, :2], 0, None)
    high = np.clip(boxes[:, 2:] - frame[2:], 0, None)
    out: npt.NDArray[np.float64] = (low + high).sum(axis=1)
    return out
