import csv
import dataclasses
import json
import math
import re
import shutil
from typing import ClassVar

import numpy as np
import pytest

from calibre.data.sources import load
from calibre.engine import rounds
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from calibre.experiment import read
from calibre.methods.calibre import Calibre
from calibre.methods.fedavg import FedAvg
from calibre.methods.method import Number
from calibre.report import events, runs
from calibre.report.metrics import Metrics
from calibre.tensors import read_file
from tests.conftest import TINY
from tests.engine.faulty import run_faulty
from tests.methods.helpers import close, equal, host, results


def test_novel_clients_never_train_and_all_methods_choose_the_same(tiny, tmp_path):
    logs = {}
    for name in ("calibre", "pfl-ssl", "fedavg"):
        rounds.run(tiny(f"method.name={name}"), tmp_path / name)
        log = [e for e in events.read(tmp_path / name / "events.jsonl") if e.event == "round"]
        logs[name] = [sorted(map(int, event.clients)) for event in log]
        assert all(client < 5 for clients in logs[name] for client in clients)
    assert logs["calibre"] == logs["pfl-ssl"] == logs["fedavg"]


def test_every_client_is_scored_with_floors_beside(tiny, tmp_path):
    metrics = rounds.run(tiny('personal.floors=["untrained", "local"]'), tmp_path)
    with open(tmp_path / "clients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["client"]) for row in rows] == list(range(7))
    assert [row["novel"] for row in rows] == ["0"] * 5 + ["1"] * 2
    for key, group in ((METHOD, metrics), ("untrained", metrics.floors["untrained"])):
        column = "accuracy" if key == METHOD else key
        trained = [float(row[column]) for row in rows if row["novel"] == "0"]
        assert group.train.mean == pytest.approx(sum(trained) / 5)
    assert Metrics.model_validate_json((tmp_path / "metrics.json").read_bytes()) == metrics


def test_a_folder_of_other_data_is_refused(tiny, tmp_path):
    """The same experiment text, but the images behind it have changed."""
    data = tmp_path / "data.npz"
    random = np.random.default_rng(0)

    def write(seed_pixel):
        images = random.integers(0, 255, (400, 8, 8, 1), dtype=np.uint8)
        images[0] = seed_pixel
        np.savez(data, images=images, labels=np.arange(400) % 10)

    write(1)
    experiment = tiny(f"data.source={data}", "federation.labels=2", "training.rounds=1")
    rounds.run(experiment, tmp_path / "run")
    write(2)
    with pytest.raises(UserError, match="holds a run on other data"):
        rounds.run(experiment, tmp_path / "run")
    held = (tmp_path / "run" / "experiment.toml").read_bytes()
    with pytest.raises(UserError, match="holds a run on other data"):
        rounds.run(experiment.extended(2), tmp_path / "run")
    assert (tmp_path / "run" / "experiment.toml").read_bytes() == held  # the run is as it was
    shutil.rmtree(tmp_path / "run")
    rounds.run(experiment, tmp_path / "run")


def test_the_first_state_does_not_depend_on_what_was_trained_before(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    first = home.initial_state()
    home.update(first, 0)
    assert equal(home.initial_state().model, first.model)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "the disk of client 1 is full"),
        ("not a number", "'head.bias' holds NaN"),
        ("shape", r"'head.bias' is torch.float32 [3], expected torch.float32 [10]"),
        ("samples", "it trained on 1000000000 images, but holds"),
        ("report", "its update cannot be sent: report.loss: Input should be a finite number"),
    ],
)
def test_a_failing_client_is_named_and_left_out(tiny, tmp_path, fault, cause):
    metrics, failures = run_faulty(tiny, tmp_path, fault)
    assert [(f.client, f.round) for f in failures] == [(1, 1), (1, 2)]
    assert all(cause in f.cause for f in failures)
    assert {f.name for f in failures} == {"client-1"}
    assert metrics.failures == 2
    assert json.loads((tmp_path / "metrics.json").read_text())["failures"] == 2


def test_the_survivors_give_the_result(tiny, tmp_path):
    """Leaving a client out by failure is the same as aggregating the others."""
    run_faulty(tiny, tmp_path / "raise", "raise")
    run_faulty(tiny, tmp_path / "shape", "shape")
    one, other = ((tmp_path / f / "model.safetensors").read_bytes() for f in ("raise", "shape"))
    assert one == other


