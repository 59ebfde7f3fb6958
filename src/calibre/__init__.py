"""Fair and accurate personalized federated learning with self-supervised learning."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibre.personal.bundle import Bundle

__version__ = "0.1.0"


def load(bundle: Path | str, own_code: bool = False) -> "Bundle":
    """A client's personal model from its bundle: ``calibre.load(folder).predict(images)``."""
    from calibre.personal.bundle import load  # late: torch takes its time

    return load(bundle, own_code)
