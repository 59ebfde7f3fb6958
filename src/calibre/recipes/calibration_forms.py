"""Does calibration help, and in which form? Chosen on validation images only.

SimCLR without labels in training, CIFAR-10 under Dir(0.3); a fifth of every client's training
images is held out by class, and no test image has a say. Each form changes the paper's two terms,
or the server's weights, in one way; all are compared with plain pFL-SimCLR.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from calibre.experiment import Experiment
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.recipes.scales import SOLVED, Scale, experiment, method
from calibre.recipes.wide_table import SURE
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import cell, p_value
from calibre.report.inference import holm
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run
from calibre.settings import validate

PLAIN = "none: pFL-SimCLR"


def _strength(alpha: float) -> dict[str, float]:
    return {"alpha_p": alpha, "alpha_n": alpha}


# of method.prototypes, and of gamma; the paper's strength is 0.3
FORMS: dict[str, tuple[Mapping[str, Any], float]] = {
    PLAIN: (_strength(0), 0),
    "weights by divergence alone": (_strength(0), 1),
    "the two terms alone": (_strength(0.3), 0),
    "as in the paper": (_strength(0.3), 1),
    "three times as strong": (_strength(1), 1),
    "ten times as strong": (_strength(3), 1),
    "swapped: a view goes by its other view's cluster": (
        {**_strength(1), "query_label": "partner"}, 1,
    ),
    "swapped, sharper, both ways": (
        {**_strength(1), "query_label": "partner", "tau_n": 0.1, "support": "sym"}, 1,
    ),
    "clusters of unit encodings": ({**_strength(1), "kmeans_normalize": True}, 1),
    "16 clusters in a batch": ({**_strength(1), "clusters": 16}, 1),
    "sharper: temperatures of 0.1": ({**_strength(1), "tau_n": 0.1, "tau_p": 0.1}, 1),
    "fixed prototypes": ({**_strength(1), "detach_proto": True}, 1),
    "true labels as clusters (analysis)": ({**_strength(1), "oracle_labels": True}, 1),
}  # fmt: skip


def experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    chosen = []
    for seed, (prototypes, gamma) in product(seeds, FORMS.values()):
        table = method("calibre/simclr", scale, prototypes=prototypes, aggregation={"gamma": gamma})
        values = experiment("cifar10", "dirichlet", scale, table, seed, changes=SOLVED).model_dump()
        values["federation"] |= {"score_on": "validation", "test_samples": None}
        chosen.append(validate(Experiment, values))
    return chosen


def form_of(run: Run) -> str:
    """The name of the form that a run is of."""
    table = run.experiment.method.model_dump()
    gamma, own = table["aggregation"]["gamma"], table["prototypes"]
    fitting = [
        name
        for name, (changes, weight) in FORMS.items()
        if weight == gamma and all(own[key] == value for key, value in changes.items())
    ]
    return max(fitting, key=lambda name: len(FORMS[name][0]))  # it says most of the run


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """Of each form the validation accuracy, and what it gains over none."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault(form_of(run), []).append(run)
    rows = {name: Row(name, {}, tuple(map(Entry, own))) for name, own in found.items()}
    plain = rows.get(PLAIN)
    seeds = {run.seed for run in found.get(PLAIN, [])}
    paired = [n for n in rows if n != PLAIN and {run.seed for run in found[n]} == seeds]
    tests = {name: paired_test("train", rows[name], plain) for name in paired if plain}
    sure = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    header = ["form", "mean %", "variance", "worst 10th %", "against none, points", "p"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for name in [name for name in FORMS if name in rows]:
        cells = [
            cell(rows[name].estimate("train", "mean"), 100, 2),
            cell(rows[name].estimate("train", "variance"), 1, 4),
            cell(rows[name].estimate("train", "worst_tenth"), 100, 1),
        ]
        test = tests.get(name)
        against = [cell(test.difference, 100, 2), p_value(sure[name])] if test else ["", ""]
        lines.append([name, *cells, *against])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    helps = [name for name in sure if sure[name] < SURE and tests[name].difference.value > 0]
    hurts = [name for name in sure if sure[name] < SURE and tests[name].difference.value < 0]
    return Conclusion("\n\n".join([table, _verdict(helps, hurts, len(sure))]))


def _verdict(helps: Sequence[str], hurts: Sequence[str], tried: int) -> str:
    if not tried:
        return "Nothing to compare yet."
    said = [
        f"Of {tried} forms, {len(helps)} gain significantly over none (p < {SURE:g} after Holm)"
    ]
    said += [f": {'; '.join(helps)}" if helps else "", f", and {len(hurts)} lose"]
    said += [f": {'; '.join(hurts)}" if hurts else "", "."]
    return "".join(said)


RECIPES = (
    Recipe(
        "calibration-forms",
        "Forms of calibration, by validation accuracy; CIFAR-10 under Dir(0.3), no labels",
        experiments,
        conclude,
    ),
)
