"""The same experiment gives the same bits, whoever does the work, however often it is killed."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from calibre.engine import rounds

ROOT = Path(__file__).parents[2]
STATEFUL = "method.exchange=encoder"  # every client keeps its heads: client state matters too


def bits(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model.safetensors").read_bytes(), (folder / "clients.csv").read_bytes()


def test_the_same_bits_on_any_number_of_workers(tiny, tmp_path):
    results = {}
    for workers in (0, 3):  # others are compared in test_crew.py and in tests/deploy/test_bits.py
        experiment = tiny(STATEFUL, "training.rounds=2", f"engine.workers={workers}")
        rounds.run(experiment, tmp_path / str(workers))
        results[workers] = bits(tmp_path / str(workers))
    assert len(set(results.values())) == 1


def test_another_seed_gives_other_bits(tiny, tmp_path):
    rounds.run(tiny(), tmp_path / "0")
    rounds.run(tiny("seed=1"), tmp_path / "1")
    assert bits(tmp_path / "0")[0] != bits(tmp_path / "1")[0]


def test_the_same_bits_after_kills_at_random_and_inside_checkpoint_writes(tiny, tmp_path):
    experiment = tiny(STATEFUL, "training.rounds=5")
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kill_driver", tmp_path / "experiment.toml", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    at_random, in_writes = map(int, done.stdout.split()[-2:])
    assert (at_random, in_writes) == (5, 4)
    for folder in [*tmp_path.glob("killed*"), tmp_path / "torn"]:
        assert bits(folder) == bits(tmp_path / "whole")


def test_the_same_bits_after_the_command_and_its_workers_are_killed(tiny, tmp_path):
    long = (STATEFUL, "training.rounds=12")
    experiment = tiny(*long, "engine.workers=2")
    file, folder = tmp_path / "experiment.toml", tmp_path / "killed"
    file.write_text(experiment.to_toml())
    command = subprocess.Popen(
        [sys.executable, "-m", "calibre", "run", str(file), "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = psutil.Process(command.pid).children()
    command.kill()
    command.wait()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []  # nobody goes on without the command
    assert not (folder / "metrics.json").exists()
    rounds.run(tiny(*long), folder)
    rounds.run(tiny(*long), tmp_path / "whole")
    assert bits(folder) == bits(tmp_path / "whole")


@pytest.mark.parametrize("at", [1, 2])
def test_a_finished_part_is_not_trained_again(tiny, tmp_path, at):
    """A run of fewer rounds is not the same experiment; a stopped one is: resume goes on."""
    experiment = tiny("training.rounds=3")
    seen = []

    def stop(event):
        if event.event == "round":
            seen.append(event.round)
            if event.round == at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, tmp_path / "stopped", stop)
    rounds.run(
        experiment,
        tmp_path / "stopped",
        lambda e: None if e.event != "round" else seen.append(e.round),
    )
    # it was stopped before round `at` was committed: that round is made again, no other
    assert seen == [*range(1, at + 1), *range(at, 4)]
    rounds.run(experiment, tmp_path / "whole")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
