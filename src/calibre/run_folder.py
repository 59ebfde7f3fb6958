"""A run folder that is claimed: one experiment's, and open in one process at a time."""

import fcntl
import os
from pathlib import Path

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.run_files import RunFiles
from calibre.tables import flat

WHERE = ("data.root", "network.weights.name")  # keys that say where, not what


class RunFolder(RunFiles):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock: int | None = None

    def read_experiment(self) -> Experiment:
        self.check_begun()
        return experiments.read(self.experiment)

    def open(self, experiment: Experiment) -> None:
        """Claim the folder for an experiment: a new one, or the same one going on."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._claim()
        except OSError as error:
            raise UserError(f"cannot use {self.path} as run folder: {error.strerror}") from None
        held = self.read_experiment() if self.begun else experiment
        if held.hash() != experiment.hash() and not experiment.extends(held):
            raise UserError(
                f"{self.path} holds a run of another experiment ({_difference(held, experiment)}); "
                "give this one a folder of its own with --out"
            )
        write_atomic(self.experiment, experiment.to_toml())

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UserError(f"another process is running in {self.path}") from None


def _difference(held: Experiment, asked: Experiment) -> str:
    """The first key in which two experiments differ."""
    one, other = flat(held.model_dump(mode="json")), flat(asked.model_dump(mode="json"))
    for key in sorted(one.keys() | other.keys()):
        matters = key.split(".")[0] not in ("name", "engine") and key not in WHERE
        if matters and one.get(key) != other.get(key):
            return f"{key} is {one.get(key)!r} there, {other.get(key)!r} here"
    return "settings differ"
