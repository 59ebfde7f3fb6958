"""Folders of digits without labels, and a run of two hospitals that hold such."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from calibre.engine import rounds
from calibre.experiment import read
from tests.conftest import TINY

SMALL = ("method.objective.hidden=8", "method.objective.projection=4", "network.width=8")


def digits(folder: Path, wanted: dict[int, int], skip: int = 0, named: bool = False) -> list[Path]:
    """So many of each digit; their true class is in the name, or the name of their folder."""
    held = load_digits()
    made = []
    for digit, count in wanted.items():
        for row in np.flatnonzero(held.target == digit)[skip : skip + count]:
            place = folder / str(digit) if named else folder
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray((held.images[row] * 255 / 16).round().astype(np.uint8))
            picture.save(place / f"{digit}-{row}.png")
            made.append(place / f"{digit}-{row}.png")
    return made


def hospitals(folder: Path) -> Path:
    """Two clients with a few labelled and some unlabelled images each."""
    for number, client in enumerate(("north", "south")):
        digits(folder / client, {0: 6, 1: 6, 2: 6}, skip=40 * number, named=True)
        digits(folder / client / "unlabelled", {0: 8, 1: 8, 2: 8}, skip=40 * number + 10)
    return folder


def run_of(data: Path | None, folder: Path) -> Path:
    """A finished run, of made-up clients where there is no data."""
    own = (
        () if data is None
        else (f"data.source={data}", "federation.scheme=natural", "federation.clients=2",
              "federation.novel=0", "training.clients_per_round=2")
    )  # fmt: skip
    tiny = TINY if data is None else [c for c in TINY if not c.startswith("federation.")]
    rounds.run(read(None, [*tiny, *SMALL, "training.rounds=1", *own]), folder)
    return folder
