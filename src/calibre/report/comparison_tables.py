"""A comparison as a table: for the screen, for Markdown, LaTeX, spreadsheets and programs."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from calibre.report.metrics import MEASURES, Group
from calibre.report.rows import KINDS, Estimate, Row

# of a figure: its key, title, scale and digits
OF_CLIENTS = (
    ("mean", "mean %", 100, 2),
    ("variance", "variance", 1, 4),
    ("std", "std %", 100, 2),
    ("worst_tenth", "worst 10th %", 100, 2),
    ("min", "min %", 100, 2),
)
OF_RUNS = (("seconds", "seconds", 1, 0), ("bytes_up", "kB sent", 1e-3, 1))
COSTS = ("seconds", "failures", "bytes_up", "bytes_down")
HEADER = ["clients", "method", *(title for _, title, _, _ in (*OF_CLIENTS, *OF_RUNS))]
TEST_HEADER = ["clients", "method", "against", "difference, points", "pairs", "p", "p (Holm)"]
LEFT = {"clients", "method", "against"}  # columns of words

Lines = list[list[str]]


@dataclass(frozen=True)
class PairedTest:
    """Do clients fare otherwise under one method than under the other?"""

    group: Group
    one: str
    other: str
    pairs: int
    seeds: int  # that these are of
    difference: Estimate  # mean accuracy under ``one`` minus that under ``other``
    p: float
    adjusted: float  # by Holm, over all tests of the group


@dataclass(frozen=True)
class Comparison:
    """All that the tables show, in whatever form they are written."""

    rows: tuple[Row, ...]  # the best mean of trained clients first
    tests: tuple[PairedTest, ...]
    notes: tuple[str, ...]  # what a reader must know

    def __str__(self) -> str:
        return markdown(self)

    @property
    def seeds(self) -> list[int]:
        return [entry.run.seed for entry in self.rows[0].entries]

    @property
    def groups(self) -> list[Group]:
        """Trained and novel clients, where there are any."""
        return [group for group in KINDS if self.rows[0].estimate(group, "mean")]


def lines(comparison: Comparison) -> list[Lines]:
    """The cells of the table, one block for each group of clients.

    What a run costs does not depend on who is looked at: it stands in the first block.
    """
    return [
        [_line(row, group, costs=i == 0) for row in comparison.rows]
        for i, group in enumerate(comparison.groups)
    ]


def test_lines(comparison: Comparison) -> list[Lines]:
    """The cells of the tests, one block for each group of clients that has any."""
    blocks = [
        [_test_line(test) for test in comparison.tests if test.group == group]
        for group in comparison.groups
    ]
    return [block for block in blocks if block]


def _line(row: Row, group: Group, costs: bool) -> list[str]:
    clients = len(row.entries[0].accuracies(group))
    figures = [
        cell(row.estimate(group, key), scale, digits) for key, _, scale, digits in OF_CLIENTS
    ]
    spent = [
        f"{cost * scale:,.{digits}f}" if costs and (cost := row.cost(key)) is not None else ""
        for key, _, scale, digits in OF_RUNS
    ]
    return [f"{clients} {KINDS[group]}", row.label, *figures, *spent]


def _test_line(test: PairedTest) -> list[str]:
    return [
        KINDS[test.group], test.one, test.other, cell(test.difference, 100, 2),
        f"{test.pairs:,}", p_value(test.p), p_value(test.adjusted),
    ]  # fmt: skip


def cell(estimate: Estimate | None, scale: float, digits: int) -> str:
    """A mean, and half its interval where there is one."""
    if estimate is None:
        return ""
    spread = "" if estimate.half is None else f" ± {estimate.half * scale:.{digits}f}"
    return f"{estimate.value * scale:.{digits}f}{spread}"


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def screen(comparison: Comparison) -> list[Any]:
    """Rich tables: the methods, and the tests if there are any."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    tables = []
    for header, blocks in ((HEADER, lines(comparison)), (TEST_HEADER, test_lines(comparison))):
        table = Table(box=box.SIMPLE_HEAD)
        for title in header:
            table.add_column(
                title, justify="left" if title in LEFT else "right", no_wrap=title in LEFT
            )
        for block in blocks:
            for i, (who, *cells) in enumerate(block):
                table.add_row("" if i else who, *map(escape, cells))
            table.add_section()
        if blocks:
            tables.append(table)
    return tables


