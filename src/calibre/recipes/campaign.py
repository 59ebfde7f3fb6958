"""The comparisons that the project stands by: beyond the paper's settings, with solved heads.

On the CPU scale every client that trains holds 400 images, and 40 rounds of 5 clients look at
240,000 of them, 30 passes over what the clients hold; `larger-scale` looks at 500,000, 50 passes.
Supervised methods get the same rounds and epochs; Ditto and APFL train two models in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

from calibre.experiment import Experiment
from calibre.personal.ways import way_of
from calibre.recipes.claims import LABELLED, OURS, PLAIN_LABELLED, TWO, Claim
from calibre.recipes.figures34 import COMPARISONS, Panel
from calibre.recipes.recipe import Conclusion, Recipe, Verdict
from calibre.recipes.scales import LONGER, SOLVED, Scale, Scheme, experiment, method
from calibre.recipes.wide_table import Head, in_words, of_head, tests_of, told_apart, wide_table
from calibre.report import figures
from calibre.report.comparison_tables import PairedTest
from calibre.report.inference import holm
from calibre.report.metrics import Metrics
from calibre.report.rows import arrange
from calibre.report.runs import Run

WITH_LABELS = {"labels": {"weight": 1}}  # l_c
# and a second network, which goes over the labels as often as FedAvg-FT does
TWO_NETWORKS = {"labels": {"weight": 1, "second": 1}}
NONE: Mapping[str, Any] = MappingProxyType({})
SELF_SUPERVISED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("calibre/simclr", NONE), ("pfl-ssl/simclr", NONE),
    ("calibre/simclr", WITH_LABELS), ("pfl-ssl/simclr", WITH_LABELS),
)  # fmt: skip
SUPERVISED = (
    "fedavg-ft", "scaffold-ft", "fedper", "fedrep", "fedbabu", "ditto", "apfl", "lg-fedavg",
)  # fmt: skip
FLOORS = ("local", "pixels", "majority", "untrained")
FAR_BELOW = ("pixels", "majority")  # the others would crowd in a corner of a picture with them
METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *SELF_SUPERVISED, ("calibre/simclr", TWO_NETWORKS),
    *((name, NONE) for name in (*SUPERVISED, "fedema", *FLOORS)),
)  # fmt: skip
SCHEMES: dict[Scheme, str] = {
    "dirichlet": "Class mixes from Dir(0.3)", "quantity": "Two classes per client",
}  # fmt: skip
HEADS: dict[str, Head] = {"solved heads": "solved", "the paper's heads": "paper"}
FORMS = {"without labels in training": "", "with them": " with labels"}
CALIBRATION = (  # what the two terms and the weighting add
    (OURS, "pFL-SimCLR"), (LABELLED, PLAIN_LABELLED),
)  # fmt: skip
LABELS = (
    (LABELLED, OURS), (PLAIN_LABELLED, "pFL-SimCLR"), (TWO, LABELLED),
)  # fmt: skip


def main_experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """Solved heads first, then the paper's on the same training."""
    chosen = []
    for seed, scheme, (name, changes) in product(seeds, SCHEMES, METHODS):
        table = method(name, scale, **changes)
        solved = experiment("cifar10", scheme, scale, table, seed, changes=LONGER[scale])
        chosen.append(solved)
        way = way_of(solved.method, solved.personal)
        # the paper's heads look at one network: with two they are those of the first
        if way.head_alone and name not in FAR_BELOW and changes is not TWO_NETWORKS:
            heads = {"personal": {**LONGER[scale]["personal"], "head": "paper"}}
            changed = {**LONGER[scale], **heads}
            chosen.append(experiment("cifar10", scheme, scale, table, seed, changes=changed))
    return chosen


