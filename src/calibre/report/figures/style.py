"""What all pictures share: told apart in print and by every eye, the same file for the same data.

Matplotlib is imported inside functions: the command line must answer before it is loaded.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibre.files import write_atomic

WIDTH = 7.2  # inches: the text width of a two-column paper, so that points are points in print
SMALL, TEXT = 7, 8  # points; nothing is smaller
CROWD = 200  # markers from which a panel is drawn as pixels, or its SVG would weigh megabytes

# Okabe and Ito, without the yellow that vanishes on white, and more: where colours fail,
# unlike shapes help.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#000000", "#8C510A", "#999999", "#6A51A3", "#A50026",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")


def mark(i: int) -> tuple[str, str]:
    """The colour and the shape of the i-th of several things; no two alike among 99."""
    return COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]


def save(figure: Any, path_without_suffix: Path, dpi: int = 200) -> list[Path]:
    """Write the PNG and the SVG, whole or not at all; the same picture gives the same bytes."""
    path_without_suffix.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix in (".png", ".svg"):
        path = path_without_suffix.with_name(path_without_suffix.name + suffix)
        write_atomic(path, drawn_as(suffix[1:], figure, dpi))
        paths.append(path)
    return paths


def drawn_as(kind: str, figure: Any, dpi: int = 200) -> bytes:
    """A picture as a file of this kind, png or svg."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "calibre"}):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(content, format=kind, dpi=dpi, metadata=metadata)
    return content.getvalue()


def tidy(panel: Any) -> None:
    """Small ticks, no frame, plain words."""
    panel.tick_params(length=2, labelsize=SMALL)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("0.6")


def tilt(panel: Any) -> None:
    """Words below a panel that have no room side by side; a client may be called "$5"."""
    for label in panel.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor", parse_math=False)


def in_percent(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{round(100 * value, 2):g} %")


def legend(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> Any:
    """One legend below all panels, in as few lines as its words allow."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(size=TEXT)
    widest = max(TextPath((0, 0), label, prop=font).get_extents().width for label in labels)
    fit = max(1, int(72 * figure.get_figwidth() / (widest + 40)))  # a handle and two gaps
    lines = -(-len(labels) // fit)
    shown = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=-(-len(labels) // lines),
        fontsize=TEXT,
        frameon=False,
    )
    for text in shown.get_texts():
        text.set_parse_math(False)
    return shown
