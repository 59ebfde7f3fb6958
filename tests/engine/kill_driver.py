"""Runs an experiment again and again in child processes and kills them; see test_bits.py.

``python -m tests.engine.kill_driver EXPERIMENT.toml FOLDER``. Children are forked, so that each
costs a fraction of a second, not the import of torch.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from calibre import experiment, files
from calibre.engine import rounds
from calibre.report import results

KILLS_AT_RANDOM, KILLS_IN_WRITES = 5, 4


class Torn:
    """A file that the process does not survive writing: half of it gets there."""

    def __init__(self, file) -> None:
        self.file = file

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *details) -> None:
        self.file.__exit__(*details)

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_write(number: int) -> None:
    """From now on, the given one of the checkpoint's files to be written is torn."""
    count = 0

    def torn_open(path, mode, **how):
        nonlocal count
        count += "round-" in str(path)
        return Torn(open(path, mode, **how)) if count == number else open(path, mode, **how)

    files.open = torn_open


def die_after(seconds: float) -> None:
    """Of this process's own time, so that a busy machine changes nothing; at any instruction."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def child(settings, folder: Path, prepare: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        prepare()
        rounds.run(settings, folder)
        os._exit(0)
    return pid


def main() -> None:
    torch.set_num_threads(1)
    results.accuracy_figure = lambda *_, **__: []  # it takes longer than the run
    settings, folder = experiment.read(Path(sys.argv[1])), Path(sys.argv[2])
    dice = random.Random(0)
    rounds.run(settings, folder / "warm")
    began = time.process_time()
    rounds.run(settings, folder / "whole")
    length = time.process_time() - began

    kills = {"random": 0, "write": 0}
    target = folder / "killed"
    while kills["random"] < KILLS_AT_RANDOM:
        moment = dice.uniform(0.02, 0.4) * length
        pid = child(settings, target, lambda moment=moment: die_after(moment))
        if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            kills["random"] += 1
        else:  # it was through: start over
            target = folder / f"killed-{kills['random']}"
    target = folder / "torn"
    for number in range(1, KILLS_IN_WRITES + 1):
        # each attempt gets one file further before it dies
        pid = child(settings, target, lambda number=number: die_in_write(1 + number % 3))
        if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            kills["write"] += 1
    print(kills["random"], kills["write"])
    for place in [*folder.glob("killed*"), folder / "torn"]:
        rounds.run(settings, place)


if __name__ == "__main__":
    main()
