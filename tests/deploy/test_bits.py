"""The same bits as the embedded engine: model, accuracies, and every client's personal model."""

import json

import pytest

from calibre.deploy.coordinator import coordinate
from calibre.deploy.records import text_of
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


def test_labels_in_training_a_second_network_and_floors_are_the_same_on_a_grid(tiny, tmp_path):
    labels = ("method.labels.weight=1", "method.labels.second=2", "personal.head=solved")
    floors = 'personal.floors=["untrained", "majority"]'
    experiment = tiny(*labels, floors, "training.rounds=2", "engine.sites=3")
    rounds.run(experiment, tmp_path / "embedded")
    metrics = on_grid(experiment, tmp_path)
    assert metrics.failures == 0
    assert gathered(tmp_path) == results(tmp_path / "embedded")


def test_solved_heads_are_the_same_on_a_grid_and_on_any_number_of_workers(tiny, tmp_path):
    """Who is solved together differs: nobody's bits may follow from that."""
    few = ("federation.clients=3", "federation.novel=1", "training.clients_per_round=2")
    solved = ("personal.head=solved", "training.rounds=1", *few)
    experiment = tiny(*solved, "engine.sites=3")
    rounds.run(experiment, tmp_path / "embedded")
    on_grid(experiment, tmp_path)
    assert gathered(tmp_path) == results(tmp_path / "embedded")
    rounds.run(tiny(*solved, "engine.workers=2"), tmp_path / "2")
    assert results(tmp_path / "2") == results(tmp_path / "embedded")


def test_a_node_is_told_of_its_own_clients_curves_alone(tiny, tmp_path):
    experiment = tiny("personal.head=solved", "training.rounds=0", "engine.sites=3")
    told = []

    class Listening(LocalGrid):
        def _answer(self, message):
            fields = json.loads(text_of(message.content) or "{}")
            told.append(fields.get("job"))
            return super()._answer(message)

    on_grid(experiment, tmp_path, Listening(shares(tmp_path / "nodes")))
    jobs = [job for job in told if job and job["kind"] == "personalize"]
    assert jobs
    for job in jobs:
        assert sorted(map(int, job["curves"])) == sorted(job["clients"])


def test_clipping_and_its_price_are_the_same_on_a_grid(tiny, tmp_path):
    """Without noise, which is never the same, bits tell that sites' updates are clipped alike."""
    private = ("privacy.clip=0.5", "privacy.noise=0", "training.rounds=2", "engine.sites=3")
    experiment = tiny(*private)
    embedded = rounds.run(experiment, tmp_path / "embedded")
    metrics = on_grid(experiment, tmp_path)
    assert metrics.privacy == embedded.privacy
    assert gathered(tmp_path) == results(tmp_path / "embedded")
