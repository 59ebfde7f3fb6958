"""Every client under every method: how accuracies spread, rank, and follow what a client holds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.report.figures.style import CROWD, TEXT, WIDTH, in_percent, legend, mark, tidy
from calibre.report.metrics import ClientResult, Group
from calibre.report.rows import KINDS, Row, arrange
from calibre.report.runs import Run

BINS = 8  # of a figure that takes more values than that
Values = npt.NDArray[np.float64]


def distributions(runs: Sequence[Run], floors: bool = True) -> Any:
    """A box and a dot for every client, method by method; trained and novel clients apart."""
    rows = arrange(runs, floors)
    figure, panels, groups = _panels(rows, height=1.1 + 0.36 * len(rows), sharex=True)
    places = np.arange(len(rows))[::-1]  # the best on top
    for panel, group in zip(panels, groups, strict=True):
        for place, row, i in zip(places, rows, range(len(rows)), strict=True):
            _spread(panel, _accuracies(row, group), float(place), mark(i)[0])
        panel.set_ylim(-0.6, len(rows) - 0.4)
        panel.set_xlabel("accuracy of a client", fontsize=TEXT)
        panel.grid(axis="x", color="0.9", lw=0.6)
        in_percent(panel.xaxis)
    panels[0].set_yticks(places, [row.label for row in rows], fontsize=TEXT)
    for label in panels[0].get_yticklabels():
        label.set_parse_math(False)
    return figure


def _spread(panel: Any, values: Values, place: float, colour: str) -> None:
    """Quartiles as a box, the mean as a diamond, clients as dots on a fixed zigzag."""
    panel.boxplot(
        values,
        positions=[place],
        orientation="horizontal",
        widths=0.56,
        whis=(0, 100),
        manage_ticks=False,
        showmeans=True,
        patch_artist=True,
        boxprops={"facecolor": "none", "edgecolor": "0.35", "lw": 0.8},
        whiskerprops={"color": "0.35", "lw": 0.8},
        capprops={"color": "0.35", "lw": 0.8},
        medianprops={"color": "black", "lw": 1.2},
        meanprops={"marker": "D", "ms": 4, "mfc": "white", "mec": "black", "mew": 0.8},
        zorder=2,
    )
    zigzag = 0.2 * (((np.arange(len(values)) * 0.618034) % 1) - 0.5) * 2  # golden: evenly spread
    panel.scatter(
        np.sort(values), place + zigzag, s=float(np.clip(1500 / len(values), 1.5, 12)), lw=0,
        color=colour, alpha=0.75, zorder=1, rasterized=len(values) > CROWD,
    )  # fmt: skip


def ranked(runs: Sequence[Run], floors: bool = True) -> Any:
    """Clients from worst to best, each method in its own order, all methods over each other."""
    rows = arrange(runs, floors)
    figure, panels, groups = _panels(rows, height=3.4)
    handles: list[Any] = []
    for panel, group in zip(panels, groups, strict=True):
        handles = []
        for i, row in enumerate(rows):
            values = np.sort(_accuracies(row, group))
            share = (np.arange(len(values)) + 0.5) / len(values)
            colour, marker = mark(i)
            every = max(1, len(values) // 12)
            offset = i * every // len(rows)  # so that markers of near lines stand apart
            handles += panel.plot(
                share, values, color=colour, lw=1.1, marker=marker, ms=4, mec="white", mew=0.4,
                markevery=(offset, every),
            )  # fmt: skip
        panel.set_xlabel("clients, from worst to best", fontsize=TEXT)
        in_percent(panel.xaxis)
        in_percent(panel.yaxis)
    panels[0].set_ylabel("accuracy", fontsize=TEXT)
    legend(figure, handles, [row.label for row in rows])
    return figure


def by_classes(runs: Sequence[Run], floors: bool = True) -> Any:
    """Accuracy against how many classes a client holds."""
    return _against(arrange(runs, floors), lambda client: client.classes, "classes of a client")


def by_size(runs: Sequence[Run], floors: bool = True) -> Any:
    """Accuracy against how many images a client trains on, labelled or not."""
    return _against(
        arrange(runs, floors),
        lambda client: client.samples + client.unlabelled,
        "training images of a client",
    )


def _against(rows: Sequence[Row], value: Callable[[ClientResult], int], title: str) -> Any:
    """A dot for every client, and a line through the means of clients that are alike."""
    figure, panels, groups = _panels(rows, height=3.4)
    handles: list[Any] = []
    for panel, group in zip(panels, groups, strict=True):
        clients = [
            client
            for entry in rows[0].entries
            for client in entry.run.clients
            if client.novel == (group == "novel")
        ]
        x = np.array([value(client) for client in clients], float)
        bins = _bins(x)
        step = min(np.diff(np.unique(x)), default=1.0) if len(np.unique(x)) <= BINS else 0.0
        handles = []
        for i, row in enumerate(rows):
            y = _accuracies(row, group)
            colour, marker = mark(i)
            aside = step * 0.5 * ((i + 0.5) / len(rows) - 0.5)  # methods side by side
            panel.scatter(
                x + aside, y, s=7, color=colour, alpha=0.35, lw=0, rasterized=len(x) > CROWD
            )
            middle = [x[bins == b].mean() + aside for b in np.unique(bins)]
            mean = [y[bins == b].mean() for b in np.unique(bins)]
            handles += panel.plot(
                middle, mean, color=colour, lw=1.1, marker=marker, ms=5, mec="white", mew=0.4
            )
        panel.set_xlabel(title, fontsize=TEXT)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if len(np.unique(x)) == 1:
            panel.set_xlim(x[0] - 1, x[0] + 1)
        in_percent(panel.yaxis)
    panels[0].set_ylabel("accuracy (line: mean)", fontsize=TEXT)
    legend(figure, handles, [row.label for row in rows])
    return figure


def _bins(x: Values) -> npt.NDArray[np.int64]:
    """Which clients are alike: of the same value, or of the same part of all if values abound."""
    values = np.unique(x)
    if len(values) <= 2 * BINS:
        return np.searchsorted(values, x)
    edges = np.quantile(x, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, x, side="right")


def _accuracies(row: Row, group: Group) -> Values:
    """Of all clients of all seeds."""
    return np.concatenate([entry.accuracies(group) for entry in row.entries])


def _panels(
    rows: Sequence[Row], height: float, sharex: bool = False
) -> tuple[Any, Any, list[Group]]:
    """A figure with a titled panel for each group of clients that there is."""
    from matplotlib.figure import Figure

    groups = [group for group in KINDS if rows[0].estimate(group, "mean")]
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, len(groups), sharex=sharex, sharey=True, squeeze=False)[0]
    seeds = len(rows[0].entries)
    for panel, group in zip(panels, groups, strict=True):
        tidy(panel)
        clients = len(rows[0].entries[0].accuracies(group))
        of = f" of each of {seeds} seeds" if seeds > 1 else ""
        panel.set_title(f"{clients:,} {KINDS[group]} clients{of}", fontsize=TEXT, loc="left")
    return figure, panels, groups
