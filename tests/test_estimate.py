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
