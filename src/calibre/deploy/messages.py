"""What coordinator and sites tell each other, as strict records: unknown or odd values are refused.

Each message is one JSON text and, where tensors travel, one packed array.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field, ValidationError

from calibre.data.augment import Normalization
from calibre.experiment import Count, Fraction, Positive
from calibre.settings import Settings

LONGEST = 2**20  # characters of one message's text
LONGEST_NAME = 200

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Reason = Annotated[str, Field(max_length=2000)]
Share = tuple[Count, Positive]  # (i, n): one of n nodes that share an experiment's clients out


class SiteReport(Settings):
    """All that a site tells of its data."""

    name: Name
    novel: bool
    shape: tuple[Positive, Positive, Positive]  # of an image: height, width, channels
    classes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=10_000)]
    labelled: tuple[Count, ...]  # images by class
    test: tuple[Count, ...]  # images by class
    unlabelled: Count
    total: tuple[float, ...]  # sums of pixels by channel, for the common normalisation
    squares: tuple[float, ...]
    values: Positive


class Hello(Settings):
    """A node's answer to who it is: a site with its own data, or a share of the experiment's."""

    version: Name
    site: SiteReport | None = None
    share: Share | None = None


class Facts(Settings):
    """What every site must know of the federation of sites."""

    name: Name  # of the data
    shape: tuple[Positive, Positive, Positive]
    classes: tuple[Name, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    training: Positive  # clients that train

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.mean, self.std)


class Request(Settings):
    """A job for one node: what to do, for whom, from which state."""

    kind: Literal["update", "personalize"]
    round: Count
    role: Name
    clients: Annotated[tuple[Count, ...], Field(min_length=1)]
    kept: tuple[Count, ...]  # of each client: the round whose state the server has confirmed
    oldest: Count  # the earliest round that the server may go back to
    experiment: str
    facts: Facts | None
    half: bool


class Updated(Settings):
    """What a site says with its update."""

    samples: Count
    weight: Annotated[float, Field(ge=0)]
    report: dict[str, float]
    began: float
    seconds: float


class Personalized(Settings):
    """How well each client's personal model does on the client's own test images."""

    accuracy: dict[str, Fraction]
    problem: Reason = ""  # why the site could not make a bundle of its model, though it has one


class Failed(Settings):
    """Why there is no answer. The traceback stays at the site: it may tell of the data."""

    error: Reason


Record = TypeVar("Record", bound=Settings)


def write(record: Settings, tensors: Array | None = None) -> RecordDict:
    content = RecordDict({"text": ConfigRecord({"json": record.model_dump_json()})})
    if tensors is not None:
        content["tensors"] = ArrayRecord({"block": tensors})
    return content


def text_of(content: RecordDict) -> dict[str, Any]:
    """The fields of a message; ValueError where there are none."""
    record = content.config_records.get("text")
    text = record.get("json") if record is not None else None
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError("it has no text, or too long a one")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("its text is not a table")
    return fields


def read(kind: type[Record], fields: dict[str, Any]) -> Record:
    """A record from what was received; ValueError says which field is wrong."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}") from None


def tensors_of(content: RecordDict) -> Array:
    record = content.array_records.get("tensors")
    if record is None or "block" not in record:
        raise ValueError("it has no tensors")
    return record["block"]
