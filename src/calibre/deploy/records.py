"""What coordinator and sites tell each other, beside jobs and their replies.

Strict records: unknown or odd values are refused. A message of Flower's carries the text of a
record and, where tensors travel, one block (:mod:`calibre.engine.messages`). Flower moves one
large array several times faster than a hundred small ones.
"""

from typing import Annotated

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import Field, model_validator

from calibre.data.augment import Normalization
from calibre.engine import messages
from calibre.engine.messages import Failed, Job, Name, Record
from calibre.sections import Count, Positive
from calibre.settings import Settings

KIND = "safetensors"  # Flower's name for how an array was written
MOST_IMAGES = 10**8  # of a site: a larger count is a mistake or an attack
ROUNDING = 1e-9  # of sums of pixels

Side = Annotated[int, Field(ge=1, le=65_536)]
Images = Annotated[int, Field(ge=0, le=MOST_IMAGES)]
Share = tuple[Count, Positive]  # (i, n): one of n nodes that share an experiment's clients out


class SiteReport(Settings):
    """All that a site tells of its data."""

    name: Name
    novel: bool
    shape: tuple[Side, Side, Side]  # of an image: height, width, channels
    classes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=10_000)]
    labelled: tuple[Images, ...]  # images by class
    test: tuple[Images, ...]  # images by class
    unlabelled: Images
    total: tuple[float, ...]  # sums of pixels by channel, for the common normalisation
    squares: tuple[float, ...]
    values: Annotated[int, Field(ge=1, le=2**62)]

    @model_validator(mode="after")
    def _possible(self) -> "SiteReport":
        """Counts and sums that images can have: the coordinator reserves room and divides by them.

        Of n pixels x within 0 and 255: (sum x)^2 <= n sum x^2, and sum x^2 <= 255 sum x.
        """
        if sum(self.labelled) + sum(self.test) + self.unlabelled > MOST_IMAGES:
            raise ValueError(f"it tells of more than {MOST_IMAGES:,} images")
        for total, squares in zip(self.total, self.squares, strict=False):
            least = (total / self.values) * total * (1 - ROUNDING)
            if not 0 <= total <= 255 * self.values or not least <= squares <= 255 * total:
                raise ValueError("its sums are not those of pixels")
        return self


class Hello(Settings):
    """A node's answer to who it is: a site with its own data, or a share of the experiment's."""

    version: Name
    site: SiteReport | None = None
    share: Share | None = None


class FederationFacts(Settings):
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


class JobRequest(Settings):
    """A job for one node, and what it must know to do it."""

    job: Job
    round: Count
    training: Positive  # clients that take part in training
    oldest: Count  # the earliest round that the server may go back to
    experiment: str
    facts: FederationFacts | None
    half: bool


def envelope(record: Settings, block: bytes | None = None) -> RecordDict:
    """A message of Flower's."""
    content = RecordDict({"text": ConfigRecord({"json": messages.write(record)})})
    if block is not None:
        content["tensors"] = ArrayRecord({"block": Array("uint8", (len(block),), KIND, block)})
    return content


def text_of(content: RecordDict) -> object:
    """The text of a message, for :func:`calibre.engine.messages.read`."""
    record = content.config_records.get("text")
    return record.get("json") if record is not None else None


def block_of(content: RecordDict) -> bytes:
    """The tensors of a message, for :func:`calibre.engine.messages.unpack`."""
    record = content.array_records.get("tensors")
    if record is None or "block" not in record:
        raise ValueError("it has no tensors")
    array = record["block"]
    if array.stype != KIND:
        raise ValueError(f"its tensors are written as '{array.stype[:40]}', not as '{KIND}'")
    return array.data


class SiteError(ValueError):
    """The site says itself what went wrong."""


def record_of(reply: Message | str, kind: type[Record]) -> Record:
    """What a reply says; ValueError where it says something else, or tells of a failure."""
    if isinstance(reply, str):
        raise SiteError(reply)
    if reply.has_error():
        raise SiteError(f"Flower reports: {reply.error.reason or reply.error.code}"[:2000])
    told = messages.read(text_of(reply.content), kind, Failed)
    if isinstance(told, Failed):
        raise SiteError(told.error[:2000])
    assert isinstance(told, kind)
    return told
