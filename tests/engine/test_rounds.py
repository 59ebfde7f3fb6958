import csv
import json
import shutil

import numpy as np
import pytest

from calibre.engine import events, rounds
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from tests.methods.helpers import equal, host


def test_selection_is_fair_repeatable_and_without_repeats():
    chosen = [rounds.select(0, round_, 20, 5) for round_ in range(400)]
    assert chosen == [rounds.select(0, round_, 20, 5) for round_ in range(400)]
    assert all(len(set(clients)) == 5 and clients == sorted(clients) for clients in chosen)
    counts = np.bincount(np.concatenate(chosen), minlength=20)
    # each is Binomial(400, 1/4): mean 100, standard deviation 8.7
    assert counts.min() > 60
    assert counts.max() < 140
    assert rounds.select(1, 0, 20, 5) != chosen[0]


def test_novel_clients_never_train_and_all_methods_choose_the_same(tiny, tmp_path):
    logs = {}
    for name in ("calibre", "pfl-ssl", "fedavg"):
        rounds.run(tiny(f"method.name={name}"), tmp_path / name)
        log = [e for e in events.read(tmp_path / name / "events.jsonl") if e["event"] == "round"]
        logs[name] = [sorted(map(int, event["clients"])) for event in log]
        assert all(client < 5 for clients in logs[name] for client in clients)
    assert logs["calibre"] == logs["pfl-ssl"] == logs["fedavg"]


def test_every_client_is_scored_with_floors_beside(tiny, tmp_path):
    metrics = rounds.run(tiny('personal.floors=["untrained", "local"]'), tmp_path)
    with open(tmp_path / "clients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["client"]) for row in rows] == list(range(7))
    assert [row["novel"] for row in rows] == ["0"] * 5 + ["1"] * 2
    for key, group in ((METHOD, metrics), ("untrained", metrics["floors"]["untrained"])):
        column = "accuracy" if key == METHOD else key
        trained = [float(row[column]) for row in rows if row["novel"] == "0"]
        assert group["train"]["mean"] == pytest.approx(sum(trained) / 5)
    assert json.loads((tmp_path / "metrics.json").read_text()) == json.loads(json.dumps(metrics))


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
    shutil.rmtree(tmp_path / "run")
    rounds.run(experiment, tmp_path / "run")


def test_the_first_state_does_not_depend_on_what_was_trained_before(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    first = home.initial_state()
    home.update(first, 0)
    assert equal(home.initial_state().model, first.model)


def test_personal_groups_do_not_depend_on_workers():
    sizes = [rounds.personal_group(count, False) for count in (1, 24, 150, 10_000)]
    assert sizes == [4, 4, 19, 32]
    assert rounds.personal_group(150, True) == 1
