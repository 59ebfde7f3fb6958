"""The run folder: what a run is, how far it got, and what each client keeps.

    experiment.toml  federation.json  federation.safetensors  events.jsonl
    checkpoints/round-0042.safetensors  and .json, written last: it commits the checkpoint
    clients/000017/0042.safetensors     what client 17 kept after round 42, never sent anywhere
    clients/000017/personal.safetensors its personal model, at the end
    model.safetensors  clients.csv  metrics.json  figures/

Nothing is unpickled. Files are written whole or not at all; a damaged checkpoint is passed over
for the one before it.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch as st

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.methods.method import ServerState
from calibre.settings import flat
from calibre.tensors import Tensors, grouped, ordered, prefixed


class RunFolder:
    """One experiment's folder; open in one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.events = path / "events.jsonl"
        self.clients = ClientStore(path / "clients")
        self._lock: int | None = None

    def open(self, experiment: Experiment) -> None:
        """Claim the folder for an experiment: a new one, or the same one going on."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot use {self.path} as run folder: {error.strerror}") from None
        self._claim()
        file = self.path / "experiment.toml"
        if file.exists() and (held := experiments.read(file)).hash() != experiment.hash():
            raise UserError(
                f"{self.path} holds a run of another experiment ({_difference(held, experiment)}); "
                "give this one a folder of its own with --out"
            )
        write_atomic(file, experiment.to_toml())

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UserError(f"another process is running in {self.path}") from None

    def save_checkpoint(self, state: ServerState, extra: dict[str, Any], keep: int) -> None:
        """Commit the state after a round; only then are checkpoints beyond ``keep`` removed."""
        tensors = st.save(prefixed(state.groups))
        stem = self.checkpoints / f"round-{state.round:04d}"
        record = {
            "round": state.round,
            "bytes": len(tensors),
            "sha256": hashlib.sha256(tensors).hexdigest(),
            **extra,
        }
        write_atomic(stem.with_suffix(".safetensors"), tensors)
        write_atomic(stem.with_suffix(".json"), json.dumps(record))
        for old in self._committed()[keep:]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def load_checkpoint(
        self, warn: Callable[[str], None]
    ) -> tuple[ServerState, dict[str, Any]] | None:
        """The newest checkpoint that is whole, or None."""
        for record_file in self._committed():
            try:
                record = json.loads(record_file.read_text())
                tensors = record_file.with_suffix(".safetensors").read_bytes()
                if hashlib.sha256(tensors).hexdigest() != record["sha256"]:
                    raise ValueError("its checksum does not match")
                return ServerState(record["round"], grouped(st.load(tensors))), record
            except (OSError, ValueError, KeyError, TypeError) as error:
                warn(f"checkpoint {record_file.name} is damaged ({error}); using the one before")
        return None

    def oldest_round(self) -> int:
        """The earliest round that a resume may go back to."""
        committed = self._committed()
        return int(committed[-1].stem.removeprefix("round-")) if committed else 0

    def _committed(self) -> list[Path]:
        """Records of committed checkpoints, newest first."""
        return sorted(
            self.checkpoints.glob("round-*.json"),
            key=lambda file: int(file.stem.removeprefix("round-")),
            reverse=True,
        )


class ClientStore:
    """What each client keeps between rounds, by the round it was kept in.

    A client writes before it replies; what it wrote counts only once the round is committed. So
    versions are never overwritten, and a client reads the newest one that the server's state,
    perhaps an earlier one after a resume, already knows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, client: int, after_round: int, tensors: Tensors, oldest_needed: int) -> None:
        folder = self._folder(client)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{after_round:04d}.safetensors", st.save(tensors))
        for version in self._versions(client, up_to=oldest_needed)[1:]:
            self._file(client, version).unlink()

    def load(self, client: int, server_round: int) -> Tensors | None:
        versions = self._versions(client, up_to=server_round)
        if not versions:
            return None
        return ordered(st.load(self._file(client, versions[0]).read_bytes()))

    def discard(self, client: int, after_round: int) -> None:
        """Forget what a client kept in a round that refused its update."""
        self._file(client, after_round).unlink(missing_ok=True)

    def save_personal(self, client: int, tensors: Tensors) -> None:
        folder = self._folder(client)
        folder.mkdir(parents=True, exist_ok=True)
        # derived from the model and rebuilt by any resume, so not forced to disk one by one
        temporary = folder / ".personal.tmp"
        temporary.write_bytes(st.save(tensors))
        temporary.replace(folder / "personal.safetensors")

    def load_personal(self, client: int) -> Tensors | None:
        """What of a client's personal model is its own; None before there is one."""
        path = self._folder(client) / "personal.safetensors"
        return ordered(st.load(path.read_bytes())) if path.exists() else None

    def _folder(self, client: int) -> Path:
        return self.path / f"{client:06d}"

    def _file(self, client: int, version: int) -> Path:
        return self._folder(client) / f"{version:04d}.safetensors"

    def _versions(self, client: int, up_to: int) -> list[int]:
        """Rounds in which the client kept something, newest first."""
        files = self._folder(client).glob("[0-9]*.safetensors")
        return sorted((v for f in files if (v := int(f.stem)) <= up_to), reverse=True)


def _difference(held: Experiment, asked: Experiment) -> str:
    """The first key in which two experiments differ."""
    one, other = flat(held.model_dump(mode="json")), flat(asked.model_dump(mode="json"))
    for key in sorted(one.keys() | other.keys()):
        matters = key.split(".")[0] not in ("name", "engine") and key != "data.root"
        if matters and one.get(key) != other.get(key):
            return f"{key} is {one.get(key)!r} there, {other.get(key)!r} here"
    return "settings differ"
