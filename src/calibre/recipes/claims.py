"""What the paper claims of two methods, and whether runs bear it out."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calibre.recipes.recipe import Verdict
from calibre.report.metrics import ByGroup, Group

OURS = "Calibre (SimCLR)"
LABELLED = f"{OURS} with labels"
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
        other = self.against or "the best other method"
        who = "novel" if self.group == "novel" else "training"
        unit = " %" if self.relative else (" points" if self.key == "mean" else "")
        far = "below it" if self.below else "above it"
        said = f"{self.paper:+g}{unit}" if self.paper is not None else far
        whose = f" of {self.of}" if self.of != OURS else ""
        return f"{self.id}: {self.key}{whose} over {who} clients against {other}: {said}"

    def judge(self, runs: Runs) -> tuple[Verdict, str]:
        """Better means: a higher mean, or a variance no further above than the paper's own."""
        uncalibrated = [name for name in runs if not name.startswith("Calibre (")]
        others = [self.against] if self.against else uncalibrated
        if self.of not in runs or not others or not all(name in runs for name in others):
            return NOT_RUN
        gaps = [self._gap(runs, others, seed) for seed in range(len(runs[self.of]))]
        held = [*map(self._holds, gaps)]
        mean = statistics.mean(gaps)
        good = self._holds(mean)
        digits = 2 if self.key == "mean" or self.relative else 4
        said = f"{mean:+.{digits}f} here; so in {sum(held)} of {len(held)} seeds"
        return ("reproduced" if good else "not reproduced"), said

    def _holds(self, gap: float) -> bool:
        if self.key == "variance":
            return gap <= max(self.paper or 0, 0)
        return gap < 0 if self.below else gap > 0

    def _gap(self, runs: Runs, others: Sequence[str], seed: int) -> float:
        ours = runs[self.of][seed].of(self.group).measure(self.key)
        theirs = [runs[name][seed].of(self.group).measure(self.key) for name in others]
        other = max(theirs) if self.key == "mean" else min(theirs)
        if self.relative:
            return 100 * (ours - other) / other
        return (ours - other) * (100 if self.key == "mean" else 1)
