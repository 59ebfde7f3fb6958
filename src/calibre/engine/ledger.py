"""Which noised models have left the server: the account that privacy's price is reckoned from.

A model is entered before it is sent, and stays whatever becomes of its checkpoint: a round that is
made again, after damage or after a run was taken back, draws new noise on the same clients, and
both models may have been seen. The same model sent twice, after a kill, is one entry.
"""

import json
from collections import Counter
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from calibre.errors import UserError
from calibre.files import write_atomic
from calibre.methods.method import ServerState
from calibre.sections import Positive
from calibre.settings import Settings
from calibre.tensors import digest


class _Sent(Settings):
    round: Positive
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


_ENTRIES = TypeAdapter(list[_Sent])


class Ledger:
    """Of one run; in a file of its own, so that no damaged checkpoint takes it along."""

    def __init__(self, file: Path, done: int) -> None:
        """``done`` rounds lie behind the run: then there is an account already."""
        self.file = file
        self.entries: list[_Sent] = []
        if file.exists():
            self._read()
        elif done:
            raise self._lost("is missing")
        else:
            self._write()

    def enter(self, state: ServerState) -> None:
        """That this state is about to leave the server; what it started from is nobody's."""
        sent = _Sent(round=state.round, sha256=digest(state.model)) if state.round else None
        if sent is not None and sent not in self.entries:
            self.entries.append(sent)
            self._write()

    def times(self) -> Counter[int]:
        """How many models of each round were sent."""
        return Counter(entry.round for entry in self.entries)

    def _read(self) -> None:
        try:
            self.entries = _ENTRIES.validate_json(self.file.read_bytes())
        except ValidationError:
            raise self._lost("is damaged") from None

    def _write(self) -> None:
        entries = [entry.model_dump() for entry in self.entries]
        write_atomic(self.file, json.dumps(entries, indent=1) + "\n")

    def _lost(self, how: str) -> UserError:
        return UserError(
            f"{self.file} {how}: without it nobody can say what privacy this run has spent; "
            "restore it from a copy, or begin anew in another folder with --out"
        )
