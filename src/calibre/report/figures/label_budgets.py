"""Accuracy and fairness against how many labels a client has."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from calibre.report.compare import paired_test
from calibre.report.figures.style import TEXT, WIDTH, in_percent, legend, mark, tidy
from calibre.report.metrics import Group
from calibre.report.rows import KINDS, Estimate, Row
from calibre.wording import percent

Budgets = Mapping[str, Mapping[int, Row]]  # by its name: what so many labels come to
APART = 1.05  # factor between the bars of two series, so that they do not lie over each other


class Column(NamedTuple):
    """What a column of panels shows: of trained clients above, of novel ones below."""

    title: str
    of: Callable[[Group, int, Row], Estimate | None]
    dress: Callable[[Any], None] = lambda panel: in_percent(panel.yaxis)
    bars: bool = False  # whether its intervals are drawn


MEAN = Column("mean accuracy", lambda group, _, row: row.estimate(group, "mean"))
WORST = Column("worst tenth", lambda group, _, row: row.estimate(group, "worst_tenth"))


def label_budgets(series: Budgets) -> Any:
    """Mean, worst tenth and variance, a line for each series.

    Intervals over seeds are left to tables. They are wide because seeds have unlike clients, which
    all series share: drawn here, they would cover each other and tell nobody apart.
    """
    return _drawn(
        series,
        MEAN,
        WORST,
        Column("variance", lambda group, _, row: row.estimate(group, "variance"), tidy),
    )


def lead_over(reference: str, series: Budgets) -> Any:
    """Mean, by how much it is above that of one series on the same clients, and worst tenth.

    The bars are intervals of the difference over seeds.
    """

    def lead(group: Group, budget: int, row: Row) -> Estimate | None:
        other = series[reference].get(budget)
        if other is None or row is other or row.estimate(group, "mean") is None:
            return None
        return paired_test(group, row, other).difference

    return _drawn(
        series,
        MEAN,
        Column(f"points above {reference}", lead, _points_around_zero, bars=True),
        WORST,
    )


def _points_around_zero(panel: Any) -> None:
    panel.axhline(0, color="0.6", lw=0.8, zorder=0)
    panel.yaxis.set_major_formatter(lambda value, _: percent(value, 0).removesuffix(" %"))


def _drawn(series: Budgets, *columns: Column) -> Any:
    """Budgets are spaced by their logarithm."""
    from matplotlib.figure import Figure

    rows = [row for by_budget in series.values() for row in by_budget.values()]
    groups = [group for group in KINDS if any(row.estimate(group, "mean") for row in rows)]
    figure = Figure(figsize=(WIDTH, 2.1 * len(groups) + 0.9), layout="constrained")
    panels = figure.subplots(len(groups), len(columns), squeeze=False)
    handles: dict[str, Any] = {}
    for group, line in zip(groups, panels, strict=True):
        for column, panel in zip(columns, line, strict=True):
            for i, (name, by_budget) in enumerate(series.items()):
                apart = APART ** (i - (len(series) - 1) / 2) if column.bars else 1
                points = [
                    (apart * budget, estimate)
                    for budget, row in sorted(by_budget.items())
                    if (estimate := column.of(group, budget, row)) is not None
                ]
                if points:
                    handles[name] = _line(panel, i, points, column.bars)
            _dress(panel, f"{KINDS[group]}: {column.title}", column, series)
    for panel in panels[-1]:
        panel.set_xlabel("labels per client", fontsize=TEXT)
    legend(figure, list(handles.values()), list(handles))
    return figure


def _line(panel: Any, i: int, points: list[tuple[float, Estimate]], bars: bool) -> Any:
    budgets, found = zip(*points, strict=True)
    colour, marker = mark(i)
    values = [estimate.value for estimate in found]
    (handle,) = panel.plot(budgets, values, color=colour, marker=marker, ms=3.5, lw=1)
    if bars:
        halves = [estimate.half or 0.0 for estimate in found]
        panel.errorbar(budgets, values, halves, color=colour, fmt="none", elinewidth=0.7)
    return handle


def _dress(panel: Any, title: str, column: Column, series: Budgets) -> None:
    budgets = sorted({budget for by_budget in series.values() for budget in by_budget})
    panel.set_xscale("log")
    panel.set_xticks(budgets, [str(budget) for budget in budgets])
    panel.minorticks_off()
    panel.set_title(title, fontsize=TEXT, loc="left")
    tidy(panel)
    column.dress(panel)
