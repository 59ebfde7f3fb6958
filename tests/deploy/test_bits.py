"""The same bits as the embedded engine: model, accuracies, and every client's personal model."""

import pytest

from calibre.deploy.coordinator import coordinate
from calibre.engine import rounds
from calibre.registry import METHODS
from tests.deploy.local_grid import LocalGrid
from tests.methods.helpers import results

NODES = 3


def shares(folder, count=NODES):
    return [
        {"partition-id": i, "num-partitions": count, "state": str(folder / f"node-{i}")}
        for i in range(count)
    ]


def on_grid(experiment, folder, grid=None, events=None):
    grid = grid or LocalGrid(shares(folder / "nodes"))
    emit = (lambda event: None) if events is None else events.append
    return coordinate(grid, experiment, folder / "run", emit, patience=5)


def gathered(folder):
    """Results of a run whose clients kept their personal models at their nodes."""
    found = results(folder / "run")
    for file in sorted((folder / "nodes").glob("node-*/*/clients/*/personal.safetensors")):
        found[f"clients/{file.parent.name}/personal.safetensors"] = file.read_bytes()
    return found


ALL = sorted({target: name for name, target in reversed(METHODS.items())}.values())


@pytest.mark.parametrize("method", ALL)
def test_every_method_gives_the_same_bits_on_a_grid(tiny, tmp_path, method):
    floors = 'personal.floors=["untrained", "local"]' if method == "calibre" else "seed=0"
    experiment = tiny(f"method.name={method}", floors, "training.rounds=2", "engine.sites=3")
    rounds.run(experiment, tmp_path / "embedded")
    metrics = on_grid(experiment, tmp_path)
    assert metrics.failures == 0
    assert gathered(tmp_path) == results(tmp_path / "embedded")


def test_clipping_and_its_price_are_the_same_on_a_grid(tiny, tmp_path):
    """Without noise, which is never the same, bits tell that sites' updates are clipped alike."""
    private = ("privacy.clip=0.5", "privacy.noise=0", "training.rounds=2", "engine.sites=3")
    experiment = tiny(*private)
    embedded = rounds.run(experiment, tmp_path / "embedded")
    metrics = on_grid(experiment, tmp_path)
    assert metrics.privacy == embedded.privacy
    assert gathered(tmp_path) == results(tmp_path / "embedded")
