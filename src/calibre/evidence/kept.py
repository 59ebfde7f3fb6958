"""The ledger: every run that a published number rests on, by its experiment."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from calibre.errors import UserError
from calibre.evidence.entry import ORIGIN, LedgerEntry, hidden_prefix, read_entry, write_entry
from calibre.experiment import RESULTS, Experiment
from calibre.files import lacking, open_regular
from calibre.run_folder import RunFolder

ABOUT = "README.md"  # what tells people about the ledger, beside its entries
LOCK = ".lock"


class Evidence:
    """All entries of a ledger's folder, checked; an entry that is not sound is refused by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, LedgerEntry] = {}  # by the hash that the present code has for them
        with _reading(folder):
            for place in _places(folder):
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

    def make(self) -> None:
        """Make its folder, if need be: who cannot write there learns it before anything runs."""
        with _writing(self.folder):
            pass

    def add(self, finished: Path) -> LedgerEntry:
        """Take in a finished run, in the place of one by other code.

        What somebody else has entered of it meanwhile stays.
        """
        experiment = RunFolder(finished).read_experiment()
        with _writing(self.folder):
            _clear(self.folder, experiment.folder_name)
            there = [read_entry(place) for place in self._of(experiment)]
            present = [entry for entry in there if entry.origin.results == RESULTS]
            older = [entry.run.folder for entry in there]
            entry = present[0] if present else write_entry(self.folder, finished, older)
        self.entries[entry.run.experiment.hash()] = entry
        return entry

    def _of(self, experiment: Experiment) -> list[Path]:
        """Where an experiment is in the ledger now: under its hash, or one by an older code."""
        ending = f"-{experiment.hash()[:8]}"
        named = {place for place in _visible(self.folder) if place.name.endswith(ending)}
        known = self.entries.get(experiment.hash())
        if known is not None and known.run.folder.exists():
            named.add(known.run.folder)
        return sorted(named)

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


def check_apart(ledger: Path, runs: Path) -> None:
    """Runs write into their folder whatever they like; a ledger holds nothing but entries."""
    one, other = Path(os.path.realpath(ledger)), Path(os.path.realpath(runs))
    if one == other or one in other.parents:
        raise UserError(
            f"the runs' folder {runs} is the ledger {ledger} or lies in it, and a ledger holds "
            "nothing but entries: give another folder with --out"
        )


def _places(folder: Path) -> list[Path]:
    """The folders that must be entries; whatever else is there is refused by name."""
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder, or a link that leads to none: a ledger is one")
    places = [place for place in _visible(folder) if place.name != ABOUT or not place.is_file()]
    _check_ledger(folder, places)
    for place in places:
        if place.name == ABOUT:
            raise UserError(
                f"{place} is not a file: by this name, a ledger tells people about itself; move it "
                "elsewhere"
            )
        if place.is_symlink() or not place.is_dir():
            raise UserError(f"{place} is not an entry of the ledger, which is a folder: remove it")
    return places


def _check_ledger(folder: Path, places: Sequence[Path]) -> None:
    """A folder of other things is somebody's: nothing in it is to be removed."""
    if any((place / ORIGIN).exists() for place in places):
        return
    if (folder / ORIGIN).exists():
        raise UserError(
            f"{folder} is an entry of a ledger, not a ledger: give the folder that it lies in"
        )
    if places:
        raise UserError(
            f"{folder} is not a ledger: nothing in it is an entry of one ({places[0].name} is "
            f"none); give the right folder with --ledger, or one that is not there yet"
        )


def _visible(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if not place.name.startswith("."))


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Wait for who is writing; where nobody ever wrote, or may, there is nobody to wait for."""
    with ExitStack() as held:
        with suppress(OSError):
            fcntl.flock(held.enter_context(open_regular(folder / LOCK)), fcntl.LOCK_SH)
        yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """One writer at a time, and nobody reads meanwhile."""
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(open(folder / LOCK, "ab")), fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(
                f"cannot use {folder} as a ledger: {lacking(error) or error}; give a folder that "
                "can be written with --ledger"
            ) from None
        yield


def _clear(folder: Path, name: str) -> None:
    """Take away what killed writers of an entry left."""
    for place in folder.iterdir():
        if place.name.startswith(hidden_prefix(name)):
            shutil.rmtree(place, ignore_errors=True)
