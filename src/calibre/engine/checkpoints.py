"""How far a run got: the server's state after a round, with all that a resume must know."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from calibre.engine.messages import pack, unpack
from calibre.files import lacking, open_regular, sealed, unsealed, write_atomic
from calibre.methods.method import ServerState
from calibre.sections import Count, Positive
from calibre.settings import Settings
from calibre.tensors import grouped, prefixed


class _Record(Settings):
    """What a checkpoint's JSON file says; once it is there, the checkpoint counts."""

    round: Count
    clients: Positive
    bytes: Count
    sha256: str
    failures: Count = 0
    kept: dict[Count, Count] = Field(default_factory=dict)
    training: str = ""  # hash of what trains; earlier versions did not note it


@dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    failures: int = 0  # of client updates, so far
    # client -> the round after which it last kept something; a resume needs exactly that
    kept: dict[int, int] = field(default_factory=dict)


class Checkpoints:
    def __init__(self, folder: Path, training: str = "") -> None:
        """``training`` is the hash of what trains here: another run's checkpoints are not taken."""
        self.folder = folder
        self.training = training

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Commit the state after a round; only then are checkpoints beyond ``keep`` removed."""
        state = checkpoint.state
        block = pack(prefixed(state.groups))
        stem = self.folder / f"round-{state.round:04d}"
        record = _Record(
            round=state.round, clients=state.clients, bytes=len(block),
            sha256=hashlib.sha256(block).hexdigest(), failures=checkpoint.failures,
            kept=checkpoint.kept, training=self.training,
        )  # fmt: skip
        write_atomic(stem.with_suffix(".safetensors"), block)
        write_atomic(stem.with_suffix(".json"), json.dumps(sealed(record.model_dump(mode="json"))))
        for old in self._committed()[keep:]:
            self._remove(old)

    def whole(self, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
        """The checkpoints that are whole, newest first; of the others it is said what is wrong."""
        for file in self._committed():
            try:
                record = _Record.model_validate(unsealed(_content(file)))
                self._check_own(record, file)
                block = _content(file.with_suffix(".safetensors"))
                if hashlib.sha256(block).hexdigest() != record.sha256:
                    raise ValueError("its checksum does not match")
                state = ServerState(record.round, grouped(unpack(block)), record.clients)
            except (OSError, ValueError, ValidationError) as error:
                if lacking(error):
                    raise
                warn(f"checkpoint {file.name} is damaged ({str(error).splitlines()[0]})")
                continue
            yield Checkpoint(state, record.failures, dict(record.kept))

    def oldest_round(self) -> int:
        """The earliest round that a resume may go back to."""
        committed = self._committed()
        return _round_of(committed[-1]) if committed else 0

    def drop_after(self, round_: int) -> None:
        """Remove the checkpoints of later rounds, the newest first."""
        for record in self._committed():
            if _round_of(record) > round_:
                self._remove(record)

    def _check_own(self, record: _Record, file: Path) -> None:
        if record.round != _round_of(file):
            raise ValueError(f"it is of round {record.round}")
        if self.training and record.training and record.training != self.training:
            raise ValueError("it is of another experiment")

    def _remove(self, record: Path) -> None:
        record.unlink()
        record.with_suffix(".safetensors").unlink(missing_ok=True)

    def _committed(self) -> list[Path]:
        """Records of committed checkpoints, newest first."""
        files = [file for file in self.folder.glob("round-*.json") if _round_of(file) >= 0]
        return sorted(files, key=_round_of, reverse=True)


def _content(file: Path) -> bytes:
    with open_regular(file) as opened:
        return opened.read()


def _round_of(file: Path) -> int:
    digits = file.stem.removeprefix("round-")
    return int(digits) if digits.isascii() and digits.isdigit() else -1
