"""Accuracy and fairness against how many labels a client has."""

from collections.abc import Mapping
from typing import Any

from calibre.report.figures.style import TEXT, WIDTH, in_percent, legend, mark, tidy
from calibre.report.rows import KINDS, Row

MEASURES = {"mean": "mean accuracy", "worst_tenth": "worst tenth", "variance": "variance"}
Budgets = Mapping[str, Mapping[int, Row]]  # by its name: what so many labels come to


def label_budgets(series: Budgets) -> Any:
    """A line for each series: a row of panels for trained clients, and one for novel ones.

    Bands are intervals over seeds. Budgets are spaced by their logarithm.
    """
    from matplotlib.figure import Figure

    rows = [row for by_budget in series.values() for row in by_budget.values()]
    groups = [group for group in KINDS if any(row.estimate(group, "mean") for row in rows)]
    figure = Figure(figsize=(WIDTH, 2.1 * len(groups) + 0.9), layout="constrained")
    panels = figure.subplots(len(groups), len(MEASURES), squeeze=False)
    handles: dict[str, Any] = {}
    for group, line in zip(groups, panels, strict=True):
        for (measure, title), panel in zip(MEASURES.items(), line, strict=True):
            for i, (name, by_budget) in enumerate(series.items()):
                points = [
                    (budget, estimate)
                    for budget, row in sorted(by_budget.items())
                    if (estimate := row.estimate(group, measure)) is not None
                ]
                if not points:
                    continue
                budgets, found = zip(*points, strict=True)
                colour, marker = mark(i)
                values = [estimate.value for estimate in found]
                (handles[name],) = panel.plot(
                    budgets, values, color=colour, marker=marker, ms=3.5, lw=1
                )
                halves = [estimate.half or 0.0 for estimate in found]
                # neither an accuracy nor a variance of accuracies is below 0 or above 1
                low = [max(0.0, value - half) for value, half in zip(values, halves, strict=True)]
                high = [min(1.0, value + half) for value, half in zip(values, halves, strict=True)]
                panel.fill_between(budgets, low, high, color=colour, alpha=0.1, lw=0)
            _dress(panel, f"{KINDS[group]} clients: {title}", measure, rows, series)
    for panel in panels[-1]:
        panel.set_xlabel("labels per client", fontsize=TEXT)
    legend(figure, list(handles.values()), list(handles))
    return figure


def _dress(panel: Any, title: str, measure: str, rows: list[Row], series: Budgets) -> None:
    budgets = sorted({budget for by_budget in series.values() for budget in by_budget})
    panel.set_xscale("log")
    panel.set_xticks(budgets, [str(budget) for budget in budgets])
    panel.minorticks_off()
    panel.set_title(title, fontsize=TEXT, loc="left")
    tidy(panel)
    if measure != "variance":
        in_percent(panel.yaxis)
