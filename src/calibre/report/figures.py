"""The picture of a run: every client's accuracy, so that nobody hides behind the mean."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibre.report.metrics import ClientResult, summary

# Blue, orange and grey of unlike lightness and shape: told apart in print and by every eye.
PERSONAL = "#0060a8"
FLOORS = {
    "untrained": ("untrained encoder", "^", "#a8a8a8"),
    "local": ("local only", "s", "#f0a860"),
}
NAMED = 40  # up to so many clients the axis shows who is who
LINKED = 200  # up to so many a line ties a client's markers together
NARROWEST = 0.28  # share of the width that a panel needs for its heading


def accuracy_figure(rows: Sequence[ClientResult], folder: Path, title: str) -> list[Path]:
    """Draw accuracies.png and accuracies.svg: clients from worst to best, novel ones apart."""
    import matplotlib
    from matplotlib.figure import Figure

    groups = [[row for row in rows if row.novel == novel] for novel in (False, True)]
    groups = [sorted(group, key=lambda row: row.accuracy) for group in groups if group]
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    panels = figure.subplots(
        1,
        len(groups),
        sharey=True,
        squeeze=False,
        width_ratios=[max(len(group), NARROWEST * len(rows)) for group in groups],
    )[0]
    for panel, group in zip(panels, groups, strict=True):
        _draw_group(panel, group, named=len(rows) <= NAMED)
    _scale(panels[0], rows)
    figure.suptitle(title, fontsize=10, parse_math=False)
    figure.supxlabel("clients, from the least to the most accurate", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False
    )

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "accuracies.png", folder / "accuracies.svg"]
    with matplotlib.rc_context({"svg.hashsalt": "calibre"}):  # the same picture, the same file
        figure.savefig(paths[0], dpi=200)
        figure.savefig(paths[1], dpi=200, metadata={"Date": None})
    return paths


def _draw_group(panel: Any, group: list[ClientResult], named: bool) -> None:
    """One panel; ``group`` is sorted by accuracy."""
    figures = summary([row.accuracy for row in group])
    mean, worst = figures["mean"], figures["worst_tenth"]
    rank = np.arange(len(group))
    personal = np.array([row.accuracy for row in group])
    area = float(np.clip(3000 / len(group), 3, 30))  # of a marker, in square points

    panel.axvspan(-0.5, -(-len(group) // 10) - 0.5, color="0.92", lw=0, label="worst tenth")
    panel.axhline(mean, color=PERSONAL, lw=1, ls=(0, (4, 2)), label="mean", zorder=1.5)
    if len(group) <= LINKED:
        every = np.array([[row.accuracy, *row.floors.values()] for row in group])
        panel.vlines(rank, every.min(1), every.max(1), color="0.8", lw=0.8, zorder=1)
    crowd = dict(linewidths=0, rasterized=len(group) > LINKED)  # a light SVG for many clients
    for name in group[0].floors:
        label, marker, colour = FLOORS[name]
        floor = [row.floors[name] for row in group]
        panel.scatter(
            rank, floor, s=area / 2, marker=marker, color=colour, label=label, zorder=2, **crowd
        )
    panel.scatter(rank, personal, s=area, color=PERSONAL, label="personal model", zorder=3, **crowd)

    kind = "novel" if group[0].novel else "training"
    panel.set_title(
        f"{len(group):,} {kind} clients\nmean {mean:.1%}, worst tenth {worst:.1%}",
        fontsize=9,
        loc="left",
    )
    panel.set_xlim(-0.5, len(group) - 0.5)
    panel.tick_params(length=2, labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("0.6")
    if named:
        panel.set_xticks(rank, [str(row.id) for row in group])


def _scale(panel: Any, rows: Sequence[ClientResult]) -> None:
    lowest = min(value for row in rows for value in (row.accuracy, *row.floors.values()))
    panel.set_ylim(max(0.0, np.floor(lowest * 10) / 10) - 0.02, 1.02)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.set_ylabel("accuracy on the client's own test set", fontsize=9)
