"""A picture of a federation: how many images of each class every client holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.federation import Federation, load
from calibre.data.parts import Floats, Ints
from calibre.errors import UserError
from calibre.report.figures.style import WIDTH, save
from calibre.report.runs import Run

COLUMNS = 400  # more clients than that share columns
IN_ORDER = 60  # up to so many clients are shown by id, more of them by their main class
NUMBERED = 30  # clients that an axis names
DIGITS = 90  # that fit side by side: up to there the cells show their number
LABELS = 50  # class names that fit one below the other


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


def compose(federation: Federation) -> Any:
    """The matplotlib ``Figure`` itself."""
    from matplotlib.figure import Figure

    clients, classes = len(federation), len(federation.classes)
    in_order = clients <= IN_ORDER
    per_column = -(-clients // COLUMNS)
    groups = [(federation.train_ids, "training"), (federation.novel_ids, "novel")]
    groups = [(ids, kind) for ids, kind in groups if ids]
    tables = [
        columns(federation.counts()[ids.start : ids.stop], in_order, per_column)
        for ids, _ in groups
    ]
    narrowest = 0.14 * sum(map(len, tables))  # a panel's title needs its room

    figure = Figure(
        figsize=(WIDTH, float(np.clip(0.3 * classes, 2, 9)) + 1.2), layout="constrained"
    )
    panels = figure.subplots(
        1,
        len(tables),
        sharey=True,
        squeeze=False,
        width_ratios=[max(len(table), narrowest) for table in tables],
    )[0]
    most = max(float(table.max()) for table in tables)
    for panel, table, (ids, kind) in zip(panels, tables, groups, strict=True):
        # one hue from white to dark reads the same with every kind of colour vision, and in print
        image = panel.imshow(
            table.T, aspect="auto", interpolation="none", cmap="Blues", vmin=0, vmax=most
        )
        panel.set_title(f"{len(ids)} {kind} clients", fontsize=9)
        panel.tick_params(length=0, labelsize=8)
        panel.spines[:].set_color("0.7")
        step = -(-len(ids) // NUMBERED)
        panel.set_xticks(*((range(0, len(ids), step), ids[::step]) if in_order else ([],)))
        if clients * len(f"{most:.0f}") <= DIGITS and classes <= LABELS:
            _write_numbers(panel, table, most)
    _name_classes(panels[0], federation.classes)
    order = "client" if in_order else "clients, in order of their main class"
    shared = f" ({per_column} to a column: their mean)" if per_column > 1 else ""
    figure.supxlabel(order + shared, fontsize=9)
    bar = figure.colorbar(image, ax=list(panels), pad=0.01, fraction=0.03)
    bar.set_label("training images", fontsize=9)
    bar.ax.tick_params(length=2, labelsize=8)
    bar.outline.set_edgecolor("0.7")
    return figure


def columns(counts: Ints, in_order: bool, per_column: int) -> Floats:
    """What to draw of ``counts`` [clients, classes]: [columns, classes].

    Unless they stay in order, clients are sorted by their main class; so many neighbours share a
    column, which shows their mean.
    """
    if not in_order:
        counts = counts[by_main_class(counts)]
    starts = np.arange(0, len(counts), per_column)
    sizes = np.diff(np.append(starts, len(counts)))
    mean: Floats = np.add.reduceat(counts, starts, axis=0) / sizes[:, None]
    return mean


def by_main_class(counts: Ints) -> Ints:
    """The order of clients by their main class, its share and the class that comes second."""
    share = (counts / counts.sum(1, keepdims=True)).round(2)
    first, second = np.argsort(-share, axis=1, kind="stable").T[[0, min(1, share.shape[1] - 1)]]
    return np.lexsort((second, -share.max(1), first))


def _write_numbers(panel: Any, table: Floats, most: float) -> None:
    for column, label in np.argwhere(table):
        number = table[column, label]
        colour = "white" if number > most / 2 else "0.25"
        panel.text(column, label, f"{number:g}", ha="center", va="center", size=7, color=colour)


def _name_classes(panel: Any, classes: tuple[str, ...]) -> None:
    step = -(-len(classes) // LABELS)
    shown = [name if len(name) <= 24 else name[:23] + "…" for name in classes[::step]]
    panel.set_yticks(range(0, len(classes), step), shown)
    for label in panel.get_yticklabels():
        label.set_parse_math(False)  # a class may be called "$5 to $10"
