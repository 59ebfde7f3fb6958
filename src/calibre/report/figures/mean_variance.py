"""Mean against variance over methods: accurate is to the right, fair is at the bottom."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibre.report.figures.captions import label_points
from calibre.report.figures.style import TEXT, WIDTH, in_percent, mark, tidy
from calibre.report.metrics import Group, summary
from calibre.report.rows import KINDS, Row, arrange
from calibre.report.runs import Run

FEW = 8  # methods; the seeds of more would hide their means


def mean_variance(runs: Sequence[Run], floors: bool = True) -> Any:
    """A marker for every method; of few methods, their seeds as small ones tied to it."""
    from matplotlib.figure import Figure

    rows = arrange(runs, floors)
    groups = [group for group in KINDS if rows[0].estimate(group, "mean")]
    figure = Figure(figsize=(WIDTH, 3.6))
    # fixed places instead of a layout that moves: labels are placed by where points lie
    panels = figure.subplots(
        1,
        len(groups),
        squeeze=False,
        gridspec_kw={"left": 0.09, "right": 0.97, "bottom": 0.13, "top": 0.91, "wspace": 0.24},
    )[0]
    for panel, group in zip(panels, groups, strict=True):
        _draw(panel, rows, group)
        clients = len(rows[0].entries[0].accuracies(group))
        seeds = len(rows[0].entries)
        over = f", {seeds} seeds" if seeds > 1 else ""
        panel.set_title(f"{clients:,} {KINDS[group]} clients{over}", fontsize=TEXT, loc="left")
        panel.set_xlabel("mean accuracy (better to the right)", fontsize=TEXT)
    panels[0].set_ylabel("variance between clients (fairer below)", fontsize=TEXT)
    return figure


def _draw(panel: Any, rows: Sequence[Row], group: Group) -> None:
    points, every = [], []
    for i, row in enumerate(rows):
        colour, marker = mark(i)
        figures = [summary(entry.accuracies(group)) for entry in row.entries]
        seeds = np.array([[each.mean, each.variance] for each in figures], float)  # [S, 2]
        x, y = seeds.mean(axis=0)
        if len(seeds) == 1 or len(rows) > FEW:
            every.append(np.array([[x, y]]))
        else:
            every.append(seeds)
            for seed in seeds:
                panel.plot(*zip((x, y), seed, strict=True), color=colour, lw=0.5, alpha=0.5)
            panel.scatter(*seeds.T, s=4, color=colour, alpha=0.5, linewidths=0)
        panel.scatter(x, y, s=30, color=colour, marker=marker, zorder=3, lw=0.5, ec="white")
        points.append((float(x), float(y)))
    tidy(panel)
    seen = np.concatenate(every)
    low, high = seen.min(axis=0), seen.max(axis=0)
    room = np.maximum((high - low) * 0.14, [0.01, 0.0005])
    panel.set_xlim(low[0] - room[0], high[0] + room[0])
    panel.set_ylim(max(low[1] - room[1], -0.04 * high[1]), high[1] + room[1])
    in_percent(panel.xaxis)
    panel.locator_params(axis="y", nbins=6)
    labels, colours = [row.label for row in rows], [mark(i)[0] for i in range(len(rows))]
    label_points(panel, points, labels, colours, others=seen)
