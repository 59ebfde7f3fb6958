"""What Calibre itself has written into a folder of images: runs and bundles are no data."""

from collections.abc import Iterable, Set
from pathlib import Path

from calibre.run_files import CARD, MODEL, RunFiles

_RUN = RunFiles(Path())
RUN = {_RUN.experiment.name, _RUN.events.name}  # every run has these
BUNDLE = {CARD, MODEL}
_INSIDE = (_RUN.checkpoints, _RUN.clients, _RUN.figures, _RUN.bundles, _RUN.flower)
RUN_FOLDERS = {place.name for place in _INSIDE}

Folders = tuple[str, ...]


def is_run(names: Set[str]) -> bool:
    """Whether a folder of such names is a run."""
    return names >= RUN


def is_own(names: Set[str]) -> bool:
    """Whether a folder of such names is a run or a bundle."""
    return is_run(names) or names >= BUNDLE


def nothing_else(own: Iterable[Folders], seen: Set[Folders], filled: Set[Folders]) -> set[Folders]:
    """Folders that hold runs and bundles and nothing else, such as ``runs``.

    ``filled`` are those of ``seen``, all others, that files are in.
    """
    above = {folders[:depth] for folders in own for depth in range(1, len(folders))}
    other = {
        folders[:depth]
        for folders in (seen - above) | filled
        for depth in range(1, len(folders) + 1)
    }
    return above - other
