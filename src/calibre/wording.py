"""Figures, and commands to copy, as people read them: the same everywhere."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

Z95 = 1.959963984540054  # 95 % of a normal distribution lies within this many deviations


def percent(share: float | None, digits: int = 1) -> str:
    """``87.5 %``; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def span(low: float, high: float, digits: int = 1) -> str:
    """``76.4 to 93.8 %``."""
    return f"{100 * low:.{digits}f} to {percent(high, digits)}"


def rate(share: float) -> str:
    """``2.5 %``, of a share that somebody set: all its digits."""
    return f"{100 * share:g} %"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def how_many(count: int, what: str) -> str:
    """``1 client``, ``1,200 clients``; ``what`` is the word for one."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def quoted(place: Path | str) -> str:
    """A path in a command that somebody may copy, as a shell takes it."""
    return shlex.quote(str(place))


class Difference(NamedTuple):
    """By how much one accuracy is above another, with its 95 % interval."""

    value: float
    low: float
    high: float
    images: int  # that both were tested on

    @property
    def established(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """``9.8 points (95 % interval 2.1 to 17.5)``, or why that says nothing yet."""
        points = f"{100 * self.value:.1f} points"
        interval = f"95 % interval {100 * self.low:.1f} to {100 * self.high:.1f}"
        if self.established:
            return f"{points} ({interval})"
        return f"{points}, but {self.images:,} test images: not established ({interval})"


def difference(scores: Sequence[tuple[float, float, int]]) -> Difference:
    """Of the means of some clients' accuracies: one, the other, and on how many images each was.

    Both are taken as measured apart, which is cautious: on the same images they go together. Each
    share's spread is taken at Wilson's centre, so that 5 of 5 right is not taken for certain.
    """
    value = math.fsum(one - other for one, other, _ in scores) / len(scores)
    spread = math.fsum(
        variance(share, images) for one, other, images in scores for share in (one, other)
    )
    half = Z95 * math.sqrt(spread) / len(scores)
    return Difference(value, value - half, value + half, sum(images for *_, images in scores))


def variance(share: float, images: int) -> float:
    """Of a share that was measured on so many images."""
    centre = (share * images + Z95**2 / 2) / (images + Z95**2)
    return centre * (1 - centre) / images
