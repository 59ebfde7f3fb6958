"""Finished runs as values: read from their folders, checked, ready to be compared and drawn."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibre import __version__
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import read_json_lines
from calibre.report.metrics import ClientResult, read_clients_csv, summary
from calibre.run_folder import RunFolder

LARGEST = 2**28  # bytes of one file; clients.csv of a million clients has a quarter of that
NEEDED = {
    "method": str,
    "seed": int,
    "federation": str,
    "rounds": int,
    "seconds": int | float,
    "failures": int,
    "train": dict,
    "novel": dict,
}


@dataclass(frozen=True)
class Run:
    """What a run folder holds once the run has ended."""

    folder: Path
    experiment: Experiment
    metrics: Mapping[str, Any]
    clients: tuple[ClientResult, ...]

    @property
    def label(self) -> str:
        """What the method is called."""
        return str(self.metrics["method"])

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def federation(self) -> str:
        """The hash of who held what."""
        return str(self.metrics["federation"])

    def checked(self) -> "Run":
        """This run, once its files are seen to tell of the same clients."""
        for group, novel in (("train", False), ("novel", True)):
            listed = sum(client.novel == novel for client in self.clients)
            if self.metrics[group].get("clients") != listed:
                raise _damaged(
                    RunFolder(self.folder).table,
                    f"it lists {listed} {'novel' if novel else 'trained'} clients, metrics.json "
                    f"counts {self.metrics[group].get('clients')}",
                )
            accuracies = [client.accuracy for client in self.clients if client.novel == novel]
            if unlike(self.metrics[group], summary(accuracies)):
                raise _damaged(
                    RunFolder(self.folder).table,
                    f"metrics.json tells of other accuracies of clients in '{group}'",
                )
        same_program = self.metrics.get("version") == __version__
        if same_program and self.metrics.get("experiment") != self.experiment.hash():
            raise _damaged(
                RunFolder(self.folder).experiment, "the results there are of another experiment"
            )
        return self

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """What happened in the run, in order."""
        path = RunFolder(self.folder).events
        _check_size(path)
        try:
            events = read_json_lines(path)
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(path, error) from None
        return [event for event in events if isinstance(event, dict)]

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The ``round`` events: what every client reported, round by round."""
        rounds = [event for event in self.events if event.get("event") == "round"]
        for event in rounds:
            reports = event.get("clients")
            told = isinstance(reports, dict) and all(isinstance(r, dict) for r in reports.values())
            if not told or not isinstance(event.get("round"), int):
                path = RunFolder(self.folder).events
                raise _damaged(path, "a round does not say what its clients reported")
        return rounds


def read_all(folders: Sequence[Path]) -> list[Run]:
    """The runs of several folders, in order."""
    return [read(folder) for folder in folders]


def read(folder: Path) -> Run:
    """The finished run of a folder; whatever is wrong with it is told in the user's words."""
    place = RunFolder(folder)
    experiment = place.read_experiment()
    if not place.finished:
        raise UserError(
            f"the run in {folder} is not finished; go on with  calibre-fl resume {folder}"
        )
    return Run(folder, experiment, _metrics(place.metrics), _clients(place.table)).checked()


def _metrics(path: Path) -> dict[str, Any]:
    _check_size(path)
    try:
        metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # what is not JSON and not UTF-8 is a ValueError
        raise _damaged(path, error) from None
    for key, kind in NEEDED.items():
        if not isinstance(metrics, dict) or not isinstance(metrics.get(key), kind):
            raise _damaged(path, f"it has no usable '{key}'")
    return metrics


def _clients(path: Path) -> tuple[ClientResult, ...]:
    _check_size(path)
    try:
        rows = read_clients_csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, error) from None
    for row in rows:
        if not all(0 <= value <= 1 for value in (row.accuracy, *row.floors.values())):
            raise _damaged(path, f"an accuracy of client {row.id} is not within 0 and 1")
    rows.sort(key=lambda row: row.id)  # a spreadsheet may have sorted them otherwise
    if [row.id for row in rows] != list(range(len(rows))):
        raise _damaged(path, "its clients are not 0, 1, 2 and so on, each once")
    return tuple(rows)


def _check_size(path: Path) -> None:
    if path.is_file() and path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes: no run writes such a file")


def unlike(told: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether figures were changed after they were written; rounding by a reader is none."""

    def same(one: Any, other: Any) -> bool:
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return math.isclose(one, other, abs_tol=1e-9) if numbers else one == other

    return any(key in told and not same(told[key], value) for key, value in found.items())


def _damaged(path: Path, cause: object) -> UserError:
    return UserError(
        f"{path} is damaged ({cause}); write it anew with  calibre-fl resume {path.parent}"
    )