def markdown(comparison: Comparison) -> str:
    """Two tables and the notes."""
    parts = [
        _markdown_table(HEADER, lines(comparison)),
        _markdown_table(TEST_HEADER, test_lines(comparison)),
        "\n".join(f"- {_markdown_words(note)}" for note in comparison.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(header: Sequence[str], blocks: list[Lines]) -> str:
    if not blocks:
        return ""
    rule = ["---" if title in LEFT else "---:" for title in header]
    rows = [header, rule, *([_markdown_words(c) for c in line] for b in blocks for line in b)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown_words(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "\n": " ",
}  # fmt: skip


def latex(comparison: Comparison) -> str:
    """Two floats in the style of booktabs; the first one's caption holds the notes."""
    caption = " ".join(f"{note[0].upper()}{note[1:]}." for note in comparison.notes)
    parts = [
        "% \\usepackage{booktabs}",
        _latex_table(HEADER, lines(comparison), f"Accuracy over clients. {caption}"),
        _latex_table(TEST_HEADER, test_lines(comparison), "Paired tests on clients' accuracy."),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _latex_table(header: Sequence[str], blocks: list[Lines], caption: str) -> str:
    if not blocks:
        return ""
    columns = "".join("l" if title in LEFT else "r" for title in header)
    body = [
        [_latex_row(["" if i else who, *cells]) for i, (who, *cells) in enumerate(block)]
        for block in blocks
    ]
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering\small",
            rf"\caption{{{_latex_words(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(header),
            r"\midrule",
            "\n\\midrule\n".join("\n".join(block) for block in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
        ]
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_words, cells)) + r" \\"


def _latex_words(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def table_csv(comparison: Comparison) -> str:
    """One line per method and group of clients; figures as they are, an empty cell for none."""
    bounds = [name for measure in MEASURES for name in (measure, f"{measure}_half_interval")]
    table: list[list[Any]] = [["clients", "number", "method", "seeds", *bounds, *COSTS]]
    for group in comparison.groups:
        for row in comparison.rows:
            number = len(row.entries[0].accuracies(group))
            estimates = [row.estimate(group, measure) or (None, None) for measure in MEASURES]
            figures = [value for estimate in estimates for value in estimate]
            costs = [row.cost(key) for key in COSTS]
            table.append([KINDS[group], number, row.label, len(row.entries), *figures, *costs])
    return _csv(table)


def tests_csv(comparison: Comparison) -> str:
    """One line per test."""
    table: list[list[Any]] = [
        ["clients", "one", "other", "pairs", "difference", "half_interval", "p", "p_holm"]
    ]
    for test in comparison.tests:
        table.append(
            [KINDS[test.group], test.one, test.other, test.pairs, *test.difference, test.p,
             test.adjusted]
        )  # fmt: skip
    return _csv(table)


def _csv(table: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()


def as_json(comparison: Comparison) -> str:
    """Everything, by name."""
    methods = [
        {
            "method": row.label,
            "runs": [str(entry.run.folder) for entry in row.entries],
            "floor": not row.measured,
            **{key: row.cost(key) for key in COSTS},
            **{group: _json_figures(row, group) for group in comparison.groups},
        }
        for row in comparison.rows
    ]
    tests = [
        {
            "clients": test.group,
            "one": test.one,
            "other": test.other,
            "pairs": test.pairs,
            "difference": test.difference._asdict(),
            "p": test.p,
            "p_holm": test.adjusted,
        }
        for test in comparison.tests
    ]
    facts = {
        "seeds": comparison.seeds,
        "federations": [entry.run.federation for entry in comparison.rows[0].entries],
        "methods": methods,
        "tests": tests,
        "notes": comparison.notes,
    }
    return json.dumps(facts, indent=2) + "\n"


def _json_figures(row: Row, group: Group) -> dict[str, Any]:
    estimates = {measure: row.estimate(group, measure) for measure in MEASURES}
    return {measure: estimate and estimate._asdict() for measure, estimate in estimates.items()}


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "csv": table_csv,
    "latex": latex,
    "json": as_json,
}
SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
