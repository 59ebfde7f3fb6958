"""Fairness in figures, and the table behind them: one row per client."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from calibre.errors import UserError
from calibre.files import write_atomic
from calibre.personal.pooling import HeadChoice
from calibre.settings import Settings
from calibre.wording import Z95, how_many, variance

COLUMNS = [
    "client", "name", "novel", "samples", "unlabelled", "test_samples", "classes", "accuracy",
]  # fmt: skip
MOST = 10**12  # of whatever a run counts, or a client holds
Tally = Annotated[int, Field(ge=0, le=MOST)]
Group = Literal["train", "novel"]
GROUPS: tuple[Group, Group] = ("train", "novel")
MEASURES = ["mean", "variance", "std", "worst_tenth", "best_tenth", "min", "max"]


@dataclass(frozen=True)
class ClientResult:
    """How one client fared on its own test set."""

    id: int
    name: str
    novel: bool  # personalised only, after training
    samples: int  # labelled
    unlabelled: int
    test_samples: int
    classes: int  # that it holds
    accuracy: float  # of its personal model, in [0, 1]
    floors: dict[str, float]  # what it would reach without the federation: "untrained", "local"


class Figures(Settings):
    """What is kept of a run as JSON; files of other versions may say more."""

    model_config = ConfigDict(extra="ignore")


class Summary(Figures):
    """Mean and fairness of a group of clients; of none there is nothing to tell."""

    clients: Tally
    mean: float | None = None
    variance: float | None = None
    std: float | None = None
    worst_tenth: float | None = None
    best_tenth: float | None = None
    min: float | None = None
    max: float | None = None
    interval: tuple[float, float] | None = None  # of the mean, 95 %

    def measure(self, name: str) -> float:
        """One of MEASURES, of a group that has clients."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"there is no {name} of {self.clients} clients")
        return float(value)


class ByGroup(Figures):
    """Of the clients that trained, and of those who were never seen before."""

    train: Summary
    novel: Summary

    def of(self, group: Group) -> Summary:
        return self.train if group == "train" else self.novel


class Promise(Figures):
    """What differential privacy promises to the client that takes part most often."""

    epsilon: float | None  # None: infinite
    delta: float
    rounds: Tally

    @property
    def words(self) -> str:
        if self.epsilon is None:
            return "updates were clipped, but without privacy.noise no privacy is promised"
        return (
            f"the model is ({self.epsilon:.3g}, {self.delta:g})-differentially private for every "
            f"client; the busiest took part in {how_many(self.rounds, 'round')}"
        )


class HeadFacts(Figures):
    """How personal models were made."""

    head: str
    choice: HeadChoice | None = None


class Metrics(ByGroup):
    """A finished run in figures: metrics.json."""

    method: str
    objective: str | None = None
    rounds: Tally
    seed: int
    federation: str  # hash
    experiment: str = ""  # hash
    version: str = ""
    model: str = ""  # digest of the final global model; earlier versions did not note it
    failures: Tally
    warnings: tuple[str, ...] = ()
    seconds: float
    images: Tally | None = None  # that training looked at in all rounds; a pair of views is one
    privacy: Promise | None = None
    personal: HeadFacts | None = None
    # of one client in a round, as the last state would have it
    bytes_up: Tally | None = None
    bytes_down: Tally | None = None
    floors: dict[str, ByGroup] = Field(default_factory=dict)


def summary(accuracies: Sequence[float], images: Sequence[int] | None = None) -> Summary:
    """Mean and fairness of a group; a client counts once, however many samples it has.

    ``images`` is on how many each client was tested: then the mean has an interval.
    """
    clients = len(accuracies)
    if clients == 0:
        return Summary(clients=0)
    ranked = sorted(accuracies)
    tenth = -(-clients // 10)
    mean = _mean(ranked)
    variance = _mean([(value - mean) ** 2 for value in ranked])
    return Summary(
        clients=clients,
        mean=mean,
        variance=variance,
        std=math.sqrt(variance),
        worst_tenth=_mean(ranked[:tenth]),
        best_tenth=_mean(ranked[-tenth:]),
        min=ranked[0],
        max=ranked[-1],
        interval=interval(list(zip(accuracies, images, strict=True))) if images else None,
    )


def interval(rows: Sequence[tuple[float, int]]) -> tuple[float, float] | None:
    """The 95 % interval of a mean of accuracies, each measured on so many test images.

    How sure one can be of the mean for just these clients: images are drawn, clients are not. Each
    client's share is taken as Wilson's centre, so that 5 of 5 right is not taken for certain.
    """
    if not rows:
        return None
    mean = _mean([accuracy for accuracy, _ in rows])
    spread = sum(variance(accuracy, images) for accuracy, images in rows)
    half = Z95 * math.sqrt(spread) / len(rows)
    return max(0.0, mean - half), min(1.0, mean + half)


def write_clients_csv(rows: Sequence[ClientResult], path: Path) -> None:
    """One row per client; csv writes floats as ``repr`` does, so that their bits come back."""
    floors = list(rows[0].floors) if rows else []
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(COLUMNS + floors)
    # names in quotes: only these keep whatever a site may be called, a line break included
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in rows:
        counts = [row.samples, row.unlabelled, row.test_samples, row.classes]
        scores = [row.accuracy, *(row.floors[name] for name in floors)]
        table.writerow([row.id, row.name, int(row.novel), *counts, *scores])
    write_atomic(path, text.getvalue())


def read_clients_csv(path: Path) -> list[ClientResult]:
    """What :func:`write_clients_csv` wrote."""
    with open(path, encoding="utf-8", newline="") as file:
        table = csv.reader(file)
        header = next(table, [])
        if header[: len(COLUMNS)] != COLUMNS:
            raise UserError(
                f"{path} is not a table of clients: its columns must begin with {','.join(COLUMNS)}"
            )
        try:
            return [_read_row(row, header[len(COLUMNS) :]) for row in table]
        except ValueError as error:
            raise UserError(f"{path}, line {table.line_num}: {error}") from None


def _read_row(row: list[str], floors: list[str]) -> ClientResult:
    if len(row) != len(COLUMNS) + len(floors):
        raise ValueError(f"it has {len(row)} columns, the header {len(COLUMNS) + len(floors)}")
    id, name, novel, samples, unlabelled, test_samples, classes, accuracy, *scores = row
    return ClientResult(
        id=int(id),
        name=name,
        novel=novel == "1",
        samples=int(samples),
        unlabelled=int(unlabelled),
        test_samples=int(test_samples),
        classes=int(classes),
        accuracy=float(accuracy),
        floors=dict(zip(floors, map(float, scores), strict=True)),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
