"""All twelve self-supervised methods on data of STL-10's shape: 96 pixels, half unlabelled."""

import numpy as np
import pytest

from calibre.engine import rounds
from calibre.experiment import read
from calibre.registry import OBJECTIVES
from tests.engine.test_bits import bits


@pytest.fixture(scope="module")
def stl10(tmp_path_factory):
    """Official binary files with 60 labelled, 20 test and 60 unlabelled images."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "stl10_binary"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("train", 60), ("test", 20), ("unlabeled", 60)):
        pixels = random.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        (folder / f"{name}_X.bin").write_bytes(pixels.tobytes())
        if name != "unlabeled":
            (folder / f"{name}_y.bin").write_bytes(bytes(i % 10 + 1 for i in range(count)))
    (folder / "class_names.txt").write_text("".join(f"class{i}\n" for i in range(10)))
    return root


class StoppedError(Exception):
    pass


def stop_after_the_first_round(event):
    if event.event == "progress" and event.stage == "train" and stop_after_the_first_round.on:
        raise StoppedError
    stop_after_the_first_round.on = event.event == "round"


@pytest.mark.parametrize("method", ["pfl-ssl", "calibre"])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_every_objective_runs_resumes_and_gives_the_same_bits(stl10, tmp_path, method, objective):
    def settings(workers):
        return read(
            None,
            [
                "data.source=stl10", f"data.root={stl10}", "federation.scheme=quantity",
                "federation.clients=3", "federation.novel=1", "federation.samples=12",
                "federation.test_samples=4", "federation.unlabelled=12", f"method.name={method}",
                f"method.objective={objective}", "method.objective.hidden=8",
                "method.objective.projection=4", "method.sgd.batch=12", "network.width=2",
                "training.rounds=2", "training.clients_per_round=2", "training.epochs=1",
                "personal.head=paper", "personal.epochs=1", "personal.floors=[]",
                f"engine.workers={workers}",
            ],
        )  # fmt: skip

    other = 2 if method == "calibre" else 0  # starting workers takes seconds: once will do
    metrics = rounds.run(settings(other), tmp_path / "whole")
    assert metrics.failures == 0
    assert (metrics.train.clients, metrics.novel.clients) == (3, 1)

    stop_after_the_first_round.on = False
    with pytest.raises(StoppedError):
        rounds.run(settings(0), tmp_path / "stopped", stop_after_the_first_round)
    assert not (tmp_path / "stopped" / "metrics.json").exists()
    rounds.run(settings(0), tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