def test_below_the_quorum_the_run_stops_and_can_go_on(tiny, tmp_path):
    with pytest.raises(UserError, match=r"round 1 stopped: 4 clients .*5.*client-1: .*resume"):
        run_faulty(tiny, tmp_path, "raise", "engine.quorum=1.0")
    metrics, _ = run_faulty(tiny, tmp_path, "raise", "engine.quorum=0.5")
    assert metrics.rounds == 2


def test_when_nobody_succeeds_the_message_says_so(tiny, tmp_path):
    with pytest.raises(UserError, match="0 clients succeeded"):
        run_faulty(tiny, tmp_path, "all", "engine.quorum=0.0")


class Told(FedAvg):
    """FedAvg that asks for a number, whose client 1 sends what a test says."""

    title: ClassVar[str] = "Told"
    name: str = "tests.engine.test_rounds:Told"
    tells: ClassVar[dict[str, float]] = {}

    @property
    def numbers(self):
        return {"mood": Number(low=-1, high=1)}

    def local_update(self, server, personal, site):
        update = super().local_update(server, personal, site)
        numbers = self.tells if site.client == 1 else {"mood": 0.5}
        return dataclasses.replace(update, numbers=numbers)


@pytest.mark.parametrize(
    ("tells", "cause"),
    [
        ({}, "the number 'mood' is missing"),
        ({"mood": 0.0, "spy": 1.0}, "the number 'spy' was not asked for"),
        ({"mood": 1.5}, "its mood is 1.5, not a number from -1 to 1"),
        ({"mood": float("nan")}, "its mood is nan, not a number from -1 to 1"),
    ],
    ids=["missing", "extra", "large", "unknown"],
)
def test_a_number_that_was_not_declared_so_is_refused(tiny, tmp_path, monkeypatch, tells, cause):
    monkeypatch.setattr(Told, "tells", tells)
    own = f"method.name={Told.__module__}:Told"
    rounds.run(tiny(own, "training.clients_per_round=5", "training.rounds=1"), tmp_path)
    (failure,) = [e for e in events.read(tmp_path / "events.jsonl") if e.event == "failure"]
    assert (failure.client, failure.cause) == (1, f"its update was refused: {cause}")


def test_a_number_without_bounds_cannot_even_be_sent(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Told, "tells", {"mood": math.inf})
    own = f"method.name={Told.__module__}:Told"
    rounds.run(tiny(own, "training.clients_per_round=5", "training.rounds=1"), tmp_path)
    (failure,) = [e for e in events.read(tmp_path / "events.jsonl") if e.event == "failure"]
    assert failure.client == 1
    assert "its update cannot be sent: numbers.mood: Input should be a finite" in failure.cause
    assert "\n" not in failure.cause


def test_an_unknown_divergence_counts_as_the_median_of_the_others(tiny, tmp_path, monkeypatch):
    """Over the whole way of an update: NaN is no JSON, and travels as something not known."""
    rates = {0: 0.5, 2: 0.2, 3: 1.0, 4: 0.9}
    monkeypatch.setattr(Calibre, "_divergence", lambda method, site: rates[site.client])
    models = {}
    for told in (math.nan, 0.7, 0.2):
        rates[1] = told
        folder = tmp_path / str(told)
        rounds.run(tiny("training.clients_per_round=5", "training.rounds=1"), folder)
        log = events.read(folder / "events.jsonl")
        assert not [event for event in log if event.event == "failure"]
        (trained,) = [event.clients for event in log if event.event == "round"]
        assert trained[1].get("divergence", math.nan) == pytest.approx(told, nan_ok=True)
        models[told] = read_file(folder / "model.safetensors")
    unknown, median, other = models.values()
    assert close(unknown, median)
    assert not close(unknown, other)


STATEFUL = ("method.exchange=encoder", "training.clients_per_round=5")  # every client keeps heads


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """A run that was stopped after two of its three rounds, and what it comes to undisturbed."""
    small = ("method.objective.hidden=8", "method.objective.projection=4")
    experiment = read(None, [*TINY, *small, *STATEFUL])
    folder = tmp_path_factory.mktemp("halted")

    def stop(event):
        if event.event == "round" and event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, folder / "run", stop)
    shutil.copytree(folder / "run", folder / "whole")
    rounds.run(experiment, folder / "whole")
    return experiment, folder / "run", results(folder / "whole")


