"""Table I: the two regularisers on and off, under SimCLR, SwAV and SMoG, on CIFAR-10 (2, 500)."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from calibre.experiment import Experiment
from calibre.recipes.recipe import Conclusion, Recipe, Verdict
from calibre.recipes.scales import Scale, experiment, method
from calibre.recipes.wide_table import in_words
from calibre.report.compare import paired_test
from calibre.report.inference import half_interval
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run

OBJECTIVES = {"simclr": "SimCLR", "swav": "SwAV", "smog": "SMoG"}
ALPHA = 0.3  # of a regulariser that is on
TERMS = {(False, False): "none", (False, True): "L_p", (True, False): "L_n", (True, True): "both"}
Cell = tuple[str, str]  # an objective, which terms are on

PAPER: dict[Cell, tuple[float, float]] = {  # mean, and std over clients
    ("simclr", "none"): (54.67, 14.32), ("simclr", "L_p"): (73.58, 10.13),
    ("simclr", "L_n"): (81.07, 12.92), ("simclr", "both"): (89.16, 10.58),
    ("swav", "none"): (85.03, 15.1), ("swav", "L_p"): (84.76, 12.5),
    ("swav", "L_n"): (79.31, 15.73), ("swav", "both"): (81.42, 11.93),
    ("smog", "none"): (86.19, 11.32), ("smog", "L_p"): (87.23, 10.9),
    ("smog", "L_n"): (77.31, 13.24), ("smog", "both"): (80.07, 11.2),
}  # fmt: skip


# ways to measure the twelve cells; the second needs no training of its own
FORMS = {
    "paper": "As in the paper: its heads, no label in training",
    "solved": "Solved heads, no label in training",
    "labels": "Solved heads, labels in training (l_c)",
}


def experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    """Twelve cells a seed in each form, all weighted by divergence: only the loss terms differ.

    And the plain objectives without that weighting, to see what it does alone.
    """
    chosen = []

    def add(objective: str, seed: int, head: str, **changes: Mapping[str, float]) -> None:
        table = method(f"calibre/{objective}", scale, **changes)
        heads = {"personal": {"head": head}}
        chosen.append(experiment("cifar10", "quantity", scale, table, seed, changes=heads))

    for seed, objective, (l_n, l_p) in product(seeds, OBJECTIVES, TERMS):
        weights = {"alpha_n": ALPHA * l_n, "alpha_p": ALPHA * l_p}
        add(objective, seed, "paper", prototypes=weights)
        add(objective, seed, "solved", prototypes=weights)
        add(objective, seed, "solved", prototypes=weights, labels={"weight": 1})
        if not (l_n or l_p):
            add(objective, seed, "solved", prototypes=weights, aggregation={"gamma": 0})
    return chosen


def cell(experiment: Experiment) -> Cell:
    values = experiment.method.model_dump()
    weights = values["prototypes"]
    return values["objective"]["name"], TERMS[weights["alpha_n"] > 0, weights["alpha_p"] > 0]


def form(experiment: Experiment) -> str | None:
    """Which of FORMS a run is for; None: it is without weighting."""
    values = experiment.method.model_dump()
    if values["aggregation"]["gamma"] == 0:
        return None
    return "labels" if values["labels"]["weight"] else experiment.personal.head


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """A table in each form, beside the paper's, with q1 to q3; then the weighting alone."""
    parts = []
    for name, title in FORMS.items():
        if own := [run for run in runs if form(run.experiment) == name]:
            parts += [f"**{title}**", _table(own), _told_apart(own)]
    weighting = [f"- {words}." for words in _weighting(runs)]
    if weighting:
        parts += ["**Weighting by divergence alone, against none** (solved heads)"]
        parts += ["\n".join(weighting)]
    return Conclusion("\n\n".join(part for part in parts if part))


def _table(runs: Sequence[Run]) -> str:
    """The 4 x 3 table of mean and std over training clients beside the paper's, and q1 to q3."""
    means, stds = _measured(runs)
    lines = [
        "| terms | " + " | ".join(f"{title} | paper" for title in OBJECTIVES.values()) + " |",
        "|" + "---|" * (1 + 2 * len(OBJECTIVES)),
    ]
    for terms in TERMS.values():
        cells = []
        for objective in OBJECTIVES:
            key = (objective, terms)
            over_seeds = [statistics.mean(table[key]) for table in (means, stds) if key in table]
            cells.append(" ± ".join(f"{value:.2f}" for value in over_seeds))
            cells.append("{:.2f} ± {:.2f}".format(*PAPER[key]))
        lines.append(f"| {terms} | {' | '.join(cells)} |")
    seeds = len({run.seed for run in runs})
    lines += [
        "",
        f"Mean ± std over training clients, each the mean of {seeds} seed{'s' * (seeds > 1)}.",
        "",
        *(f"- {claim}: **{verdict}** ({detail})" for claim, verdict, detail in claims(means, stds)),
    ]
    return "\n".join(lines)


