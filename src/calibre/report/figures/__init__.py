"""Pictures of finished runs, by name. Each is a function of the runs that returns a figure."""

from collections.abc import Sequence
from typing import Any

from calibre.report.runs import Run
from calibre.settings import look_up

FIGURES = {
    "mean-variance": "calibre.report.figures.mean_variance:mean_variance",
    "distributions": "calibre.report.figures.clients:distributions",
    "sorted": "calibre.report.figures.clients:ranked",
    "by-classes": "calibre.report.figures.clients:by_classes",
    "by-size": "calibre.report.figures.clients:by_size",
    "curves": "calibre.report.figures.curves:curves",
    "federation": "calibre.report.figures.holdings:of_runs",
}
TSNE = "tsne"  # the one figure that needs the images again: see calibre.finished.encodings


def compose(name: str, runs: Sequence[Run], floors: bool = True) -> Any:
    """The matplotlib ``Figure`` of that name; ``floors`` are drawn as methods where they fit in."""
    return look_up("figure", name, FIGURES)(runs, floors)
