"""A run folder that is claimed: one experiment's, and open in one process at a time."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.run_files import RunFiles
from calibre.tables import flat

WHERE = ("data.root", "network.weights.name")  # keys that say where, not what

SUM = "\n# checksum of the lines above: "


class RunFolder(RunFiles):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock: int | None = None

    def read_experiment(self) -> Experiment:
        """What the run is of; a file that was changed since the run wrote it is refused."""
        self.check_begun()
        experiment = experiments.read(self.experiment)
        content = self.experiment.read_bytes()
        settings, mark, promised = content.rpartition(SUM.encode())
        if mark and promised.strip().decode(errors="replace") != _checksum(settings):
            raise UserError(
                f"{self.experiment} was changed since the run wrote it: put it back as it was, or "
                "give the changed one a folder of its own  (calibre-fl run FILE --out FOLDER); if "
                "the change is meant for this run, take the last line of the file away"
            )
        return experiment

    def write_experiment(self, experiment: Experiment) -> None:
        settings = experiment.to_toml()
        write_atomic(self.experiment, f"{settings}{SUM}{_checksum(settings.encode())}\n")

    def open(self, experiment: Experiment) -> None:
        """Claim the folder for an experiment: a new one, or the same one going on.

        More rounds are written into it by whoever has seen that the run can go on with them.
        """
        self._take(self.checkpoints)
        held = self.read_experiment() if self.begun else experiment
        if held.hash() != experiment.hash() and not experiment.extends(held):
            raise UserError(
                f"{self.path} holds a run of another experiment ({_difference(held, experiment)}); "
                "give this one a folder of its own with --out"
            )
        if not self.begun:
            self.write_experiment(experiment)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Claim the folder for a moment, ahead of the run that will claim it for itself."""
        self._take(self.path)
        try:
            yield
        finally:
            self.close()

    def _take(self, needed: Path) -> None:
        """Make a folder, this one or one inside it, and claim this one."""
        try:
            needed.mkdir(parents=True, exist_ok=True)
            self._claim()
        except OSError as error:
            raise UserError(f"cannot use {self.path} as run folder: {error.strerror}") from None

    def _claim(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UserError(f"another process is running in {self.path}") from None


def _checksum(settings: bytes) -> str:
    return hashlib.sha256(settings).hexdigest()


def _difference(held: Experiment, asked: Experiment) -> str:
    """The first key in which two experiments differ."""
    one, other = flat(held.model_dump(mode="json")), flat(asked.model_dump(mode="json"))
    for key in sorted(one.keys() | other.keys()):
        matters = key.split(".")[0] not in ("name", "engine") and key not in WHERE
        if matters and one.get(key) != other.get(key):
            return f"{key} is {one.get(key)!r} there, {other.get(key)!r} here"
    return "settings differ"
