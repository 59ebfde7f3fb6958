"""What became slower or larger than it was: measured now against what is kept, of one machine kind.

A figure whose target is ``>=`` should be large, the others small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ALLOWED = 0.05  # of what it was

Measured = Mapping[str, Any]  # name, ratio, target, machine


@dataclass(frozen=True)
class Regression:
    name: str
    before: float
    now: float

    @property
    def change(self) -> float:
        """How much worse, as a part of what it was."""
        return abs(self.now - self.before) / abs(self.before)

    def __str__(self) -> str:
        return f"{self.name}: {self.now:g}, was {self.before:g} ({100 * self.change:.0f} % worse)"


def regressions(now: Iterable[Measured], kept: Iterable[Measured]) -> list[Regression]:
    """Figures worse by more than ``ALLOWED``. Other kinds of machines tell nothing of this one."""
    before = {(result["name"], result["machine"]): result["ratio"] for result in kept}
    found = []
    for result in now:
        was = before.get((result["name"], result["machine"]))
        if not was:
            continue
        more = result["ratio"] / was - 1
        worse = -more if result["target"].startswith(">=") else more
        if worse > ALLOWED:
            found.append(Regression(result["name"], was, result["ratio"]))
    return found
