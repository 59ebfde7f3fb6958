"""Training curves: what clients reported, round by round."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.errors import UserError
from calibre.methods.method import IMAGES
from calibre.report.events import RoundDone
from calibre.report.figures.style import TEXT, WIDTH, legend, mark, tidy
from calibre.report.rows import Row, arrange
from calibre.report.runs import Run

NOT_DRAWN = ("began", "seconds", IMAGES)  # how long a client worked, not what it learned
ACROSS = 3  # panels side by side
ALL_MARKED = 20  # rounds up to which each has a marker

ByRound = dict[int, float]  # by round


def curves(runs: Sequence[Run], floors: bool = True) -> Any:
    """A panel for each reported figure, the loss first; the mean of a round's clients and seeds.

    The band of a method is the range of its seeds; a single run's is that of its clients' middle
    half. Losses of unlike methods are unlike things: their levels say nothing of each other.
    """
    from matplotlib.figure import Figure

    every = arrange(runs, floors=False, comparable=False)
    rows = [row for row in every if any(entry.run.rounds for entry in row.entries)]
    names = _names(rows)
    if not names:
        raise UserError("figure curves: these runs have no rounds, so there is nothing to draw")
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(WIDTH, 1.9 * down + 0.7), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel, name in zip(panels, names, strict=False):
        for i, row in enumerate(rows):
            _draw(panel, row, name, *mark(i), alone=len(rows) == 1)
        tidy(panel)
        panel.set_title(name, fontsize=TEXT, loc="left")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.margins(y=0.12)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    for panel in panels[: len(names)][-across:]:  # the lowest of each column
        panel.set_xlabel("round", fontsize=TEXT)
    legend(figure, _handles(rows), [row.label for row in rows])
    return figure


def _names(rows: Sequence[Row]) -> list[str]:
    """The figures that clients report, the loss first, else in the order of their reports."""
    seen = dict.fromkeys(["loss"])
    for row in rows:
        for event in row.entries[0].run.rounds:
            for report in event.clients.values():
                seen |= dict.fromkeys(report)
    return [name for name in seen if name not in NOT_DRAWN and any(_of(r, name) for r in rows)]


def _of(row: Row, name: str) -> list[ByRound]:
    """A method's curve for every seed that has one."""
    curves = []
    for entry in row.entries:
        curve = {
            event.round: float(np.mean(values))
            for event in entry.run.rounds
            if (values := _values(event, name))
        }
        if curve:
            curves.append(curve)
    return curves


def _values(event: RoundDone, name: str) -> list[float]:
    reports = event.clients.values()
    return [float(report[name]) for report in reports if name in report]


def _draw(panel: Any, row: Row, name: str, colour: str, marker: str, alone: bool) -> None:
    curves = _of(row, name)
    if not curves:
        return
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    seeds = np.array([[curve[r] for r in rounds] for curve in curves])  # [S, R]
    band = (seeds.min(axis=0), seeds.max(axis=0))
    if alone and len(curves) == 1:
        band = _middle_half(row.entries[0].run, name)
    panel.fill_between(rounds, *band, color=colour, alpha=0.18, lw=0)
    panel.plot(
        rounds, seeds.mean(axis=0), color=colour, lw=1.1, marker=marker, ms=3.5, mec="white",
        mew=0.4, markevery=max(1, len(rounds) // ALL_MARKED),
    )  # fmt: skip


def _middle_half(run: Run, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    reported = [values for event in run.rounds if (values := _values(event, name))]
    quartiles = np.array([np.quantile(values, [0.25, 0.75]) for values in reported])
    return quartiles[:, 0], quartiles[:, 1]


def _handles(rows: Sequence[Row]) -> list[Any]:
    from matplotlib.lines import Line2D

    marks = [mark(i) for i in range(len(rows))]
    return [Line2D([], [], color=colour, marker=marker, ms=4) for colour, marker in marks]
