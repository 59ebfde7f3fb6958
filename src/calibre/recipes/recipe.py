"""What a recipe is: experiments to run, and what to say once they have been."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibre.experiment import Experiment
from calibre.recipes.scales import Scale
from calibre.report.runs import Run

Verdict = Literal["reproduced", "not reproduced", "not comparable at this scale"]


@dataclass(frozen=True)
class Recipe:
    """A figure or table of the paper."""

    name: str
    title: str
    experiments: Callable[[Scale, Sequence[int]], list[Experiment]]
    conclude: Callable[[Sequence[Run], Path, Scale], str]  # Markdown; pictures go in the folder
    seeds: int = 3  # that a reader should ask for
