"""From 10, 12 or 16 bits a pixel to 8: the part of its range that an image uses is stretched.

Each image is judged by itself, so that one that comes alone, for a prediction, is treated as it
would have been among others, and sites need not agree on anything.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.data.formats import UnreadableError

LOWEST, HIGHEST = -(2**15), 2**16 - 1  # of 16 bits, signed or not
PERMILLE = 5  # of the pixels at either end are clipped: a dead or a hot pixel decides nothing
STRIP = 2**20  # values that are worked on together

Values = npt.NDArray[Any]  # integers [H, W]
Table = npt.NDArray[np.uint8]  # what each value from LOWEST to HIGHEST becomes


def own_window(strips: Iterable[Values]) -> Table:
    """From the 0.5th percentile of an image's values, black, to the 99.5th, white."""
    counts = np.zeros(HIGHEST - LOWEST + 1, np.int64)
    for values in strips:
        if values.min() < LOWEST or values.max() > HIGHEST:
            raise UnreadableError("has pixels of 32 bits; save it with 8 or 16")
        found = np.bincount(values.ravel().astype(np.int64) - LOWEST)
        counts[: len(found)] += found
    below = np.cumsum(counts)  # how many pixels have this value or less
    total = int(below[-1])
    low = int(np.argmax(below * 1000 > total * PERMILLE)) + LOWEST
    high = int(np.argmax(below * 1000 >= total * (1000 - PERMILLE))) + LOWEST
    values = np.arange(LOWEST, HIGHEST + 1)
    if low == high:  # a flat image keeps its upper eight bits
        shown = np.where(values == low, max(low, 0) >> 8, np.where(values > low, 255, 0))
    else:
        span = high - low
        shown = np.clip(((values - low) * 510 + span) // (2 * span), 0, 255)  # half is rounded up
    table: Table = shown.astype(np.uint8)
    return table


def by_table(table: Table, values: Values) -> npt.NDArray[np.uint8]:
    """What ``values`` become."""
    shown = np.empty(values.shape, np.uint8)
    start = 0
    for strip in in_strips(values):
        shown[start : start + len(strip)] = table[strip.astype(np.int64) - LOWEST]
        start += len(strip)
    return shown


def in_strips(values: Values) -> Iterator[Values]:
    """Some rows at a time."""
    rows = max(1, STRIP // values.shape[1])
    for start in range(0, len(values), rows):
        yield values[start : start + rows]
