"""The demonstration beside its rivals: small enough for everybody, in minutes."""

from collections.abc import Sequence
from itertools import product

from calibre import experiment as experiments
from calibre.experiment import Experiment
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.recipes.scales import Scale
from calibre.report import comparison_tables
from calibre.report.compare import compare
from calibre.report.runs import Run

METHODS = ("calibre", "pfl-ssl", "fedavg-ft", "fedper")


def plan(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """What ``calibre-fl run`` does, with other methods too; of one scale."""
    return [
        experiments.read(None, [f"method.name={name}", f"seed={seed}"])
        for seed, name in product(seeds, METHODS)
    ]


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    return Conclusion(comparison_tables.markdown(compare(runs)).rstrip())


RECIPES = (
    Recipe("digits", "The demonstration beside other methods: handwritten digits", plan, conclude),
)
