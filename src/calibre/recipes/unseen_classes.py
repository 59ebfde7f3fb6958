"""Classes that nobody trained on: does an encoder serve a client that holds only such?

Training clients hold seven of CIFAR-10's classes, novel clients the other three, with class mixes
from Dir(0.3) in both groups; the triples rotate. Supervised methods take part: their labels are of
the seven. Heads are solved for all alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from calibre.experiment import Experiment
from calibre.recipes.campaign import CALIBRATION, LABELS, NONE, SELF_SUPERVISED
from calibre.recipes.claims import LABELLED, OURS
from calibre.recipes.recipe import Conclusion, Recipe, table
from calibre.recipes.scales import Scale, experiment, method
from calibre.recipes.wide_table import in_words
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import cell
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run

TRIPLES = (
    ("airplane", "automobile", "bird"), ("cat", "deer", "dog"), ("frog", "horse", "ship"),
)  # fmt: skip
METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *SELF_SUPERVISED,
    *((name, NONE) for name in ("fedavg-ft", "fedper", "fedrep", "local", "pixels", "untrained")),
)
PAIRS = (
    *CALIBRATION, *LABELS, *product((OURS, LABELLED), ("FedAvg-FT", "local only")),
)  # fmt: skip


def plan(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    chosen = []
    for seed, triple, (name, changes) in product(seeds, TRIPLES, METHODS):
        sections = {
            "federation": {"novel_classes": triple},
            "personal": {"head": "solved", "clients": "novel"},
        }
        if scale == "paper":
            sections["federation"]["novel"] = 20  # as many as three classes have images for
        table = method(name, scale, **changes)
        chosen.append(experiment("cifar10", "dirichlet", scale, table, seed, changes=sections))
    return chosen


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """The mean of novel clients for each triple, over seeds, and over all."""
    held = runs_by_label(runs)
    rows = sorted((row_of(label, own) for label, own in held.items()), key=lambda row: -_mean(row))
    header = ["method", *("/".join(triple) for triple in TRIPLES), "all: mean %", "worst 10th %"]
    lines = [header]
    for row in rows:
        cells = []
        for triple in TRIPLES:
            own = [run for run in held[row.label] if _triple(run) == triple]
            cells.append(cell(row_of("", own).estimate("novel", "mean"), 100, 2) if own else "")
        cells.append(cell(row.estimate("novel", "mean"), 100, 2))
        cells.append(cell(row.estimate("novel", "worst_tenth"), 100, 1))
        lines.append([row.label, *cells])
    known = {row.label: row for row in rows}
    tests = [
        paired_test("novel", known[one], known[other])
        for one, other in PAIRS
        if one in known and other in known and _places(held[one]) == _places(held[other])
    ]
    return Conclusion(
        "\n\n".join([table(lines), "\n".join(f"- {said}." for said in in_words(tests))])
    )


def complete_rows(runs: Sequence[Run]) -> list[Row]:
    """Of the methods that were run for most seeds and triples."""
    held = runs_by_label(runs)
    most = max(map(len, held.values()))
    return [row_of(label, own) for label, own in held.items() if len(own) == most]


def runs_by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Of every method, by seed and triple."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.seed, _triple(run))):
        found.setdefault(run.label, []).append(run)
    return found


def row_of(label: str, runs: Sequence[Run]) -> Row:
    """All clients of a seed are one measurement: its triples share what seeds differ in."""
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    pooled = [
        replace(own[0], clients=tuple(chain.from_iterable(run.clients for run in own)))
        for own in by_seed.values()
    ]
    return Row(label, {}, tuple(map(Entry, pooled)))


def _triple(run: Run) -> tuple[str, ...]:
    return run.experiment.federation.novel_classes


def _places(runs: Sequence[Run]) -> list[tuple[int, tuple[str, ...]]]:
    return [(run.seed, _triple(run)) for run in runs]


def _mean(row: Row) -> float:
    estimate = row.estimate("novel", "mean")
    return estimate.value if estimate else 0.0


RECIPES = (
    Recipe(
        "novel-classes",
        "Personal models for three classes that nobody trained on; CIFAR-10 under Dir(0.3)",
        plan,
        conclude,
    ),
)