def conclude_main(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """Of each federation a table, a picture, the tests that matter and the paper's claims."""
    parts: list[str] = []
    pictures: dict[str, Callable[[], Any]] = {}
    for scheme, title in SCHEMES.items():
        own = [run for run in runs if run.experiment.federation.scheme == scheme]
        solved = of_head("solved", own)
        if not solved:
            continue
        rows = arrange(solved, floors=False)
        best = next((row.label for row in rows if not row.label.startswith("Calibre (")), None)
        against_best = [(name, best) for name in (TWO, LABELLED, OURS) if best]
        parts += [f"### {title}", wide_table(own), f"![mean against variance](picture:{scheme})"]
        tests = tests_of(rows, [*dict.fromkeys([*CALIBRATION, *LABELS, *against_best])])
        parts.append("\n".join(f"- {said}." for said in in_words(tests)))
        parts.append(claims_of(scheme, own))
        near = [run for run in solved if run.experiment.choice[0] not in FAR_BELOW]
        pictures[scheme] = partial(figures.compose, "mean-variance", near, False)
    return Conclusion("\n\n".join(part for part in parts if part), pictures)


def claims_of(scheme: Scheme, runs: Sequence[Run]) -> str:
    """The paper's claims on this federation, of Calibre without and with labels in training."""
    columns = " | ".join(f"{heads}, {form}" for heads, form in product(HEADS, FORMS))
    lines = [f"| the paper's claim | {columns} |", "|---" * (1 + len(HEADS) * len(FORMS)) + "|"]
    for claim in panel_of(scheme).claims:
        cells = [f"**{verdict}** ({said})" for verdict, said in verdicts_of(claim, runs)]
        lines.append(f"| {' | '.join([claim.text, *cells])} |")
    return "\n".join(lines)


def verdicts_of(claim: Claim, runs: Sequence[Run]) -> list[tuple[Verdict, str]]:
    """By both kinds of heads, each without and with labels in training."""
    return [
        replace(claim, of=claim.of + form).judge(by_method(of_head(head, runs)))
        for head, form in product(HEADS.values(), FORMS.values())
    ]


def panel_of(scheme: Scheme) -> Panel:
    """What the paper says of CIFAR-10 under this scheme."""
    name = {"quantity": "figure-3-cifar10", "dirichlet": "figure-4-cifar10"}[scheme]
    return next(panel for panel in COMPARISONS if panel.name == name)


def by_method(runs: Sequence[Run]) -> dict[str, list[Metrics]]:
    found: dict[str, list[Metrics]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault(run.label, []).append(run.metrics)
    return found


OBJECTIVES = ("simclr", "byol", "simsiam", "moco", "swav", "smog")
# patches and pixels may hide what an encoder gains: heads without them tell of it alone
ENCODER_ALONE: dict[str, Any] = {"personal": {**SOLVED["personal"], "features": "encoder"}}
PROBES: dict[Head, str] = {
    "solved": "heads on encoder, patches and pixels", "encoder": "heads on the encoder alone",
}  # fmt: skip


def objective_experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """All objectives, plain and calibrated, without labels in training; two heads on each."""
    return [
        experiment(
            "cifar10", "dirichlet", scale, method(f"{kind}/{name}", scale), seed, None, heads
        )
        for seed, name, kind, heads in product(
            seeds, OBJECTIVES, ("pfl-ssl", "calibre"), (SOLVED, ENCODER_ALONE)
        )
    ]


def conclude_objectives(runs: Sequence[Run], scale: Scale) -> Conclusion:
    parts = [wide_table(runs)]
    for head, title in PROBES.items():
        if tests := tests_of_calibration(of_head(head, runs)):
            said = "\n".join(f"- {words}." for words in in_words(tests))
            parts += [f"By {title}:", said, in_short(tests, title)]
    return Conclusion("\n\n".join(parts))


def tests_of_calibration(runs: Sequence[Run]) -> list[PairedTest]:
    """Of every objective, calibrated against plain; of runs of one kind of head."""
    rows = arrange(runs, floors=False) if runs else []
    plain = {row.label.removeprefix("pFL-") for row in rows if row.label.startswith("pFL-")}
    return tests_of(rows, [(f"Calibre ({name})", f"pFL-{name}") for name in sorted(plain)])


def in_short(tests: Sequence[PairedTest], heads: str) -> str:
    """In how many of the comparisons calibration gains or loses, corrected over all of them."""
    adjusted = holm([test.p for test in tests])
    apart = [test for test, p in zip(tests, adjusted, strict=True) if told_apart(test, p)]
    ahead = sum(test.difference.value > 0 for test in apart)
    return (
        f"Every objective calibrated, against plain, on trained and on novel clients, by {heads}: "
        f"ahead in {ahead} of {len(tests)} comparisons, behind in {len(apart) - ahead}."
    )


# ResNet-18 of width 16 on 500 images per client: what two cores do in some hours
LARGER: dict[str, dict[str, Any]] = {
    "federation": {"samples": 500},
    "network": {"encoder": "resnet18", "width": 16},
    "training": {"rounds": 100, "clients_per_round": 10, "epochs": 1},
    "personal": {"head": "solved"},
}
LARGER_METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("calibre/simclr", WITH_LABELS), ("fedavg-ft", NONE), ("fedper", NONE),
    ("calibre/simclr", NONE), ("pfl-ssl/simclr", NONE), ("calibre/simclr", TWO_NETWORKS),
)  # fmt: skip


def larger_experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """The main methods with more compute; at the paper's scale, its own."""
    changes = LARGER if scale == "cpu" else LONGER["paper"]
    return [
        experiment("cifar10", "dirichlet", scale, method(name, scale, **more), seed, None, changes)
        for seed, (name, more) in product(seeds, LARGER_METHODS)
    ]


def conclude_larger(runs: Sequence[Run], scale: Scale) -> Conclusion:
    rows = arrange(runs, floors=False)
    against = product((LABELLED, TWO), ("FedAvg-FT", "FedPer"))
    said = in_words(tests_of(rows, [*CALIBRATION, *LABELS, *against]))
    return Conclusion("\n\n".join([wide_table(runs), "\n".join(f"- {words}." for words in said)]))


RECIPES = (
    Recipe(
        "main-comparison",
        "All methods on CIFAR-10, Dir(0.3) and two classes per client, solved and paper's heads",
        main_experiments,
        conclude_main,
    ),
    Recipe(
        "objectives",
        "Six objectives, plain and calibrated, CIFAR-10 under Dir(0.3), solved heads",
        objective_experiments,
        conclude_objectives,
    ),
    Recipe(
        "larger-scale",
        "Six methods with ResNet-18 of width 16 and 100 rounds, CIFAR-10 under Dir(0.3)",
        larger_experiments,
        conclude_larger,
        seeds=1,
    ),
)
