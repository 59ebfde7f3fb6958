"""Folders of noise with labels by chance, and who holds which of it in a run, by its pixels."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.experiment import read
from calibre.run_folder import RunFolder
from tests.conftest import TINY

CLIENTS = ("east", "north", "south", "west")


class Holding(NamedTuple):
    """The pixels of one client's images."""

    labelled: set[bytes]
    unlabelled: set[bytes]
    test: set[bytes]

    @property
    def trained(self) -> set[bytes]:
        return self.labelled | self.unlabelled


def picture(file: Path, number: int) -> bytes:
    """Write noise of that number; its pixels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels.tobytes()


def noise(folder: Path, clients: tuple[str, ...] = CLIENTS, first: int = 0) -> Path:
    """For each client 30 images in two classes and 10 without a label."""
    rng = np.random.default_rng(first)
    for place, client in enumerate(clients):
        for i in range(40):
            below = str(rng.integers(2)) if i < 30 else "unlabelled"
            picture(folder / client / below / f"{i:03}.png", first + 100 * place + i)
    return folder


def noise_run(folder: Path, source: Path, *changes: str, rounds_: int = 0) -> Path:
    """A finished run on them."""
    tiny = [change for change in TINY if not change.startswith(("federation.", "training.rounds"))]
    own = (f"data.source={source}", f"training.rounds={rounds_}", "method.name=fedavg")
    rounds.run(read(None, [*own, *tiny, "federation.novel=0", *changes]), folder)
    return folder


def holdings(run: Path) -> dict[str, Holding]:
    """Who holds what; the images must still be those of the run."""
    federation, pool = federations.load(run), load(RunFolder(run).read_experiment().data)
    assert pool.fingerprint == federation.fingerprint
    found = {}
    for number in range(len(federation)):
        client = federation.client(number)
        parts = (client.labelled, client.unlabelled, client.test)
        found[client.name] = Holding(*({pool.images[i].tobytes() for i in part} for part in parts))
    return found


def check_kept(before: dict[str, Holding], after: dict[str, Holding]) -> None:
    """Nobody is tested on what anybody trained on; what was tested on and is there still is."""
    trained = set().union(*(holding.trained for holding in before.values()))
    tested = set().union(*(holding.test for holding in before.values()))
    assert trained
    assert tested
    for name, now in after.items():
        assert not now.test & trained, name
        assert not now.test & now.trained, name
        assert not now.trained & tested, name
