"""Flower's simulation runtime, in real processes: the bits of the embedded engine."""

import subprocess
import sys
from functools import partial

import pytest
from typer.testing import CliRunner

from calibre.cli import app
from calibre.deploy import launch
from calibre.deploy.simulation import simulate
from calibre.engine import rounds
from calibre.errors import UserError
from tests.methods.helpers import results


def command(*arguments):
    return [sys.executable, "-m", "calibre", *map(str, arguments)]


@pytest.mark.minutes
def test_the_simulation_gives_the_same_bits(tiny, tmp_path, monkeypatch):
    """Of Calibre, of a method whose clients keep state, and of one whose clients keep a head."""
    runs = tmp_path / "runs"
    runs.mkdir()
    asked = {
        name: tiny(f"method.name={name}", "training.rounds=2", "engine.sites=2", f"name={name}")
        for name in ("calibre", "fedrep", "scaffold")
    }
    for name in ("calibre", "fedrep"):
        (runs / f"{name}.toml").write_text(asked[name].to_toml())
    # all of them in one run of Flower: to start Ray takes longer than to train
    both = {"server": "tests.deploy.many_runs:server", "client": "tests.deploy.many_runs:client"}
    monkeypatch.setattr(launch, "write_app", partial(launch.write_app, **both))
    metrics = simulate(asked["scaffold"], runs / "scaffold", lambda event: None)
    assert metrics.failures == 0
    for name, experiment in asked.items():
        rounds.run(experiment, tmp_path / name)
        assert results(runs / name) == results(tmp_path / name)


def test_an_unknown_engine_and_a_run_of_sites_are_told_in_words(tmp_path):
    done = subprocess.run(command("run", "--engine", "warp"), capture_output=True, text=True)
    assert done.returncode == 2
    assert "engine.runtime = 'warp'" in done.stderr
    (tmp_path / "experiment.toml").write_text('[engine]\nruntime = "flower"\n')
    done = subprocess.run(command("resume", tmp_path), capture_output=True, text=True)
    assert done.returncode == 2
    assert "calibre-fl deploy run" in done.stderr


def test_without_flower_the_simulation_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    asked = ["run", "--engine", "flower-sim", "--out", str(tmp_path / "run")]
    error = CliRunner().invoke(app, asked).exception
    assert isinstance(error, UserError)
    assert "install Flower with  pip install calibre-fl[flower]" in str(error)
    assert not (tmp_path / "run").exists()
