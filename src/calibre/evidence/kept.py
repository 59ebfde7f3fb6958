"""The ledger: every run that a published number rests on, by its experiment."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from calibre.errors import UserError
from calibre.evidence.entry import LedgerEntry, read_entry, write_entry
from calibre.evidence.origin import Source
from calibre.experiment import RESULTS, Experiment

ABOUT = "README.md"  # what tells people about the ledger, beside its entries


class Evidence:
    """All entries of a ledger's folder, checked; an entry that is not sound is refused by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, LedgerEntry] = {}  # by the hash that the present code has for them
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is not a folder: a ledger is one")
        places = sorted(folder.iterdir()) if folder.exists() else []
        for place in places:
            if place.name == ABOUT or place.name.startswith("."):
                continue
            if place.is_symlink() or not place.is_dir():
                raise UserError(
                    f"{place} is not an entry of the ledger, which is a folder: remove it"
                )
            self._enter(read_entry(place))

    def _enter(self, entry: LedgerEntry) -> None:
        known = self.entries.setdefault(entry.run.experiment.hash(), entry)
        if known.run.folder != entry.run.folder:
            raise UserError(
                f"{known.run.folder} and {entry.run.folder} hold the same experiment: remove one"
            )

    def find(self, experiment: Experiment) -> LedgerEntry | None:
        """The run of an experiment by code that gives the same; None where it must be run."""
        entry = self.entries.get(experiment.hash())
        return entry if entry is not None and entry.origin.results == RESULTS else None

    def add(self, finished: Path, source: Source) -> LedgerEntry:
        """Take in a finished run, in the place of one by other code."""
        entry = write_entry(self.folder, finished, source)
        older = self.entries.get(entry.run.experiment.hash())
        if older is not None and older.run.folder != entry.run.folder:
            shutil.rmtree(older.run.folder)
        self.entries[entry.run.experiment.hash()] = entry
        return entry

    def check_code(self) -> None:
        """Refuse what other code came to: published tables are of one code."""
        for entry in self.entries.values():
            if entry.origin.results != RESULTS:
                raise UserError(
                    f"{entry.run.folder} is of other code: its results are of version "
                    f"{entry.origin.results}, the present ones of {RESULTS}; run it again, or "
                    "remove the folder"
                )

    def of(self, experiments: Sequence[Experiment]) -> list[LedgerEntry]:
        """Those of these experiments that are there, in order."""
        return [entry for e in experiments if (entry := self.find(e)) is not None]
