"""A picture of a federation: who holds how many images of each class, and to what end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.federation import Federation, load
from calibre.data.parts import Floats, Ints
from calibre.errors import UserError
from calibre.report.figures.style import WIDTH, save, tilt
from calibre.report.naming import short_name
from calibre.report.runs import Run

COLUMNS = 400  # more clients than that share columns
IN_ORDER = 60  # up to so many clients are shown by id, more of them by their main class
NUMBERED = 30  # clients that an axis names
DIGITS = 90  # that fit side by side: up to there the cells show their number
LABELS = 50  # class names that fit one below the other
TOTALS = ("labelled", "unlabelled", "test")


def draw(federation: Federation, path_without_suffix: Path) -> list[Path]:
    """Draw classes by clients, novel clients apart; return the PNG and the SVG."""
    return save(compose(federation), path_without_suffix)


def of_runs(runs: Sequence[Run], floors: bool = True) -> Any:
    """The federation that these runs share."""
    if len({run.federation for run in runs}) > 1:
        raise UserError(
            "figure federation: these runs are on several federations; give runs of one seed"
        )
    return compose(load(runs[0].folder))


@dataclass(frozen=True)
class ClientPanel:
    """Clients that are shown side by side, a column each or several to a column."""

    ids: range
    kind: str
    by_class: Floats  # [columns, classes]
    in_all: Floats  # [columns, 3], as TOTALS names them


def compose(federation: Federation) -> Any:
    """The matplotlib ``Figure`` itself: classes by clients, and below how many images in all."""
    from matplotlib.figure import Figure

    clients, classes = len(federation), len(federation.classes)
    in_order = clients <= IN_ORDER
    per_column = -(-clients // COLUMNS)
    shown = _panels(federation, in_order, per_column)
    narrowest = 0.14 * sum(len(panel.by_class) for panel in shown)  # a title needs its room
    names = _names(federation) if in_order else []
    tilted = max(map(len, names), default=0) > 3
    room = 0.06 * max(map(len, names)) if tilted else 0.0

    high = float(np.clip(0.3 * classes, 2, 9))
    figure = Figure(figsize=(WIDTH, high + 0.9 + 1.2 + room), layout="constrained")
    axes = figure.subplots(
        2,
        len(shown),
        sharex="col",
        sharey="row",
        squeeze=False,
        width_ratios=[max(len(panel.by_class), narrowest) for panel in shown],
        height_ratios=[high, 0.9],
    )
    most = max(float(panel.by_class.max()) for panel in shown)
    most_in_all = float(totals(federation).max())
    digits = clients * len(f"{max(most, most_in_all):.0f}") <= DIGITS and classes <= LABELS
    for (above, below), panel in zip(axes.T, shown, strict=True):
        image = _paint(above, below, panel, most, most_in_all)
        step = -(-len(panel.ids) // NUMBERED)
        numbered = range(0, len(panel.ids), step) if in_order else range(0)
        below.set_xticks(numbered, [names[panel.ids.start + i] for i in numbered])
        if tilted:
            tilt(below)
        if digits:
            _write_numbers(above, panel.by_class, most / 2)
            _write_numbers(below, panel.in_all, math.inf)
    _name_classes(axes[0][0], federation.classes)
    axes[1][0].set_yticks(range(len(TOTALS)), TOTALS)
    order_said = "client" if in_order else "clients, in order of their main class"
    shared = f" ({per_column} to a column: their mean)" if per_column > 1 else ""
    figure.supxlabel(order_said + shared, fontsize=9)
    _explain_colours(figure.colorbar(image, ax=list(axes[0]), pad=0.01, fraction=0.03))
    return figure


def _panels(federation: Federation, in_order: bool, per_column: int) -> list[ClientPanel]:
    """Training clients, and novel ones if there are some."""
    made = []
    for ids, kind in ((federation.train_ids, "training"), (federation.novel_ids, "novel")):
        if ids:
            own = federation.counts()[ids.start : ids.stop]
            order = np.arange(len(ids)) if in_order else by_main_class(own)
            in_all = means_in_order(totals(federation)[ids.start : ids.stop], order, per_column)
            made.append(ClientPanel(ids, kind, columns(own, in_order, per_column), in_all))
    return made


def _paint(above: Any, below: Any, panel: ClientPanel, most: float, most_in_all: float) -> Any:
    """Cells, the darker the more; one hue reads the same with every colour vision, and in print."""
    plain = {"aspect": "auto", "interpolation": "none", "vmin": 0}
    image = above.imshow(panel.by_class.T, cmap="Blues", vmax=most, **plain)
    below.imshow(panel.in_all.T, cmap="Greys", vmax=3 * most_in_all, **plain)
    count = len(panel.ids)
    above.set_title(f"{count} {panel.kind} client{'s' * (count > 1)}", fontsize=9)
    for each in (above, below):
        each.tick_params(length=0, labelsize=8)
        each.spines[:].set_color("0.7")
    return image


def _explain_colours(bar: Any) -> None:
    bar.set_label("training images", fontsize=9)
    bar.ax.tick_params(length=2, labelsize=8)
    bar.outline.set_edgecolor("0.7")


def totals(federation: Federation) -> Ints:
    """Every client's images in all, by what they are for: [C, 3], as TOTALS names them."""
    parts = (federation.labelled, federation.unlabelled, federation.test)
    return np.stack([part.sizes for part in parts], axis=1)


def _names(federation: Federation) -> list[str]:
    every = map(federation.client, range(len(federation)))
    return [short_name(client.id, client.name) for client in every]


def columns(counts: Ints, in_order: bool, per_column: int) -> Floats:
    """What to draw of ``counts`` [clients, classes]: [columns, classes].

    Unless they stay in order, clients are sorted by their main class; so many neighbours share a
    column, which shows their mean.
    """
    order = np.arange(len(counts)) if in_order else by_main_class(counts)
    return means_in_order(counts, order, per_column)


def means_in_order(values: Ints, order: Ints, per_column: int) -> Floats:
    """The means of so many clients each, taken in an order."""
    starts = np.arange(0, len(values), per_column)
    sizes = np.diff(np.append(starts, len(values)))
    mean: Floats = np.add.reduceat(values[order], starts, axis=0) / sizes[:, None]
    return mean


def by_main_class(counts: Ints) -> Ints:
    """The order of clients by their main class, its share and the class that comes second."""
    share = (counts / counts.sum(1, keepdims=True)).round(2)
    first, second = np.argsort(-share, axis=1, kind="stable").T[[0, min(1, share.shape[1] - 1)]]
    return np.lexsort((second, -share.max(1), first))


def _write_numbers(panel: Any, table: Floats, dark: float) -> None:
    """In cells that are not empty; white where they are beyond ``dark``."""
    for column, label in np.argwhere(table):
        number = table[column, label]
        colour = "white" if number > dark else "0.25"
        panel.text(column, label, f"{number:g}", ha="center", va="center", size=7, color=colour)


def _name_classes(panel: Any, classes: tuple[str, ...]) -> None:
    step = -(-len(classes) // LABELS)
    shown = [name if len(name) <= 24 else name[:23] + "…" for name in classes[::step]]
    panel.set_yticks(range(0, len(classes), step), shown)
    for label in panel.get_yticklabels():
        label.set_parse_math(False)  # a class may be called "$5 to $10"
