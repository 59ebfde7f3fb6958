"""Methods beside each other on one page: by several kinds of heads, from the same training."""

from collections.abc import Sequence
from itertools import chain, product
from typing import Literal

from calibre.recipes.recipe import table
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import PairedTest, cell, p_value
from calibre.report.inference import holm
from calibre.report.metrics import Group
from calibre.report.rows import KINDS, Row, arrange, mean_of
from calibre.report.runs import Run

HEADER = (
    "method", "trained: mean %", "variance", "worst 10th %", "novel: mean %", "variance",
    "worst 10th %",
)  # fmt: skip
Head = Literal["solved", "encoder", "paper"]  # encoder: solved, on the encoder alone
BESIDE: dict[Head, tuple[str, str]] = {  # the columns of other heads
    "encoder": ("by the encoder alone: trained", "novel"),
    "paper": ("paper's head: trained", "novel"),
}
SURE = 0.05  # p below which a difference is called one


def wide_table(runs: Sequence[Run]) -> str:
    """One line per method, the best mean of trained clients by any head first, as Markdown."""
    rows = arrange(of_head("solved", runs), floors=False)
    others = {head: own for head in BESIDE if (own := of_head(head, runs))}
    beside = [{row.label: row for row in arrange(own, floors=False)} for own in others.values()]
    by_label = {row.label: [row, *(o[row.label] for o in beside if row.label in o)] for row in rows}
    rows.sort(key=lambda row: -max(mean_of(own, "train") for own in by_label[row.label]))
    header = [*HEADER, *chain.from_iterable(BESIDE[head] for head in others), "passes"]
    lines = [header]
    for row in rows:
        cells = [row.label]
        for group in KINDS:
            cells.append(cell(row.estimate(group, "mean"), 100, 2))
            cells.append(cell(row.estimate(group, "variance"), 1, 4))
            cells.append(cell(row.estimate(group, "worst_tenth"), 100, 1))
        for other, group in product((rows.get(row.label) for rows in beside), KINDS):
            cells.append(cell(other.estimate(group, "mean"), 100, 2) if other else "")
        lines.append([*cells, passes(row)])
    return table(lines)


def head_of(run: Run) -> Head:
    """Which kind of head its clients have."""
    if run.experiment.personal.head == "paper":
        return "paper"
    return "encoder" if run.experiment.personal.features == "encoder" else "solved"


def of_head(head: Head, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if head_of(run) == head]


def passes(row: Row) -> str:
    """How often training looked at each image of the clients that train, on average."""
    looks = row.cost("images")
    held = [
        sum(c.samples + c.unlabelled for c in entry.run.clients if not c.novel)
        for entry in row.entries
    ]
    return f"{looks / (sum(held) / len(held)):.0f}" if looks and all(held) else "0"


def told_apart(test: PairedTest, p: float) -> bool:
    """Whether two methods differ, by the corrected p over clients and by the interval over seeds.

    The clients of a seed share an encoder, so a test over clients alone would find differences that
    other seeds do not show. One seed tells nothing of others.
    """
    value, half = test.difference
    return p < SURE and test.seeds > 1 and half is not None and abs(value) > half


def in_words(tests: Sequence[PairedTest], only_sure: bool = False) -> list[str]:
    """Every test as a sentence, or those that tell two methods apart, corrected over all tests."""
    adjusted = holm([test.p for test in tests])
    return [
        _sentence(test, p)
        for test, p in zip(tests, adjusted, strict=True)
        if told_apart(test, p) or not only_sure
    ]


def _sentence(test: PairedTest, p: float) -> str:
    sure = f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"
    value, half = 100 * test.difference.value, test.difference.half
    interval = "" if half is None else f" ± {100 * half:.2f}"
    kind = KINDS[test.group]
    if told_apart(test, p):
        ahead, behind = (test.one, test.other) if value > 0 else (test.other, test.one)
        return (
            f"**{ahead} is ahead of {behind}** on {kind} clients by {abs(value):.2f}{interval} "
            f"points ({sure})"
        )
    but = ", on these clients, but other seeds may say otherwise" if p < SURE else ""
    return (
        f"{test.one} and {test.other} are not told apart on {kind} clients "
        f"({value:+.2f}{interval} points, {sure}{but})"
    )


def tests_of(rows: Sequence[Row], pairs: Sequence[tuple[str, str]]) -> list[PairedTest]:
    """Of pairs of labels, on both kinds of clients; pairs that were not run are left out."""
    known = {row.label: row for row in rows}
    groups: list[Group] = [group for group in KINDS if rows and rows[0].estimate(group, "mean")]
    return [
        paired_test(group, known[one], known[other])
        for one, other in pairs
        if one in known and other in known
        for group in groups
    ]
