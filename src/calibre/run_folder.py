"""The run folder: the names of all files in it, and the right to write to it.

    experiment.toml  federation.json  federation.safetensors  preprocessing.json  events.jsonl
    checkpoints/round-0042.safetensors  and .json, written last: it commits the checkpoint
    clients/000017/0042.safetensors     what client 17 kept after round 42, never sent anywhere
    clients/000017/personal.safetensors its personal model, at the end
    model.safetensors  clients.csv  metrics.json  figures/  report.html
    before.csv                          of an updated run: clients.csv as it was before
    sent.json                           of private runs: which noised models have left the server
    sites.json  flower.json  flower/    of runs through Flower: who takes part, how it ended, logs

Nothing is unpickled. Files are written whole or not at all, and what decides a bit of the result
carries a checksum.
"""

import fcntl
import os
from pathlib import Path

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.tables import flat

WHERE = ("data.root", "network.weights.name")  # keys that say where, not what


class RunFolder:
    """One experiment's folder; open in one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.federation = path / "federation.json"
        self.preprocessing = path / "preprocessing.json"
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.model = path / "model.safetensors"
        self.table = path / "clients.csv"
        self.before = path / "before.csv"
        self.metrics = path / "metrics.json"
        self.figures = path / "figures"
        self.page = path / "report.html"
        self.sent = path / "sent.json"
        self.sites = path / "sites.json"
        self.outcome = path / "flower.json"
        self.flower = path / "flower"
        self._lock: int | None = None

    @property
    def begun(self) -> bool:
        return self.experiment.is_file()

    @property
    def finished(self) -> bool:
        return self.metrics.is_file()

    def read_experiment(self) -> Experiment:
        if not self.begun:
            inside = next(iter(sorted(self.path.glob(f"*/{self.experiment.name}"))), None)
            hint = f"; the runs are inside it, such as {inside.parent}" if inside else ""
            what = "it has no experiment.toml" if self.path.is_dir() else "there is no such folder"
            raise UserError(f"{self.path} is not a run folder: {what}{hint}")
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
