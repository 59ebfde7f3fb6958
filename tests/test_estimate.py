import time
from pathlib import Path
from types import MappingProxyType

import pytest

from calibre.engine.devices import Machine
from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.estimate import estimate, seconds
from calibre.personal import solved_head

HERE = Machine.here()


def test_floors_that_train_count_by_their_epochs(tiny, monkeypatch):
    """By a clock that only local training moves: a second for every epoch of a client."""
    clock = 0.0

    def train(self, state, role, clients, *rest):
        nonlocal clock
        clock += self.experiment.personal.epochs * len(clients) * (role == "local")

    monkeypatch.setattr(Host, "personalize", train)
    monkeypatch.setattr(time, "process_time", lambda: clock)
    local = "training.rounds=1", 'personal.floors=["local"]'
    assert seconds(tiny("training.rounds=1")) == 0
    some, twice = (seconds(tiny(*local, f"personal.epochs={epochs}")) for epochs in (20, 40))
    assert some > 0
    assert twice == pytest.approx(2 * some)


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


def test_heads_are_counted_as_a_run_makes_them(tiny, monkeypatch):
    """What cross-validation found is handed on, and not found again for every head."""
    given = []
    personalize = Host.personalize

    def watched(self, state, role, clients, choice=None, curves=MappingProxyType({})):
        given.append((role, len(clients), len(curves)))
        return personalize(self, state, role, clients, choice, curves)

    monkeypatch.setattr(Host, "personalize", watched)
    seconds(tiny('personal.floors=["untrained"]', "personal.head=solved"))
    assert {role for role, _, _ in given} == {METHOD, "untrained"}
    assert all(clients == curves for _, clients, curves in given)
    assert max(clients for _, clients, _ in given) > 1  # heads of several are solved together


def test_fine_tuning_that_would_diverge_is_estimated_all_the_same(tiny):
    tuned = "personal.finetune_encoder=true", "personal.lr=1e9", "personal.epochs=6"
    found = seconds(tiny("training.rounds=1", "personal.head=solved", *tuned))
    assert 0 < found < float("inf")


def test_models_on_two_networks_are_counted_as_such(tiny, monkeypatch):
    seen = []
    shown = solved_head.encode_client

    def watched(trained, *rest):
        seen.append(len(trained))
        return shown(trained, *rest)

    monkeypatch.setattr(solved_head, "encode_client", watched)
    two = ("method.name=calibre", "method.labels.weight=1", "method.labels.second=1")
    seconds(tiny(*two, "personal.head=solved", "training.rounds=1"))
    assert set(seen) == {2}
