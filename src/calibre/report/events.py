"""What happens in a run, as a stream of records: to a file, a screen, or anything else."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from calibre.errors import printable
from calibre.files import write_atomic
from calibre.methods.method import IMAGES
from calibre.report.metrics import Metrics, Promise
from calibre.sections import Count, Positive
from calibre.settings import Settings


class Record(Settings):
    """A line of the log. Other versions may say more; a loss may be anything, NaN included."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True, ser_json_inf_nan="constants")


class Started(Record):
    """Of a run, or of what a resume goes on with."""

    event: Literal["start"] = "start"
    version: str
    versions: dict[str, str]  # of what decides bits beside Calibre
    experiment: str  # hash
    federation: str  # hash
    method: str
    rounds: Count
    done: Count  # rounds, by earlier attempts
    clients: Count
    novel: Count
    views: dict[str, Any]
    privacy: Promise | None = None
    seconds_to_start: float


class Bounded(Record):
    """Whose update was cut by how much the median client changed."""

    median_norm: float
    bounded: dict[Count, float]


class RoundDone(Record):
    event: Literal["round"] = "round"
    round: Positive
    clients: dict[Count, dict[str, float]]  # what each reported of its training
    privacy: dict[str, float] | None = None
    robust: Bounded | None = None
    seconds: float

    @property
    def images(self) -> int:
        """That the clients' training looked at; a pair of views is one."""
        counts = [report.get(IMAGES, 0.0) for report in self.clients.values()]
        return int(sum(count for count in counts if math.isfinite(count)))


class ClientFailed(Record):
    """Its work was left out."""

    event: Literal["failure"] = "failure"
    round: Count
    client: Count
    name: str = ""  # of the client; older logs do not say it
    cause: str
    detail: str = ""

    @property
    def called(self) -> str:
        return self.name or f"client {self.client}"


class Warned(Record):
    event: Literal["warning"] = "warning"
    text: str


class Ended(Record):
    event: Literal["end"] = "end"
    metrics: Metrics


class Progressed(Record):
    """For the screen only. Where it is not known of how many, it is one more."""

    event: Literal["progress"] = "progress"
    stage: str
    done: Count = 0
    of: Count | None = None


class NextExperiment(Record):
    """For the screen only: which of several begins."""

    event: Literal["experiment"] = "experiment"
    text: str
    done: bool  # it was finished before


Event: TypeAlias = Started | RoundDone | ClientFailed | Warned | Ended | Progressed | NextExperiment
Emit = Callable[[Event], None]
_LINE: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def silent(event: Event) -> None:
    """For whoever does not look on."""


def to_file(path: Path, up_to_round: int) -> Emit:
    """Append events to a JSON-lines file.

    When a run goes on from ``up_to_round``, what an earlier attempt wrote of later rounds (and a
    line cut short by a kill) is dropped first: the file tells the run that the results come from.
    """

    def stays(event: Event) -> bool:
        return not isinstance(event, Ended) and getattr(event, "round", 0) <= up_to_round

    write_atomic(path, "".join(_line(event) for event in read(path) if stays(event)))

    def emit(event: Event) -> None:
        if not isinstance(event, Progressed | NextExperiment):
            append(path, event)

    return emit


def append(path: Path, event: Event) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(_line(event))


def _line(event: Event) -> str:
    return event.model_dump_json(exclude_none=True) + "\n"


def read(path: Path) -> list[Event]:
    """All whole events of a file. It is for people: what else is in it is passed over."""
    if not path.is_file():  # nor is a pipe waited for
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [event for line in lines if (event := parse(line)) is not None]


def parse(line: str) -> Event | None:
    """An event, without characters that would steer a terminal: clients chose some of its words."""
    try:
        return _LINE.validate_python(printable(json.loads(line)))
    except (ValueError, RecursionError):  # not JSON, or not an event
        return None


def to_all(*sinks: Emit) -> Emit:
    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
