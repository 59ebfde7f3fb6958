"""What labels are worth: accuracy and fairness against how many of them a client has.

Methods that train without labels are trained once; their encoder then says which images are worth a
label (``typical``), or they are drawn at random. Methods that need labels in training get as many,
drawn at random: the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

from calibre.experiment import Experiment
from calibre.recipes.campaign import NONE, TWO_NETWORKS, WITH_LABELS
from calibre.recipes.claims import LABELLED, OURS, PLAIN_LABELLED, TWO
from calibre.recipes.recipe import Conclusion, Recipe, table
from calibre.recipes.scales import LONGER, Scale, experiment, method
from calibre.recipes.wide_table import told_apart
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import PairedTest, cell
from calibre.report.figures.label_budgets import label_budgets
from calibre.report.inference import holm
from calibre.report.metrics import Group
from calibre.report.rows import KINDS, Entry, Row
from calibre.report.runs import Run

Choice = Literal["random", "typical"]
Named = tuple[str, Mapping[str, Any]]  # a method, and how it differs from the recipes' usual one
TYPICAL = ", typical labels"
MEASURES = {"mean": ("mean %", 100, 1), "worst_tenth": ("worst tenth, %", 100, 1),
            "variance": ("variance", 1, 4)}  # fmt: skip


@dataclass(frozen=True)
class LabelBudget:
    """Some methods with few labels, and with more."""

    name: str
    title: str
    budgets: tuple[int | None, ...]  # None: all
    free: tuple[Named, ...]  # trained without labels, or not at all
    chosen: tuple[str, ...]  # of these, those whose encoder can choose what to label
    needing: tuple[Named, ...]  # that need labels in training
    pairs: tuple[tuple[str, str], ...]  # to be told apart, by the names of their series
    clients: Literal["all", "novel"] = "all"  # who has labels at all

    def recipe(self) -> Recipe:
        return Recipe(self.name, self.title, self.experiments, self.conclude)

    def experiments(self, scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
        chosen: list[Experiment] = []
        for seed, budget in product(seeds, self.budgets):
            for name, changes in self.free:
                choices: list[Choice] = ["random"]
                if budget is not None and name in self.chosen:
                    choices.append("typical")
                table = method(name, scale, **changes)
                chosen += [self._free(table, scale, seed, budget, choice) for choice in choices]
            for name, changes in self.needing:
                table = method(name, scale, **changes)
                labels = {"federation": {"label_count": budget} if budget else {}}
                chosen.append(build(table, scale, seed, labels))
        return chosen

    def _free(
        self, table: Mapping[str, Any], scale: Scale, seed: int, budget: int | None, choice: Choice
    ) -> Experiment:
        personal = {"labels": budget, "label_choice": choice, "clients": self.clients}
        return build(table, scale, seed, {"personal": personal})

    def conclude(self, runs: Sequence[Run], scale: Scale) -> Conclusion:
        """Tables, the picture, and who is ahead of whom with how many labels."""
        series = series_of(runs)
        if not has_curve(series):
            return Conclusion("So far of one number of labels alone: that makes no curve.")
        groups: list[Group] = ["train", "novel"] if self.clients == "all" else ["novel"]
        parts = [table_of(series, group, measure) for group in groups for measure in MEASURES]
        parts.append("![against labels per client](picture:curve)")
        if self.clients == "all":
            parts.append(looks(series))
        found = leads(series, self.pairs, groups)
        parts.append("\n".join(f"- {lead.sentence}." for lead in found))
        return Conclusion("\n\n".join(parts), {"curve": lambda: label_budgets(series)})


def build(
    table: Mapping[str, Any], scale: Scale, seed: int, more: Mapping[str, Mapping[str, Any]]
) -> Experiment:
    """A run of these curves, with ``more`` changes by section."""
    sections = LONGER[scale].keys() | more.keys()
    changes = {name: {**LONGER[scale].get(name, {}), **more.get(name, {})} for name in sections}
    return experiment("cifar10", "dirichlet", scale, table, seed, changes=changes)


def budget_of(run: Run) -> int:
    """Labels per client; all of them are as many as the clients hold."""
    e = run.experiment
    return e.personal.labels or e.federation.label_count or max(c.samples for c in run.clients)


def series_of(runs: Sequence[Run]) -> dict[str, dict[int, Row]]:
    """By method and choice: what each number of labels comes to, over seeds.

    With all labels there is nothing to choose: that run is of both series.
    """
    found: dict[str, dict[int, list[Run]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        own = TYPICAL if run.experiment.personal.label_choice == "typical" else ""
        found.setdefault(run.label + own, {}).setdefault(budget_of(run), []).append(run)
    for name, by_budget in found.items():
        if name.endswith(TYPICAL):
            most = found.get(name.removesuffix(TYPICAL), {})
            whole = [b for b, held in most.items() if held[0].experiment.personal.labels is None]
            by_budget |= {budget: most[budget] for budget in whole}
    return {
        name: {budget: Row(name, {}, tuple(map(Entry, held))) for budget, held in by_budget.items()}
        for name, by_budget in found.items()
    }


def has_curve(series: Mapping[str, Mapping[int, Row]]) -> bool:
    """Whether there is more than one number of labels."""
    return len({budget for by_budget in series.values() for budget in by_budget}) > 1


def table_of(series: Mapping[str, Mapping[int, Row]], group: Group, measure: str) -> str:
    """One line per series, one column per number of labels, as Markdown."""
    title, scale, digits = MEASURES[measure]
    budgets = sorted({budget for by_budget in series.values() for budget in by_budget})
    head = [f"{KINDS[group]} clients: {title}", *(f"{budget} labels" for budget in budgets)]
    lines = [head]
    for name, by_budget in series.items():
        found = [by_budget[b].estimate(group, measure) if b in by_budget else None for b in budgets]
        lines.append([name, *(cell(estimate, scale, digits) for estimate in found)])
    return table(lines)


def looks(series: Mapping[str, Mapping[int, Row]]) -> str:
    """How many images training looked at, of all clients together, as Markdown."""
    budgets = sorted({budget for by_budget in series.values() for budget in by_budget})
    header = ["images looked at, in thousands", *(f"{budget} labels" for budget in budgets)]
    lines = [header]
    for name, by_budget in series.items():
        seen = [by_budget[b].cost("images") if b in by_budget else None for b in budgets]
        lines.append([name, *("" if count is None else f"{count / 1000:,.0f}" for count in seen)])
    return table(lines)


class Lead(NamedTuple):
    """With how many labels one method is ahead of another."""

    one: str
    other: str
    group: Group
    words: str

    @property
    def sentence(self) -> str:
        return f"{self.one} against {self.other}, {KINDS[self.group]} clients: {self.words}"


def leads(
    series: Mapping[str, Mapping[int, Row]],
    pairs: Sequence[tuple[str, str]],
    groups: Sequence[Group],
) -> list[Lead]:
    """Of each pair: with how many labels which one is ahead, corrected over all of these tests."""
    tests: dict[tuple[str, str, Group], dict[int, PairedTest]] = {}
    for (one, other), group in product(pairs, groups):
        both = sorted(series.get(one, {}).keys() & series.get(other, {}).keys())
        paired = [b for b in both if _alike(series[one][b], series[other][b])]
        if paired:
            tests[one, other, group] = {
                b: paired_test(group, series[one][b], series[other][b]) for b in paired
            }
    every = [(key, b) for key, by_budget in tests.items() for b in by_budget]
    adjusted = dict(zip(every, holm([tests[key][b].p for key, b in every]), strict=True))
    said = []
    for (one, other, group), by_budget in tests.items():
        ahead: list[int] = []
        behind: list[int] = []
        open_: list[int] = []
        for b, test in by_budget.items():
            apart = told_apart(test, adjusted[(one, other, group), b])
            value = test.difference.value
            (open_ if not apart else ahead if value > 0 else behind).append(b)
        words = [
            f"{word} with {_listed(found)} labels"
            for word, found in (
                ("ahead", ahead), ("not told apart", open_), ("behind", behind),
            )
            if found
        ]  # fmt: skip
        crossing = _crossing({b: test.difference.value for b, test in by_budget.items()})
        said.append(Lead(one, other, group, "; ".join(words) + crossing))
    return said


def _alike(one: Row, other: Row) -> bool:
    """Whether both are of the same clients, and not of the same runs."""
    clients = [
        [
            (e.run.seed, [(c.id, c.samples + c.unlabelled, c.test_samples) for c in e.run.clients])
            for e in row.entries
        ]
        for row in (one, other)
    ]
    return clients[0] == clients[1] and one.entries[0].run is not other.entries[0].run


def _crossing(differences: Mapping[int, float]) -> str:
    """Between which budgets the means change places."""
    order = sorted(differences)
    signs = {b: differences[b] > 0 for b in order}
    changes = [f"{a} and {b}" for a, b in pairwise(order) if signs[a] != signs[b]]
    return f" (the means cross between {', and between '.join(changes)})" if changes else ""


def _listed(budgets: Sequence[int]) -> str:
    words = [str(budget) for budget in budgets]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


FREE: tuple[Named, ...] = (("calibre/simclr", NONE), ("pfl-ssl/simclr", NONE), ("pixels", NONE))
BUDGETS = (
    LabelBudget(
        "label-budget",
        "Labels per client: who is best with few, who with many; CIFAR-10 under Dir(0.3)",
        (5, 10, 20, 40, 80, None),
        FREE,
        ("calibre/simclr", "pfl-ssl/simclr", "pixels"),
        (
            ("calibre/simclr", WITH_LABELS),
            ("pfl-ssl/simclr", WITH_LABELS),
            ("calibre/simclr", TWO_NETWORKS),
            *((name, NONE) for name in ("fedavg-ft", "fedper", "local")),
        ),
        (
            (f"{OURS}{TYPICAL}", OURS),
            (f"pFL-SimCLR{TYPICAL}", "pFL-SimCLR"),
            (OURS, "pFL-SimCLR"),
            (LABELLED, PLAIN_LABELLED),
            (LABELLED, OURS),
            (TWO, LABELLED),
            *product((f"{OURS}{TYPICAL}", LABELLED, TWO), ("FedAvg-FT", "FedPer")),
            (f"{OURS}{TYPICAL}", "local only"),
            (f"{OURS}{TYPICAL}", f"own pixels{TYPICAL}"),
        ),
    ),
    LabelBudget(
        "labels-at-novel",
        "No label anywhere in training, labels only at novel clients; CIFAR-10 under Dir(0.3)",
        (10, 40, None),
        (*FREE, ("fedema", NONE), ("local", NONE), ("untrained", NONE), ("majority", NONE)),
        ("calibre/simclr", "pfl-ssl/simclr"),
        (),
        (
            (f"{OURS}{TYPICAL}", OURS),
            (OURS, "pFL-SimCLR"),
            *product((OURS,), ("local only", "own pixels", "untrained encoder")),
        ),
        clients="novel",
    ),
)
RECIPES = tuple(budget.recipe() for budget in BUDGETS)
