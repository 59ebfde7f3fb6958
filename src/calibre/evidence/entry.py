"""One run of the ledger: a folder of four small files.

    experiment.toml  metrics.json  clients.csv    as the run wrote them, without places on a disk
    origin.json                                   where they come from; written last

A checksum over all four says whether somebody changed one by hand.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.evidence.origin import Source, machine
from calibre.experiment import RESULTS
from calibre.files import write_atomic
from calibre.report import runs
from calibre.report.events import Started
from calibre.report.runs import Run
from calibre.run_files import RunFiles
from calibre.sections import Count, EngineSettings
from calibre.settings import Settings, first_of

ORIGIN = "origin.json"
LARGEST = 2**22  # bytes of one file of an entry


class Origin(Settings):
    """Where a run's numbers come from."""

    results: Count  # calibre.experiment.RESULTS of the code that ran it
    code: str  # hash of the code that decides results
    commit: str
    machine: str
    versions: dict[str, str]  # of Python and torch
    seconds: float
    images: Count  # that training looked at in all rounds, a pair of views as one
    # the same, by the number of images that training clients hold; None where novel ones alone have
    # models: the table of clients does not tell what the others hold
    passes: float | None
    checksum: str = ""  # of everything else in the entry


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
        told = Origin.model_validate_json((folder / ORIGIN).read_bytes())
    except (OSError, ValidationError) as error:
        raise _edited(folder, f"{ORIGIN} cannot be read: {first_of(error)}") from None
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
    if unlike := _disagreement(told, run):
        raise _edited(folder, unlike)
    return LedgerEntry(told, run)


def _files(folder: Path) -> RunFiles:
    """The files of an entry: these four and no others, none of them a link."""
    place = RunFiles(folder)
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
    }
    if told.results == RESULTS:
        pairs = {"experiment": (metrics.experiment, experiment.hash()), **pairs}
    for name, (one, other) in pairs.items():
        if one != other:
            return f"{RunFiles(run.folder).metrics.name} says {name} = {one}, but it is {other}"
    return None


def write_entry(ledger: Path, finished: Path, source: Source) -> LedgerEntry:
    """Copy what a finished run came to into the ledger, whole or not at all."""
    run = runs.read(finished)
    _check_results(run)
    held = sum(row.samples + row.unlabelled for row in run.clients if not row.novel)
    images = run.metrics.images or 0
    told = Origin(
        results=RESULTS,
        code=source.code,
        commit=source.commit,
        machine=machine(),
        versions={k: v for k, v in _starts(run)[-1].versions.items() if k != "results"},
        seconds=round(run.metrics.seconds, 1),
        images=images,
        passes=round(images / held, 2) if held else None,
    )
    place = ledger / run.experiment.folder_name
    making = ledger / f".{place.name}.{os.getpid()}"
    making.mkdir(parents=True, exist_ok=True)
    try:
        data = run.experiment.data.model_copy(update={"root": None})
        anywhere = {"data": data, "engine": EngineSettings()}
        settings = run.experiment.model_copy(update=anywhere)
        write_atomic(RunFiles(making).experiment, settings.to_toml())
        for file in (RunFiles(finished).metrics, RunFiles(finished).table):
            shutil.copyfile(file, making / file.name)
        whole = told.model_copy(update={"checksum": _checksum(making, told)})
        write_atomic(making / ORIGIN, whole.model_dump_json(indent=2) + "\n")
        if place.exists():
            shutil.rmtree(place)
        making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return read_entry(place)


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
