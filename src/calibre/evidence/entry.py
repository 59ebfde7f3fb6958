"""One run of the ledger: a folder of four small files.

    experiment.toml  metrics.json  clients.csv    as the run wrote them, without places on a disk
    origin.json                                   where they come from; written last

A checksum over all four says whether somebody changed one by hand.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.evidence.noted import who_ran
from calibre.evidence.origin import PlainText
from calibre.experiment import RESULTS
from calibre.files import write_atomic
from calibre.report import runs
from calibre.report.events import Started
from calibre.report.metrics import MOST, Tally
from calibre.report.runs import Run
from calibre.run_files import RunFiles
from calibre.sections import EngineSettings
from calibre.settings import Settings, first_of

ORIGIN = "origin.json"
LARGEST = 2**22  # bytes of one file of an entry
Amount = Annotated[float, Field(ge=0, le=MOST)]


class Origin(Settings):
    """Where a run's numbers come from."""

    results: Tally  # calibre.experiment.RESULTS of the code that ran it
    code: PlainText  # hash of the code that decides results
    commit: PlainText
    machine: PlainText
    versions: Annotated[dict[PlainText, PlainText], Field(max_length=20)]  # of Python and torch
    seconds: Amount
    images: Tally  # that training looked at in all rounds, a pair of views as one
    # the same, by the number of images that training clients hold; None where novel ones alone have
    # models: the table of clients does not tell what the others hold
    passes: Amount | None
    checksum: str = ""  # of everything else in the entry

    def to_json(self) -> str:
        return self.model_dump_json(indent=2) + "\n"


@dataclass(frozen=True)
class LedgerEntry:
    origin: Origin
    run: Run

    @property
    def name(self) -> str:
        return self.run.folder.name


def read_entry(folder: Path) -> LedgerEntry:
    """An entry that is whole and as it was written; what else it is, is said by name."""
    files = _files(folder)
    try:
        content = (folder / ORIGIN).read_bytes()
        told = Origin.model_validate_json(content)
    except (OSError, ValidationError) as error:
        raise _edited(folder, f"{ORIGIN} cannot be read: {first_of(error)}") from None
    if content != told.to_json().encode():
        raise _edited(folder, f"{ORIGIN} is not as a run writes it")
    if told.checksum != _checksum(folder, told):
        raise _edited(folder, "its checksum does not fit")
    try:
        experiment = experiments.read(files.experiment)
    except UserError as error:
        raise UserError(
            f"{folder} is of other code: its experiment cannot be read ({error}); remove the "
            "folder, and run it again"
        ) from None
    try:
        metrics, clients = runs.read_metrics(folder), runs.read_clients(files.table)
        run = Run(folder, experiment, metrics, clients).consistent()
    except runs.DamagedFileError as error:
        raise _edited(folder, f"{error.path.name}: {error.cause}") from None
    except UserError as error:
        raise _edited(folder, str(error)) from None
    if unlike := _disagreement(told, run):
        raise _edited(folder, unlike)
    return LedgerEntry(told, run)


def _files(folder: Path) -> RunFiles:
    """The files of an entry: these four and no others, none of them a link."""
    place = RunFiles(folder)
    if place.events.exists() or place.checkpoints.exists():
        raise UserError(
            f"{folder} is a run folder, and a ledger holds nothing but entries, which runs write "
            "themselves (--ledger): move it elsewhere"
        )
    files = [place.experiment, place.metrics, place.table, folder / ORIGIN]
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(
            f"{folder} is not a whole entry of the ledger: {missing[0]} is missing; remove the "
            "folder, and the command that made it makes it again"
        )
    if links := [file.name for file in files if file.is_symlink()]:
        raise UserError(f"{folder / links[0]} is a link: an entry of the ledger holds its own file")
    if more := sorted({file.name for file in folder.iterdir()} - {file.name for file in files}):
        raise UserError(f"{folder / more[0]} does not belong to an entry of the ledger: remove it")
    if large := [file.name for file in files if file.stat().st_size > LARGEST]:
        raise UserError(
            f"{folder / large[0]} has more than {LARGEST:,} bytes: no entry is so large"
        )
    return place


