"""What a recipe is: experiments to run, and what to say once they have been."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from calibre.experiment import Experiment
from calibre.recipes.scales import Scale
from calibre.report.runs import Run

Verdict = Literal["reproduced", "not reproduced", "open", "not comparable at this scale"]
PICTURE = re.compile(r"\]\(picture:([\w-]+)\)")


@dataclass(frozen=True)
class Conclusion:
    """What runs come to, as Markdown; ``![words](picture:NAME)`` stands where a picture belongs."""

    text: str
    pictures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # drawn when asked for

    def placed(self, place: Callable[[str], str]) -> str:
        """The text with its pictures at the addresses that ``place`` gives them by name."""
        return PICTURE.sub(lambda found: f"]({place(found[1])})", self.text)


@dataclass(frozen=True)
class Recipe:
    """A figure or table: of the paper, or of what it leaves open."""

    name: str
    title: str
    experiments: Callable[[Scale, Sequence[int]], list[Experiment]]
    conclude: Callable[[Sequence[Run], Scale], Conclusion]  # also from some of them
    seeds: int = 3  # that a reader should ask for
    models: bool = False  # whether it is concluded from the runs' models, not only their figures


def table(lines: Sequence[Sequence[str]]) -> str:
    """As Markdown; the first line is the header, and only the first column is of words."""
    header, *rest = lines
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def by_name(
    runs: Sequence[Run], wanted: Mapping[str, Sequence[Experiment]]
) -> dict[str, list[Run]]:
    """The runs of these experiments, in their order; a name without any is left out."""
    held = {run.experiment.hash(): run for run in runs}
    found = {
        name: [held[hash_] for e in experiments if (hash_ := e.hash()) in held]
        for name, experiments in wanted.items()
    }
    return {name: own for name, own in found.items() if own}
