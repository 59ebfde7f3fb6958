"""What the paper claims of two methods, and whether runs bear it out."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calibre.recipes.recipe import Verdict
from calibre.report.inference import half_interval
from calibre.report.metrics import ByGroup, Group

OURS = "Calibre (SimCLR)"
LABELLED = f"{OURS} with labels"
PLAIN_LABELLED = "pFL-SimCLR with labels"
TWO = f"{LABELLED}, two networks"
Runs = Mapping[str, Sequence[ByGroup]]  # metrics by method, one per seed
NOT_RUN: tuple[Verdict, str] = (
    "not comparable at this scale", "a method of the claim was not run",
)  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """How far a method is from another one, as the paper puts it."""

    id: str  # q1 to q8: docs/results.md; C1, C2, ...: a figure of the paper
    against: str | None  # a method's label; None: whichever is best of those not calibrated
    group: Group
    key: Literal["mean", "variance"]
    paper: float | None  # points of the mean; of the variance absolute, or percent where relative
    relative: bool = False
    of: str = OURS
    below: bool = False  # of a mean: that it is lower, not higher

    @property
    def text(self) -> str:
        """What the paper says, as a sentence without its full stop."""
        who = "novel clients" if self.group == "novel" else "clients that trained"
        of = "Calibre" if self.of.startswith(OURS) else self.of
        said = f"{self.id}: {of}'s {self.key} over {who} is"
        other = "the best other method" if self.against is None else self.against
        if self.paper is None:
            return f"{said} {'below' if self.below else 'above'} {other}'s"
        unit = " %" if self.relative else (" points" if self.key == "mean" else "")
        return (
            f"{said} {abs(self.paper):g}{unit} {'above' if self.paper > 0 else 'below'} {other}'s"
        )

    def judge(self, runs: Runs) -> tuple[Verdict, str]:
        """Better means: a higher mean, or a variance no further above than the paper's own.

        Open is what other seeds might decide otherwise, by the interval over these; one seed tells
        nothing of others.
        """
        uncalibrated = [name for name in runs if not name.startswith("Calibre (")]
        others = [self.against] if self.against else uncalibrated
        if self.of not in runs or not others or not all(name in runs for name in others):
            return NOT_RUN
        gaps = self._gaps(runs, others)
        mean, half = statistics.mean(gaps), half_interval(gaps)
        digits = 2 if self.key == "mean" or self.relative else 4
        said = f"{mean:+.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")
        said += " %" if self.relative else " points" * (self.key == "mean")
        if half is None or abs(mean - self._limit) <= half:
            return "open", said
        return ("reproduced" if self._holds(mean) else "not reproduced"), said

    @property
    def _limit(self) -> float:
        """Of the gap, between what the claim says and what it does not."""
        return max(self.paper or 0, 0) if self.key == "variance" else 0.0

    def _holds(self, gap: float) -> bool:
        if self.key == "variance":
            return gap <= self._limit
        return gap < 0 if self.below else gap > 0

    def _gaps(self, runs: Runs, others: Sequence[str]) -> list[float]:
        """Seed by seed, to the one of the others that is best over all seeds."""
        seeds = range(len(runs[self.of]))
        found = {name: [self._measure(runs[name][seed]) for seed in seeds] for name in others}
        best = max(found, key=lambda name: statistics.mean(found[name]) * self._better)
        gaps = []
        for seed, other in zip(seeds, found[best], strict=True):
            gap = self._measure(runs[self.of][seed]) - other
            gaps.append(100 * gap / other if self.relative else gap * self._scale)
        return gaps

    def _measure(self, figures: ByGroup) -> float:
        return figures.of(self.group).measure(self.key)

    @property
    def _better(self) -> int:
        return 1 if self.key == "mean" else -1

    @property
    def _scale(self) -> int:
        return 100 if self.key == "mean" else 1  # means are told in points
