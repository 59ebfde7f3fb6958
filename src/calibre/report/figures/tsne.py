"""Representations as t-SNE draws them, with figures below that say how clear the clusters are."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibre.report.figures.style import CROWD, SMALL, TEXT, WIDTH, mark
from calibre.report.naming import short_name
from calibre.report.representations import (
    NEIGHBOURS,
    Labels,
    Representations,
    Separation,
    clusters,
    flatten,
)

By = Literal["class", "client"]
ACROSS = 3  # panels side by side
NAMED = 20  # groups that a legend can hold
LETTERS = 24  # of a line of a title


@dataclass(frozen=True)
class View:
    """One panel: a method's images, what colours them, and how clear these groups are."""

    method: Representations
    by: By
    clusters: Separation

    @property
    def groups(self) -> Labels:
        return groups_of(self.method, self.by)


def groups_of(method: Representations, by: By) -> Labels:
    """What the images are coloured and measured by."""
    return method.classes if by == "class" else method.clients


def views(methods: Sequence[Representations], by: Sequence[By] = ("class", "client")) -> list[View]:
    """Every method by class, then every method by client, each with its measures."""
    return [
        View(method, kind, clusters(method.features, groups_of(method, kind)))
        for kind in by
        for method in methods
    ]


def tsne(drawn: Sequence[View]) -> Any:
    """The views of several methods below each other by what colours them; of one, side by side."""
    from matplotlib.figure import Figure

    kinds = len({view.by for view in drawn})
    methods = len(drawn) // kinds
    across = kinds if methods == 1 else min(ACROSS, methods)
    lines = -(-methods // across)  # of each kind
    down = 1 if methods == 1 else kinds * lines
    words = max(len(_title(view).splitlines()) for view in drawn) + 3  # lines above and below
    figure = Figure(figsize=(WIDTH, (2.3 + 0.16 * words) * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel in panels:
        panel.set_axis_off()  # until something is drawn
    pictures = {id(v.method): flatten(v.method.features) for v in drawn[:methods]}
    for i, view in enumerate(drawn):
        kind, column = divmod(i, methods)
        panel = panels[kind * (len(panels) // kinds) + column]
        _draw(panel, view, pictures[id(view.method)])
        if column == min(across, methods) - 1 and len(np.unique(view.groups)) <= NAMED:
            _name(panel)  # at the right edge
    return figure


def in_words(measured: Separation) -> list[str]:
    """The three figures; a dash for what could not be measured."""

    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    return [
        f"silhouette {figure(measured.silhouette)}",
        f"NMI {figure(measured.nmi)}, {NEIGHBOURS}-NN {figure(measured.neighbours)}",
    ]


def _title(view: View) -> str:
    return "\n".join([*textwrap.wrap(view.method.label, LETTERS), f"by {view.by}"])


def _draw(panel: Any, view: View, picture: Any) -> None:
    method, by, groups = view.method, view.by, view.groups
    names = np.unique(groups)
    panel.set_axis_on()
    for group in names:
        # by the number itself, so that a class looks the same for whoever holds it
        colour, marker = mark(int(group))
        label = method.class_names[group] if by == "class" else _called(method, int(group))
        panel.scatter(
            *picture[groups == group].T, s=7, color=colour, marker=marker, lw=0, alpha=0.8,
            label=label, rasterized=len(picture) > CROWD,
        )  # fmt: skip
    panel.set_xticks([])
    panel.set_yticks([])
    panel.set_box_aspect(1)
    panel.spines[:].set_color("0.8")
    panel.set_title(_title(view), fontsize=TEXT, parse_math=False)
    below = in_words(view.clusters)
    if len(names) > NAMED:
        below.append(f"{len(names)} {by if by == 'client' else 'classe'}s")
    panel.set_xlabel("\n".join(below), fontsize=SMALL)


def _called(method: Representations, client: int) -> str:
    name = short_name(client, method.client_names.get(client, f"client-{client}"))
    return f"client {name}" if name.isdecimal() else name


def _name(panel: Any) -> None:
    """A legend to the right of a panel."""
    legend = panel.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=SMALL, frameon=False,
        handletextpad=0.1, borderpad=0, labelspacing=0.3,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    for handle in legend.legend_handles:
        handle.set_sizes([16])
        handle.set_alpha(1)
