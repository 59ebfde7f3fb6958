"""Pictures of finished runs, by name."""

from collections.abc import Sequence
from typing import Any

from calibre.registry import FIGURES
from calibre.report.runs import Run
from calibre.settings import look_up


def compose(name: str, runs: Sequence[Run], floors: bool = True) -> Any:
    """The matplotlib ``Figure`` of that name; ``floors`` are drawn as methods where they fit in."""
    return look_up("figure", name, FIGURES)(runs, floors)
