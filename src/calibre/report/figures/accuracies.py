"""The picture of a run: every client's accuracy, so that nobody hides behind the mean."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibre.report.figures.style import WIDTH, in_percent, legend, save, tilt
from calibre.report.floors import FLOORS, title_of
from calibre.report.metrics import ClientResult, summary
from calibre.report.naming import short_name
from calibre.wording import percent

PERSONAL = "#00508f"
NAMED = 30  # up to so many clients the axis says who is who
LINKED = 200  # up to so many a line ties a client's markers together
NARROWEST = 0.2  # share of all clients below which a panel gets no narrower: its heading needs room


def accuracy_figure(rows: Sequence[ClientResult], folder: Path, title: str) -> list[Path]:
    """Draw accuracies.png and accuracies.svg: clients from worst to best, novel ones apart."""
    return save(compose(rows, title), folder / "accuracies")


def compose(rows: Sequence[ClientResult], title: str) -> Any:
    """The matplotlib ``Figure`` itself: a panel for each kind of client, as wide as it has many."""
    from matplotlib.figure import Figure

    groups = [[row for row in rows if row.novel == novel] for novel in (False, True)]
    groups = [sorted(group, key=lambda row: row.accuracy) for group in groups if group]
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(
        1,
        len(groups),
        sharey=True,
        squeeze=False,
        width_ratios=[max(len(group), NARROWEST * len(rows)) for group in groups],
    )[0]
    for panel, group in zip(panels, groups, strict=True):
        _draw_clients(panel, group, crowd=len(rows))
        _describe(panel, group, named=len(rows) <= NAMED)
    lowest = min(min([row.accuracy, *row.floors.values()]) for row in rows)
    panels[0].set_ylim(np.floor(lowest * 10) / 10 - 0.02, 1.02)
    in_percent(panels[0].yaxis)
    panels[0].set_ylabel("accuracy on its own test set", fontsize=9)
    figure.suptitle(title, fontsize=10, parse_math=False)  # a data set may be called "$5"
    _explain(figure, panels[0])
    return figure


def _draw_clients(panel: Any, group: list[ClientResult], crowd: int) -> None:
    """The markers of a group that is sorted by accuracy, as large as ``crowd`` clients allow."""
    rank = np.arange(1, len(group) + 1)
    style = {
        "s": float(np.clip((400 / crowd) ** 2, 2, 30)),  # square points
        "linewidths": 0.5 if crowd <= LINKED else 0,
        "edgecolors": "white",
        "rasterized": crowd > LINKED,  # or the SVG would weigh megabytes
    }
    scores = np.array([[row.accuracy, *row.floors.values()] for row in group])
    if crowd <= LINKED:
        panel.vlines(rank, scores.min(1), scores.max(1), color="0.8", lw=0.8, zorder=1)
    panel.scatter(rank, scores[:, 0], color=PERSONAL, label="personal model", zorder=4, **style)
    for name, floor in zip(group[0].floors, scores.T[1:], strict=True):
        _, marker, colour = FLOORS[name]
        label = title_of(name)
        panel.scatter(rank, floor, marker=marker, color=colour, label=label, zorder=2, **style)


def _describe(panel: Any, group: list[ClientResult], named: bool) -> None:
    """Mean, worst tenth, heading and axis of a group that is sorted by accuracy."""
    clients = len(group)
    figures = summary([row.accuracy for row in group])
    mean, worst = figures.measure("mean"), figures.measure("worst_tenth")
    left, right = 0.4 - 0.01 * clients, clients + 0.6 + 0.01 * clients
    panel.axhline(mean, color=PERSONAL, lw=1, ls=(0, (4, 2)), zorder=3, label="mean")
    panel.axvspan(left, -(-clients // 10) + 0.5, color="0.92", lw=0, zorder=0, label="worst tenth")
    panel.text(
        1.01, mean, percent(mean), color=PERSONAL, fontsize=8, va="center",
        transform=panel.get_yaxis_transform(),
    )  # fmt: skip
    kind = "novel" if group[0].novel else "training"
    heading = f"{clients:,} {kind} client{'s' * (clients > 1)}\nworst tenth {percent(worst)}"
    panel.set_title(heading, fontsize=9, loc="left")
    panel.set_xlabel("clients, worst to best", fontsize=8)
    panel.set_xlim(left, right)
    panel.tick_params(length=2, labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("0.6")
    if named:
        names = [short_name(row.id, row.name) for row in group]
        panel.set_xticks(range(1, clients + 1), names, fontsize=7)
        if max(map(len, names)) > 3:
            tilt(panel)
    else:
        panel.xaxis.get_major_locator().set_params(integer=True)


def _explain(figure: Any, panel: Any) -> None:
    """One legend for all panels; its markers are large however many clients there are."""
    shown = legend(figure, *panel.get_legend_handles_labels())
    for handle in shown.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([24])
