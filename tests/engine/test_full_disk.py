"""A disk that is full, read-only or not ours: one message, and nothing is lost."""

import itertools
import os
import re
import resource
import subprocess

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import read
from tests.methods.helpers import results


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if not _said("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place):
        pytest.skip("only an administrator can mount a small disk")
    yield place
    _said("umount", "-l", place)


def _said(*command) -> bool:
    done = subprocess.run(command, capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    tiny, tmp_path, disk, workers, pictures
):
    experiment = tiny(
        "method.name=fedrep", "training.rounds=6", "training.clients_per_round=5",
        f"engine.workers={workers}",
    )  # fmt: skip
    rounds.run(read(experiment, engine={"workers": 0}), tmp_path / "calm")
    stops, metrics = 0, None
    # ever more room: it is missing at another place each time; but to start a worker takes seconds
    rooms = iter([220, 4000]) if workers else itertools.count(100, 40)
    while metrics is None:
        leave(disk, next(rooms))
        try:
            metrics = rounds.run(experiment, disk / "run")
        except UserError as error:
            stops += 1
            if not re.search("the disk is full|No space left", str(error)):
                raise
        assert stops < 60
    assert stops > (0 if workers else 1)
    assert metrics.failures == 0
    assert results(disk / "run") == results(tmp_path / "calm")
    assert not list((disk / "run").rglob("*.tmp"))


def leave(disk, kilobytes: int) -> None:
    """So much room beside what is there."""
    (disk / "ballast").unlink(missing_ok=True)
    found = os.statvfs(disk)
    room = found.f_bavail * found.f_frsize - 1024 * kilobytes
    (disk / "ballast").write_bytes(bytes(max(0, room)))


def test_a_read_only_disk_is_told(tiny, tmp_path, disk):
    experiment = tiny("training.rounds=2")
    rounds.run(experiment, disk / "run")
    assert _said("mount", "-o", "remount,ro", disk)
    with pytest.raises(UserError, match=r"read-only|Read-only"):
        rounds.run(experiment, disk / "run")


def test_too_many_open_files_are_told(tiny, tmp_path):
    rounds.run(tiny("training.rounds=1"), tmp_path / "before")  # all that is imported late
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        with pytest.raises(UserError, match=r"too many files are open|Too many open files"):
            rounds.run(tiny("training.rounds=2", "engine.workers=2"), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    rounds.run(tiny("training.rounds=2"), tmp_path / "run")
