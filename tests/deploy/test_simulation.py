"""Flower's simulation runtime, in real processes: the bits of the embedded engine."""

import json
import subprocess
import sys

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from tests.methods.helpers import results


def command(*arguments):
    return [sys.executable, "-m", "calibre", *map(str, arguments)]


@pytest.mark.slow
def test_the_simulation_gives_the_same_bits_for_a_method_whose_clients_keep_state(tiny, tmp_path):
    experiment = tiny("method.name=scaffold", "training.rounds=2")
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.to_toml())
    done = subprocess.run(
        command("run", file, "--engine", "flower-sim", "--out", tmp_path / "run", "--json"),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failures"] == 0
    rounds.run(experiment, tmp_path / "embedded")
    assert results(tmp_path / "run") == results(tmp_path / "embedded")


def test_an_unknown_engine_and_a_run_of_sites_are_told_in_words(tmp_path):
    done = subprocess.run(command("run", "--engine", "warp"), capture_output=True, text=True)
    assert done.returncode == 2
    assert "engine.runtime = 'warp'" in done.stderr
    (tmp_path / "experiment.toml").write_text('[engine]\nruntime = "flower"\n')
    done = subprocess.run(command("resume", tmp_path), capture_output=True, text=True)
    assert done.returncode == 2
    assert "calibre-fl deploy run" in done.stderr


def test_without_flower_the_message_says_what_to_install(monkeypatch):
    from calibre.deploy import launch

    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"pip install calibre-fl\[flower\]"):
        launch.program("flower-superlink")