def _disagreement(told: Origin, run: Run) -> str | None:
    """What its files say of each other, its name too, that cannot all be true."""
    metrics, experiment = run.metrics, run.experiment
    if not run.folder.name.endswith(f"-{metrics.experiment[:8]}"):
        return f"its results are of the experiment {metrics.experiment}, which it is not named for"
    pairs: dict[str, tuple[object, object]] = {
        "seed": (metrics.seed, experiment.seed),
        "rounds": (metrics.rounds, experiment.training.rounds * experiment.method.federated),
        "images": (metrics.images or 0, told.images),
        "seconds": (round(metrics.seconds, 1), told.seconds),
    }
    if told.results == RESULTS:
        pairs = {"experiment": (metrics.experiment, experiment.hash()), **pairs}
    for name, (one, other) in pairs.items():
        if one != other:
            return f"{RunFiles(run.folder).metrics.name} says {name} = {one}, but it is {other}"
    return None


def write_entry(ledger: Path, finished: Path, older: Sequence[Path] = ()) -> LedgerEntry:
    """Copy what a finished run came to into the ledger, in the place of ``older`` entries.

    It is made, and they are laid aside, in a folder that counts for nobody.
    """
    run = runs.read(finished)
    place = ledger / run.experiment.folder_name
    hidden = ledger / f"{hidden_prefix(place.name)}{os.getpid()}"
    making = hidden / place.name
    making.mkdir(parents=True)
    try:
        _fill(making, run)
        _check_fit(making, finished)
        _exchange(making, place, older)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return read_entry(place)


def hidden_prefix(name: str) -> str:
    """How names begin of what is not an entry yet, or not any more."""
    return f".{name}."


def _fill(making: Path, run: Run) -> None:
    told, files = _origin(run), RunFiles(making)
    data = run.experiment.data.model_copy(update={"root": None})
    anywhere = {"data": data, "engine": EngineSettings()}
    write_atomic(files.experiment, run.experiment.model_copy(update=anywhere).to_toml())
    held = RunFiles(run.folder)
    for file in (held.metrics, held.table):
        write_atomic(making / file.name, file.read_bytes())
    whole = told.model_copy(update={"checksum": _checksum(making, told)})
    write_atomic(making / ORIGIN, whole.to_json())


def _origin(run: Run) -> Origin:
    _check_results(run)
    source = who_ran(run.folder)
    held = sum(row.samples + row.unlabelled for row in run.clients if not row.novel)
    images = run.metrics.images or 0
    versions = {k: v for k, v in _starts(run)[-1].versions.items() if k != "results"}
    try:
        return Origin(
            results=RESULTS,
            code=source.code,
            commit=source.commit,
            machine=source.machine,
            versions=versions,
            seconds=round(run.metrics.seconds, 1),
            images=images,
            passes=round(images / held, 2) if held else None,
        )
    except ValidationError as error:
        raise UserError(f"{run.folder} cannot enter the ledger: {first_of(error)}") from None


def _check_fit(making: Path, finished: Path) -> None:
    """Nothing enters that the ledger would refuse to read."""
    try:
        read_entry(making)
    except UserError as error:
        raise UserError(f"{finished} cannot enter the ledger: {error}") from None


def _exchange(making: Path, place: Path, older: Sequence[Path]) -> None:
    aside = {old: making.with_name(f"{old.name}.older") for old in older}
    try:
        for old, hidden in aside.items():
            old.rename(hidden)
        making.rename(place)
    except BaseException:
        for old, hidden in aside.items():
            if hidden.exists():
                hidden.rename(old)
        raise


def _check_results(run: Run) -> None:
    versions = {start.versions.get("results", "older") for start in _starts(run)}
    if other := sorted(versions - {str(RESULTS)}):
        raise UserError(
            f"{run.folder} was made by other code (results of version {other[0]}, now {RESULTS}): "
            "remove it, or give another folder with --out, and run it again"
        )


def _starts(run: Run) -> list[Started]:
    """Of the first attempt, and of every one that went on."""
    starts = [event for event in run.events if isinstance(event, Started)]
    if not starts:
        raise UserError(f"{run.folder} does not say which code began it (events.jsonl)")
    return starts


def _checksum(folder: Path, told: Origin) -> str:
    facts = json.dumps(told.model_dump(exclude={"checksum"}), sort_keys=True)
    digest = hashlib.sha256(facts.encode())
    files = RunFiles(folder)
    for file in (files.experiment, files.metrics, files.table):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _edited(folder: Path, cause: str) -> UserError:
    return UserError(
        f"{folder} was changed by hand or damaged ({cause}): entries of the ledger are only "
        "written by runs; restore it, or remove the folder and run it again"
    )
