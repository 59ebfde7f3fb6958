"""Every piece of code in docs/extending.md is what it says, and works from outside the library."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibre.engine import rounds
from calibre.experiment import read
from tests.conftest import TINY
from tests.methods.helpers import equal, host
from tests.ssl.helpers import a_step

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
OBJECTIVE, METHOD, ENCODER, DATA = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^(?:PYTHON\S+ )?calibre-fl .*", GUIDE, re.M)]


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Path:
    """A folder of modules that the library does not know."""
    folder = tmp_path / "outside"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for name in ("barlow_twins", "server_rate", "my_encoder"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def changes_of(command: list[str]) -> list[str]:
    """What the command sets, without its first words."""
    return [word for word in command if "=" in word and not word.startswith("PYTHONPATH")]


def command_with(text: str) -> list[str]:
    return next(command for command in COMMANDS if any(text in word for word in command))


def test_the_guide_shows_the_example_itself():
    assert (ROOT / "examples" / "barlow_twins.py").read_text(encoding="utf-8") == OBJECTIVE


def test_the_objective_runs_by_the_command_of_the_guide(tmp_path):
    """In a process of its own: nothing but PYTHONPATH makes it known."""
    command = next(c for c in COMMANDS if "method.name=calibre" in c)
    assert command[0] == "PYTHONPATH=examples"
    small = [*TINY, "training.rounds=1", "method.objective.hidden=8"]
    words = [*command[2:], *[part for change in small for part in ("--set", change)]]
    done = subprocess.run(
        [sys.executable, "-m", "calibre", *words, "--json", "--out", str(tmp_path / "run")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": "examples"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"method": "Calibre (Barlow Twins) with labels"' in done.stdout


def barlow_twins(outside, **settings):
    (outside / "barlow_twins.py").write_text(OBJECTIVE)
    from barlow_twins import BarlowTwins

    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 6))
    return BarlowTwins(hidden=8, projection=4, **settings).build(encoder, 6)


def test_barlow_twins_by_a_naive_loop(outside):
    network = barlow_twins(outside, redundancy=0.3)
    pair = network(torch.randn(9, 3, 2, 2), torch.randn(9, 3, 2, 2), a_step(9))
    h_a, h_b = pair.h_a.detach().double(), pair.h_b.detach().double()
    total = 0.0
    for i in range(4):
        for j in range(4):
            both = torch.stack([h_a[:, i], h_b[:, j]])
            correlation = float(torch.corrcoef(both)[0, 1])
            total += (1 - correlation) ** 2 if i == j else 0.3 * correlation**2
    assert pair.loss.item() == pytest.approx(total / 4, abs=1e-3)  # batch norm has an epsilon


def test_barlow_twins_is_content_with_equal_views_without_redundancy(outside):
    h = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    loss = barlow_twins(outside).decorrelation(h, 5 * h + 2)
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_the_plain_command_names_a_method_and_an_objective_too(outside, tmp_path):
    (outside / "barlow_twins.py").write_text(OBJECTIVE)
    changes = changes_of(command_with("method.name=pfl-ssl"))
    home = host(read(None, [*changes, *TINY, "method.objective.hidden=8"]), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    assert home.load("method").method.label == "pFL-Barlow Twins"
    assert {n.split(".")[0] for n in first.shared["model"]} == {"encoder", "projector"}
    assert equal(first.shared["model"], home.update(state, 0).shared["model"])


def test_the_method_goes_part_of_the_way_to_fedavg(outside, tmp_path):
    (outside / "server_rate.py").write_text(METHOD)
    changes = changes_of(command_with("server_rate"))
    home = host(read(None, [*changes, *TINY]), tmp_path / "own")
    assert home.experiment.method.eta == 0.3
    state = home.initial_state()
    updates = [home.update(state, client) for client in (0, 1)]
    moved = home.load("method").method.aggregate(state, updates).model

    fedavg = host(read(None, ["method.name=fedavg-ft", *TINY]), tmp_path / "fedavg")
    start = fedavg.initial_state()
    mean = fedavg.load("method").method.aggregate(
        start, [fedavg.update(start, client) for client in (0, 1)]
    )
    assert equal(start.model, state.model)
    for name, goal in mean.model.items():
        if goal.is_floating_point():
            expected = 0.7 * state.model[name] + 0.3 * goal
            assert torch.allclose(moved[name], expected, atol=1e-6), name

    whole = read(None, [*changes, *TINY, "method.eta=1"]).method
    assert equal(whole.aggregate(state, updates).model, mean.model)


def test_a_run_with_the_method_the_encoder_and_the_data(outside, tmp_path, monkeypatch):
    (outside / "server_rate.py").write_text(METHOD)
    (outside / "my_encoder.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    exec(compile(DATA, "data", "exec"), {})  # writes mine.npz
    named = [command_with(text) for text in ("server_rate", "my_encoder", "mine.npz")]
    changes = [change for command in named for change in changes_of(command)]
    experiment = read(None, [*changes, *TINY, "training.rounds=1"])
    metrics = rounds.run(experiment, tmp_path / "run")
    assert metrics.method == "FedAvg with a server rate"
    assert (tmp_path / "run" / "clients.csv").exists()
    network = host(experiment, tmp_path / "look").load("method").network
    assert network.encoder.features == 8
    assert network.head.weight.shape == (3, 8)