def _measured(
    runs: Sequence[Run],
) -> tuple[dict[Cell, list[float]], dict[Cell, list[float]]]:
    """Mean and std over training clients in percent, of every cell and seed."""
    means: dict[Cell, list[float]] = {}
    stds: dict[Cell, list[float]] = {}
    for run in runs:
        key, group = cell(run.experiment), run.metrics.train
        means.setdefault(key, []).append(100 * group.measure("mean"))
        stds.setdefault(key, []).append(100 * group.measure("std"))
    return means, stds


def _told_apart(runs: Sequence[Run]) -> str:
    """Which terms change an objective's accuracy, by tests over clients; of runs of one form."""
    rows = {
        key: Row(f"{OBJECTIVES[key[0]]} with {key[1]}", {}, tuple(map(Entry, own)))
        for key in PAPER
        if (own := [run for run in runs if cell(run.experiment) == key])
    }
    pairs = [((x, terms), (x, "none")) for x in OBJECTIVES for terms in ("L_p", "L_n", "both")]
    tests = [
        paired_test("train", rows[one], rows[other])
        for one, other in pairs
        if one in rows and other in rows and len(rows[one].entries) == len(rows[other].entries)
    ]
    if not tests:
        return ""
    sure = [f"- {words}." for words in in_words(tests, only_sure=True)]
    count = f"In {len(sure)} of {len(tests)}" if sure else f"In none of {len(tests)}"
    said = f"{count} paired tests over clients one term or both are told apart from none (Holm)"
    return "\n".join([f"{said}{':' if sure else '.'}", *([""] if sure else []), *sure])


def claims_of(runs: Sequence[Run]) -> list[tuple[str, Verdict, str]]:
    """q1 to q3, of runs of one form."""
    return claims(*_measured(runs))


def _weighting(runs: Sequence[Run]) -> list[str]:
    """For each objective without terms: weighted by divergence, against FedAvg's weights."""
    tests = []
    for objective, title in OBJECTIVES.items():
        own = [run for run in runs if cell(run.experiment) == (objective, "none")]
        weighted = [run for run in own if form(run.experiment) == "solved"]
        equal = [run for run in own if form(run.experiment) is None]
        if weighted and len(weighted) == len(equal):
            rows = [Row(name, {}, tuple(Entry(run) for run in some)) for name, some in (
                (f"{title} weighted by divergence", weighted), (f"{title} weighted by size", equal),
            )]  # fmt: skip
            tests.append(paired_test("train", *rows))
    return in_words(tests)


def claims(
    means: Mapping[Cell, Sequence[float]], stds: Mapping[Cell, Sequence[float]]
) -> list[tuple[str, Verdict, str]]:
    """q1 to q3 of Table I, by the sign of every difference in every seed."""
    order = ("both", "L_n", "L_p", "none")
    q1 = [(("simclr", above), ("simclr", below)) for above, below in pairwise(order)]
    with_l_p = (("none", "L_p"), ("L_n", "both"))
    q2 = [((x, without), (x, with_)) for x in OBJECTIVES for without, with_ in with_l_p]
    with_l_n = (("none", "L_n"), ("L_p", "both"))
    q3 = [((x, without), (x, with_)) for x in ("swav", "smog") for without, with_ in with_l_n]
    return [
        ("q1: SimCLR's mean rises from no term to L_p, to L_n, to both", *_judge(means, q1)),
        ("q2: L_p lowers the std of every objective", *_judge(stds, q2)),
        ("q3: L_n lowers the mean of SwAV and SMoG", *_judge(means, q3)),
    ]


def _judge(
    values: Mapping[Cell, Sequence[float]], pairs: Sequence[tuple[Cell, Cell]]
) -> tuple[Verdict, str]:
    """Whether the first of each pair is above the second: open is what other seeds may decide."""
    if not all(cell in values for pair in pairs for cell in pair):
        return "not comparable at this scale", "some of its runs are missing"
    gaps = [[a - b for a, b in zip(values[x], values[y], strict=True)] for x, y in pairs]
    means = [statistics.mean(gap) for gap in gaps]
    halves = [half_interval(gap) for gap in gaps]
    apart = [
        mean if half is not None and abs(mean) > half else 0.0
        for mean, half in zip(means, halves, strict=True)
    ]
    as_said, otherwise = sum(mean > 0 for mean in apart), sum(mean < 0 for mean in apart)
    verdict: Verdict = "not reproduced" if otherwise else "open"
    if as_said == len(pairs):
        verdict = "reproduced"
    detail = f"{sum(mean > 0 for mean in means)} of {len(pairs)} signs as in the paper"
    if None not in halves:
        detail += f"; beyond the interval over seeds {as_said} as there and {otherwise} otherwise"
    return verdict, detail


RECIPES = (
    Recipe(
        "table-1",
        "Table I: L_n and L_p on and off under SimCLR, SwAV and SMoG, CIFAR-10, Q-non-iid",
        experiments,
        conclude,
    ),
)
