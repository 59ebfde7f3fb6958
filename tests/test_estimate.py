from pathlib import Path

from calibre.engine.devices import Machine
from calibre.estimate import estimate, seconds

HERE = Machine.here()


def test_floors_that_train_count_by_their_epochs(tiny):
    """Local training for 40 epochs takes about twice as long as for 20, and longer than none."""
    none = seconds(tiny("training.rounds=1"))
    some = seconds(tiny("training.rounds=1", 'personal.floors=["local"]', "personal.epochs=20"))
    twice = seconds(tiny("training.rounds=1", 'personal.floors=["local"]', "personal.epochs=40"))
    assert none < some < twice
    assert 1.3 < (twice - none) / (some - none) < 3


def test_an_estimate_leaves_nothing_behind(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = estimate(tiny(), HERE)
    assert "floors counted in" in found["personal models"]
    assert [*Path().iterdir()] == []


def test_rounds_on_labels_alone_cost_by_labels(tiny):
    """Ten rounds of which nine look at few of the images, against ten that look at all."""
    few = "federation.labels=1", "training.rounds=10", "training.epochs=5"
    all_images = seconds(tiny(*few, "method.labels.weight=1"))
    on_labels = seconds(tiny(*few, "method.labels.weight=1", "method.labels.last_rounds=9"))
    assert on_labels < 0.7 * all_images
