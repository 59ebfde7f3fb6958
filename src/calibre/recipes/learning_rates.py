"""Which learning rate suits each method at CPU scale: chosen on validation images only."""

from collections.abc import Sequence
from itertools import product

from calibre.experiment import Experiment
from calibre.recipes.rates import RATES
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.recipes.scales import SOLVED, Scale, experiment, method, rate
from calibre.recipes.wide_table import SURE
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import PairedTest
from calibre.report.inference import holm
from calibre.report.rows import Entry, Row, mean_of
from calibre.report.runs import Run
from calibre.settings import validate

ROUNDS = 10
SELF_SUPERVISED = ("simclr", "byol", "simsiam", "moco", "swav", "smog")
WITH_MOMENTUM = (
    "fedavg-ft", "fedprox-ft", "fedbn-ft", "qffl-ft", "fedper", "fedrep", "fedbabu", "lg-fedavg",
    "ditto", "apfl", "fedproto",
)  # fmt: skip
WITHOUT_MOMENTUM = ("local", "scaffold-ft", "perfedavg", "perfedavg-hf")
USUAL: dict[str, tuple[float, ...]] = {
    **{f"pfl-ssl/{objective}": (0.003, 0.01, 0.03, 0.1, 0.3) for objective in SELF_SUPERVISED},
    **dict.fromkeys(WITH_MOMENTUM, (0.001, 0.003, 0.01, 0.03, 0.1)),
    **dict.fromkeys(WITHOUT_MOMENTUM, (0.01, 0.03, 0.1, 0.3)),
}
# beyond an edge at which the best was, until it lies inside
WIDER: dict[str, tuple[float, ...]] = {
    "pfl-ssl/simclr": (0.0003, 0.001), "pfl-ssl/swav": (1.0,), "pfl-ssl/smog": (1.0,),
    "fedavg-ft": (0.0003,), "fedprox-ft": (0.0003,), "scaffold-ft": (0.003,),
    "perfedavg": (0.003,), "perfedavg-hf": (0.003,),
}  # fmt: skip
GRIDS = {name: (*grid, *WIDER.get(name, ())) for name, grid in USUAL.items()}


def experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """Every method, rate and seed, on the Q-non-iid federation without its test images.

    Through solved heads: those of ten epochs prefer encodings of a large scale, which is another
    matter than good ones.
    """
    chosen = []
    for name, grid in GRIDS.items():
        for value, seed in product(grid, seeds):
            table = method(name, scale, **rate(name, value))
            values = experiment(
                "cifar10", "quantity", scale, table, seed, changes=SOLVED
            ).model_dump()
            values["federation"] |= {"score_on": "validation", "test_samples": None}
            values["training"]["rounds"] = ROUNDS
            chosen.append(validate(Experiment, values))
    return chosen


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """Mean validation accuracies of training clients, the best of each row in bold.

    An asterisk marks a best one at the edge of its grid. The last column is what recipes use.
    """
    found: dict[str, dict[float, list[Run]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault(run.metrics.method, {}).setdefault(_rate(run.experiment), []).append(run)
    scores = {
        name: {value: Row(f"{name} at {value:g}", {}, tuple(map(Entry, own)))
               for value, own in by_rate.items()}
        for name, by_rate in found.items()
    }  # fmt: skip
    rates = sorted({value for row in scores.values() for value in row})
    lines = [
        "| method | " + " | ".join(f"{value:g}" for value in rates) + " | in use |",
        "|---|" + "---:|" * (len(rates) + 1),
    ]
    tests: list[PairedTest] = []
    for name, row in scores.items():
        means = {value: mean_of(own, "train") for value, own in row.items()}
        used = _in_use(next(iter(found[name].values()))[0].experiment)
        best = max(means, key=lambda value: (means[value], value == used, -value))
        cells = {value: f"{100 * mean:.1f}" for value, mean in means.items()}
        edge = "*" * (best in (min(means), max(means)))
        cells[best] = f"**{cells[best]}**" + f"\\{edge}" * bool(edge)
        if used != best and used in row:
            tests.append(paired_test("train", row[best], row[used]))
        cells_of_row = [cells.get(value, "") for value in rates]
        lines.append(f"| {' | '.join([name, *cells_of_row, f'{used:g}'])} |")
    return Conclusion("\n\n".join(["\n".join(lines), _verdict(tests)]))


def _verdict(tests: Sequence[PairedTest]) -> str:
    """Whether some rate is better than the one in use, by more than chance."""
    if not tests:
        return "Every method uses its best rate."
    adjusted = holm([test.p for test in tests])
    if sure := [test for test, p in zip(tests, adjusted, strict=True) if p < SURE]:
        return "\n".join(
            f"- **{t.one} is ahead of {t.other}** by {100 * t.difference.value:.2f} points."
            for t in sure
        )
    return (
        f"Other rates than those in use were best for {len(tests)} of the methods; none of them is "
        f"told apart from the one in use (paired tests over clients, p >= {SURE:g} after Holm)."
    )


def _in_use(experiment: Experiment) -> float:
    values = experiment.method.model_dump()
    return RATES.get(values["name"]) or RATES[values["objective"]["name"]]


def _rate(experiment: Experiment) -> float:
    values = experiment.method.model_dump()
    return float(values["beta"] if "beta" in values else values["sgd"]["lr"])


RECIPES = (
    Recipe(
        "learning-rates",
        f"Learning rates by validation accuracy after {ROUNDS} rounds, CIFAR-10 under Q-non-iid",
        experiments,
        conclude,
        seeds=1,
    ),
)
