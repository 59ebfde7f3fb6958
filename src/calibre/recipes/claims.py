"""What the paper claims of two methods, and whether runs bear it out (ALGORITHMS F)."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calibre.recipes.recipe import Verdict

OURS = "Calibre (SimCLR)"
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # metrics by method, one per seed


@dataclass(frozen=True)
class Claim:
    """How far Calibre (SimCLR) is from another method, as the paper puts it."""

    id: str
    against: str | None  # a method's label; None: whichever other method is best
    group: Literal["train", "novel"]
    key: Literal["mean", "variance"]
    paper: float  # points of the mean; for the variance absolute, or percent where relative
    relative: bool = False

    @property
    def text(self) -> str:
        other = self.against or "the best other method"
        who = "novel" if self.group == "novel" else "training"
        unit = " %" if self.relative else (" points" if self.key == "mean" else "")
        return f"{self.id}: {self.key} over {who} clients against {other}: {self.paper:+g}{unit}"

    def judge(self, runs: Runs) -> tuple[Verdict, str]:
        """Better means: a higher mean, or a variance no further above than the paper's own."""
        others = [self.against] if self.against else [name for name in runs if name != OURS]
        if OURS not in runs or not all(name in runs for name in others):
            return "not comparable at this scale", "a method of the claim was not run"
        gaps = [self._gap(runs, others, seed) for seed in range(len(runs[OURS]))]
        bound = max(self.paper, 0) if self.key == "variance" else 0
        held = [gap <= bound if self.key == "variance" else gap > bound for gap in gaps]
        mean = statistics.mean(gaps)
        good = mean <= bound if self.key == "variance" else mean > bound
        digits = 2 if self.key == "mean" or self.relative else 4
        said = f"{mean:+.{digits}f} here; so in {sum(held)} of {len(held)} seeds"
        return ("reproduced" if good else "not reproduced"), said

    def _gap(self, runs: Runs, others: Sequence[str], seed: int) -> float:
        ours = float(runs[OURS][seed][self.group][self.key])
        theirs = [float(runs[name][seed][self.group][self.key]) for name in others]
        other = max(theirs) if self.key == "mean" else min(theirs)
        if self.relative:
            return 100 * (ours - other) / other
        return (ours - other) * (100 if self.key == "mean" else 1)
