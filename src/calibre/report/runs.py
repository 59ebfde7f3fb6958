"""Finished runs as values: read from their folders, checked, ready to be compared and drawn."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from calibre import __version__
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import unsealed
from calibre.report import events
from calibre.report.events import Event, RoundDone
from calibre.report.metrics import (
    GROUPS,
    MEASURES,
    MOST,
    ClientResult,
    Metrics,
    Summary,
    read_clients_csv,
    summary,
)
from calibre.run_folder import RunFolder
from calibre.settings import first_of
from calibre.wording import quoted

LARGEST = 2**28  # bytes of one file; clients.csv of a million clients has a quarter of that


@dataclass(frozen=True)
class Run:
    """What a run folder holds once the run has ended."""

    folder: Path
    experiment: Experiment
    metrics: Metrics
    clients: tuple[ClientResult, ...]

    @property
    def label(self) -> str:
        """What the method is called."""
        return self.metrics.method

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def federation(self) -> str:
        """The hash of who held what."""
        return self.metrics.federation

    def checked(self) -> "Run":
        """This run, once its files are seen to tell of the same experiment and clients."""
        same_program = self.metrics.version == __version__
        if same_program and self.metrics.experiment != self.experiment.hash():
            raise DamagedFileError(
                RunFolder(self.folder).experiment, "the results there are of another experiment"
            )
        return self.consistent()

    def consistent(self) -> "Run":
        """This run, once its files are seen to tell of the same clients."""
        table = RunFolder(self.folder).table
        if not self.clients:
            raise DamagedFileError(table, "it lists no clients")
        for name in self.metrics.floors:
            if any(name not in client.floors for client in self.clients):
                raise DamagedFileError(table, f"it has no '{name}', which metrics.json tells of")
        for group in GROUPS:
            told = self.metrics.of(group)
            own = [client for client in self.clients if client.novel == (group == "novel")]
            if told.clients != len(own):
                kind = "novel" if group == "novel" else "trained"
                raise DamagedFileError(
                    table,
                    f"it lists {len(own)} {kind} clients, metrics.json counts {told.clients}",
                )
            floors = {name: floor.of(group) for name, floor in self.metrics.floors.items()}
            for what, figures in {"accuracy": told, **floors}.items():
                if not _tells_of(figures, own, what):
                    raise DamagedFileError(
                        table,
                        f"metrics.json tells of other accuracies ('{what}') of clients in "
                        f"'{group}'",
                    )
        return self

    @cached_property
    def events(self) -> list[Event]:
        """What happened in the run, in order."""
        path = RunFolder(self.folder).events
        _check_size(path)
        try:
            return events.read(path)
        except OSError as error:
            raise DamagedFileError(path, error) from None

    @cached_property
    def rounds(self) -> list[RoundDone]:
        """What every client reported, round by round."""
        return [event for event in self.events if isinstance(event, RoundDone)]


def read_all(folders: Sequence[Path]) -> list[Run]:
    """The runs of several folders, in order."""
    return [read(folder) for folder in folders]


def read(folder: Path) -> Run:
    """The finished run of a folder; whatever is wrong with it is told in the user's words."""
    place = RunFolder(folder)
    experiment = place.read_experiment()
    if not place.finished:
        raise UserError(
            f"the run in {folder} is not finished; go on with  calibre-fl resume {quoted(folder)}"
        )
    return Run(folder, experiment, read_metrics(folder), read_clients(place.table)).checked()


def read_metrics(folder: Path) -> Metrics:
    """What a finished run wrote."""
    path = RunFolder(folder).metrics
    _check_size(path)
    try:
        fields = unsealed(path.read_bytes())
        _check_characters(fields)
        return Metrics.model_validate(fields)
    except (OSError, ValueError) as error:
        raise DamagedFileError(path, first_of(error)) from None


def _check_characters(fields: Mapping[str, object]) -> None:
    """JSON can spell half a character, which no screen or file can show."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None


def read_clients(path: Path) -> tuple[ClientResult, ...]:
    """One row per client, by their numbers."""
    _check_size(path)
    try:
        rows = read_clients_csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DamagedFileError(path, error) from None
    for row in rows:
        if not all(0 <= value <= 1 for value in (row.accuracy, *row.floors.values())):
            raise DamagedFileError(path, f"an accuracy of client {row.id} is not within 0 and 1")
        if min(row.samples, row.unlabelled, row.classes) < 0 or row.test_samples < 1:
            raise DamagedFileError(path, f"a count of client {row.id} is below what it can be")
        if max(row.id, row.samples, row.unlabelled, row.test_samples, row.classes) > MOST:
            raise DamagedFileError(path, f"a client's count is beyond {MOST:,}")
    rows.sort(key=lambda row: row.id)  # a spreadsheet may have sorted them otherwise
    first = rows[0].id if rows and rows[0].novel else 0  # all are novel: others have no model
    if [row.id for row in rows] != list(range(first, first + len(rows))):
        raise DamagedFileError(path, "its clients are not 0, 1, 2 and so on, each once")
    return tuple(rows)


def _check_size(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is a folder, a pipe or a device, not a file: take it away")
    if path.is_file() and path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes: no run writes such a file")


def _tells_of(told: Summary, clients: Sequence[ClientResult], what: str) -> bool:
    """Whether a summary is of these clients' accuracies, or of those of a floor."""
    values = [c.accuracy if what == "accuracy" else c.floors[what] for c in clients]
    return not unlike(told, summary(values, [client.test_samples for client in clients]))


def unlike(told: Summary, found: Summary) -> bool:
    """Whether figures were changed after they were written; rounding by a reader is none."""

    def same(one: float | None, other: float | None) -> bool:
        if one is None or other is None:
            return one is other
        return math.isclose(one, other, abs_tol=1e-9)

    ends = [(None, None) if each.interval is None else each.interval for each in (told, found)]
    known = told.interval is not None and found.interval is not None  # older runs have none
    return not (
        all(same(getattr(told, name), getattr(found, name)) for name in MEASURES)
        and (not known or all(map(same, *ends)))
    )


class DamagedFileError(UserError):
    """A file of a run folder that is not as the run wrote it."""

    def __init__(self, path: Path, cause: object) -> None:
        self.path, self.cause = path, cause
        super().__init__(
            f"{path} is damaged ({cause}); write it anew with  "
            f"calibre-fl resume {quoted(path.parent)}"
        )