@pytest.fixture
def resumed(halted, tmp_path):
    """Resumes a copy of that run after some damage; the warnings that were given."""
    experiment, original, whole = halted
    folder = shutil.copytree(original, tmp_path / "run")

    def resume(*damages):
        for name, damage in damages:
            damage(folder / name)
        warnings = []
        rounds.run(
            experiment, folder,
            lambda e: warnings.append(e.text) if e.event == "warning" else None,
        )  # fmt: skip
        assert results(folder) == whole  # whatever was done again has the same bits
        return warnings

    return resume


def lost(file):
    file.unlink()


def flipped(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def emptied(file):
    file.write_bytes(b"")


def test_an_undamaged_run_goes_on_without_a_warning(resumed):
    assert resumed() == []


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("checkpoints/round-0002.safetensors", flipped, r"checkpoint round-0002.json is damaged"),
        ("checkpoints/round-0002.json", emptied, r"checkpoint round-0002.json is damaged"),
        ("clients/000003/0002.safetensors", lost, "what client-3 kept after round 2 is missing"),
        ("clients/000003/0002.safetensors", flipped, "what client-3 kept after round 2 is damaged"),
        ("clients/000000/0002.safetensors", emptied, "what client-0 kept after round 2 is damaged"),
    ],
    ids=["checkpoint", "record", "client lost", "client flipped", "client emptied"],
)
def test_an_older_whole_checkpoint_is_used_with_a_warning(resumed, name, damage, said):
    (warning,) = resumed((name, damage))
    assert re.match(rf"{said}.*; going on after round 1$", warning)


BOTH = {
    "all checkpoints": [
        ("checkpoints/round-0001.safetensors", flipped),
        ("checkpoints/round-0002.safetensors", lost),
    ],
    "the states of a client": [
        ("clients/000003/0001.safetensors", flipped),
        ("clients/000003/0002.safetensors", lost),
    ],
    "one of each": [
        ("clients/000003/0001.safetensors", flipped),
        ("checkpoints/round-0002.json", emptied),
    ],
}


@pytest.mark.parametrize("case", BOTH)
def test_where_nothing_is_whole_the_run_says_what_is_wrong_and_does_not_begin_anew(
    halted, resumed, case
):
    with pytest.raises(UserError, match=r"cannot go on: .*Restore these files.*--out") as stopped:
        resumed(*BOTH[case])
    for name, _ in BOTH[case]:
        place = name.split("/")
        number = int(re.sub(r"\D", "", place[-1]))
        told = {
            "checkpoints": f"checkpoint round-{number:04d}.json is damaged",
            "clients": f"what client-3 kept after round {number} is",
        }[place[0]]
        assert told in str(stopped.value)


def test_what_prepares_an_image_is_noted_with_the_run(tiny, tmp_path):
    """Of the training images alone, in closed form; known as soon as the run has begun."""
    experiment = tiny("training.rounds=1")

    def stop(event):
        if event.event == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, tmp_path / "run", stop)
    noted = json.loads((tmp_path / "run" / "preprocessing.json").read_text())
    pool = load(experiment.data)
    pixels = pool.images[list(pool.train)].astype(np.float64) / 255
    assert (noted["height"], noted["width"], noted["channels"]) == (8, 8, 1)
    assert noted["mean"] == pytest.approx([pixels.mean()], rel=1e-6)
    assert noted["std"] == pytest.approx([pixels.std()], rel=1e-6)


def test_where_only_novel_clients_have_labels_the_others_do_not_count(tiny, tmp_path):
    """Their labels choose no strength of anybody's head, and they have no model."""
    heads = ("personal.head=solved", "training.rounds=1", 'personal.floors=["pixels"]')
    novel = tiny("personal.clients=novel", *heads)
    rounds.run(novel, tmp_path / "novel")
    found = runs.read(tmp_path / "novel")
    assert [(row.id, row.novel) for row in found.clients] == [(5, True), (6, True)]
    assert (found.metrics.train.clients, found.metrics.novel.clients) == (0, 2)
    assert novel.hash() != tiny(*heads).hash()
    with pytest.raises(UserError, match=r"there are none; set federation\.novel"):
        tiny("personal.clients=novel", "federation.novel=0")


@pytest.mark.parametrize("key", ["network.width", "method.objective.hidden"])
def test_a_network_beyond_all_memory_is_refused_in_words(tmp_path, key):
    with pytest.raises(UserError, match=r"the network of .* cannot be made with these settings"):
        rounds.run(read(None, [*TINY, f"{key}={2**50}"]), tmp_path / "run")
