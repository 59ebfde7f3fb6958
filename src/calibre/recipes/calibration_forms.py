"""Does calibration help, and in which form? Chosen on validation images only.

SimCLR, CIFAR-10 under Dir(0.3); a fifth of every client's training images is held out by class, and
no test image has a say. Each form changes the paper's two terms, or the server's weights, in one
way; all are compared with plain pFL-SimCLR. No label takes part in training, but in forms that are
anchored by labels: those have 40 labels a client, and so has what they are compared with. The
paper's form is also trained five times as long, beside plain pFL-SimCLR that is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from calibre.experiment import Experiment
from calibre.recipes.recipe import Conclusion, Recipe, by_name, table
from calibre.recipes.scales import SOLVED, Scale, experiment, method
from calibre.recipes.wide_table import told_apart
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import PairedTest, cell, p_value
from calibre.report.inference import holm
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run
from calibre.settings import validate

PLAIN = "none: pFL-SimCLR"
PLAIN_LABELLED = "none, with labels in training"
PLAIN_LONG = "none, five times the rounds"
LABELS = 40  # that a client has, where labels take part


class Form(NamedTuple):
    prototypes: Mapping[str, Any]  # of method.prototypes
    gamma: float = 1  # of the server's weights; 0: FedAvg's
    plain: str = PLAIN  # the form that it is compared with
    labelled: bool = False  # whether labels take part in training
    longer: int = 1  # times the usual rounds

    def experiment(self, scale: Scale, seed: int) -> Experiment:
        table = method(
            "calibre/simclr",
            scale,
            prototypes=self.prototypes,
            aggregation={"gamma": self.gamma},
            labels={"weight": float(self.labelled)},
        )
        values = experiment("cifar10", "dirichlet", scale, table, seed, changes=SOLVED).model_dump()
        values["federation"] |= {"score_on": "validation", "test_samples": None}
        values["training"]["rounds"] *= self.longer
        if self.labelled:
            values["federation"] |= {"label_count": LABELS}
        built: Experiment = validate(Experiment, values)
        return built


def _strength(alpha: float, **changes: Any) -> dict[str, Any]:
    return {"alpha_p": alpha, "alpha_n": alpha, **changes}


SHARP = {"tau_n": 0.1, "tau_p": 0.1}
LABELLED: dict[str, Any] = {"plain": PLAIN_LABELLED, "labelled": True}
LONG: dict[str, Any] = {"plain": PLAIN_LONG, "longer": 5}
FORMS = {  # the paper's strength is 0.3
    PLAIN: Form(_strength(0), gamma=0),
    "weights by divergence alone": Form(_strength(0)),
    "the two terms alone": Form(_strength(0.3), gamma=0),
    "as in the paper": Form(_strength(0.3)),
    "three times as strong": Form(_strength(1)),
    "ten times as strong": Form(_strength(3)),
    "swapped: a view goes by its other view's cluster": Form(_strength(1, query_label="partner")),
    "swapped, sharper, both ways": Form(
        _strength(1, query_label="partner", tau_n=0.1, support="sym")
    ),
    "clusters of unit encodings": Form(_strength(1, kmeans_normalize=True)),
    "16 clusters in a batch": Form(_strength(1, clusters=16)),
    "sharper: temperatures of 0.1": Form(_strength(1, **SHARP)),
    "fixed prototypes": Form(_strength(1, detach_proto=True)),
    "clusters of the whole client, once a round": Form(_strength(1, kmeans="client")),
    "the same, stronger and sharper": Form(_strength(3, kmeans="client", **SHARP)),
    "prototypes at the server": Form(_strength(1, kmeans="server")),
    "at the server, stronger and sharper": Form(_strength(3, kmeans="server", **SHARP)),
    "true labels as clusters (analysis)": Form(_strength(1, oracle_labels=True)),
    "true labels, stronger and sharper (analysis)": Form(_strength(3, oracle_labels=True, **SHARP)),
    PLAIN_LABELLED: Form(_strength(0), gamma=0, **LABELLED),
    "as in the paper, with labels in training": Form(_strength(0.3), **LABELLED),
    "anchored by labels": Form(_strength(1, kmeans="labels"), **LABELLED),
    "anchored by labels, sharper": Form(_strength(1, kmeans="labels", **SHARP), **LABELLED),
    PLAIN_LONG: Form(_strength(0), gamma=0, **LONG),
    "as in the paper, five times the rounds": Form(_strength(0.3), **LONG),
}


def experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    return [form.experiment(scale, seed) for seed, form in product(seeds, FORMS.values())]


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """Of each form the validation accuracy, and what it gains over none."""
    rows, tests = rows_and_tests(runs, scale)
    header = ["form", "mean %", "variance", "worst 10th %", "against none, points", "p"]
    lines = [header]
    for name, row in rows.items():
        cells = [
            cell(row.estimate("train", "mean"), 100, 2),
            cell(row.estimate("train", "variance"), 1, 4),
            cell(row.estimate("train", "worst_tenth"), 100, 1),
        ]
        test = tests.get(name)
        against = [cell(test.difference, 100, 2), p_value(test.adjusted)] if test else ["", ""]
        lines.append([name, *cells, *against])
    return Conclusion("\n\n".join([table(lines), in_short(tests)]))


def rows_and_tests(
    runs: Sequence[Run], scale: Scale
) -> tuple[dict[str, Row], dict[str, PairedTest]]:
    """By form: what it comes to, and the test against none, corrected over all forms."""
    of_seeds = sorted({run.seed for run in runs})
    wanted = {
        name: [form.experiment(scale, seed) for seed in of_seeds] for name, form in FORMS.items()
    }
    found = by_name(runs, wanted)
    rows = {name: Row(name, {}, tuple(map(Entry, own))) for name, own in found.items()}
    seeds = {name: {run.seed for run in own} for name, own in found.items()}
    tests = {
        name: paired_test("train", rows[name], rows[plain])
        for name, plain in ((name, FORMS[name].plain) for name in rows)
        if name != plain and seeds[name] == seeds.get(plain)
    }
    adjusted = holm([test.p for test in tests.values()])
    return rows, {
        name: replace(test, adjusted=p)
        for (name, test), p in zip(tests.items(), adjusted, strict=True)
    }


def in_short(tests: Mapping[str, PairedTest]) -> str:
    """Which forms help and which hurt."""
    if not tests:
        return "Nothing to compare yet."
    apart = {name: test for name, test in tests.items() if told_apart(test, test.adjusted)}
    helps = [name for name, test in apart.items() if test.difference.value > 0]
    hurts = [name for name, test in apart.items() if test.difference.value < 0]
    said = [f"Of {len(tests)} forms, {len(helps)} gain significantly over none"]
    said += [f": {'; '.join(helps)}" if helps else "", f", and {len(hurts)} lose"]
    said += [f": {'; '.join(hurts)}" if hurts else "", "."]
    return "".join(said)


RECIPES = (
    Recipe(
        "calibration-forms",
        "Forms of calibration, by validation accuracy; CIFAR-10 under Dir(0.3)",
        experiments,
        conclude,
    ),
)
