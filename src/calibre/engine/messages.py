"""What is asked of whoever does client work, and what comes back: one set of records, one codec.

A message is a text, one record as JSON, and where tensors travel one block, a safetensors file.
Pipes to workers and Flower's messages carry the same two. Nothing is unpickled, and what arrives
is bounded and checked before anything uses it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import safetensors
import safetensors.torch as st
import torch
from pydantic import Field, ValidationError, model_validator

from calibre.methods.method import Update
from calibre.personal.pooling import Curves, HeadChoice
from calibre.sections import Count, Positive
from calibre.settings import Settings, first_of
from calibre.tensors import Tensors, grouped, ordered

METHOD = "method"  # the role of the experiment's own method; floors have their own names
LONGEST_TEXT = 2**20  # characters
LONGEST_DETAIL = 20_000
DEEPEST = 32  # tables within tables
HEADER = 2**16  # bytes of a block's layout beyond a fixed number per tensor
PER_TENSOR = 512

# what others call themselves gets onto screens: no control characters
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Reason = Annotated[str, Field(max_length=LONGEST_DETAIL)]


class Job(Settings):
    """Train one client for a round, or make personal models for a group of clients."""

    kind: Literal["update", "assess", "personalize"]
    clients: Annotated[tuple[Count, ...], Field(min_length=1)]
    role: Name = METHOD
    choice: HeadChoice | None = None  # for personal models: what all clients go by,
    curves: dict[Count, Curves] = Field(default_factory=dict)  # and what each found for itself
    kept: tuple[Count, ...] = ()  # after which round each client last kept something; 0: never


class Updated(Settings):
    """What a client says with its update's tensors."""

    samples: Count
    numbers: dict[Name, float | None]  # None: not known
    keeps: bool  # whether the client kept something for its next round
    report: dict[Name, float]
    began: float
    seconds: float

    @staticmethod
    def of(update: Update, began: float, seconds: float) -> "Updated":
        numbers = {n: None if math.isnan(value) else value for n, value in update.numbers.items()}
        try:
            return Updated(
                samples=update.samples, numbers=numbers, keeps=update.personal is not None,
                report=update.report, began=began, seconds=seconds,
            )  # fmt: skip
        except ValidationError as error:
            raise ValueError(f"its update cannot be sent: {first_of(error)}") from None

    def update(self, client: int, tensors: Tensors) -> Update:
        numbers = {n: math.nan if value is None else value for n, value in self.numbers.items()}
        return Update(client, self.samples, grouped(tensors), numbers, None, self.report)


class Assessed(Settings):
    """What clients' cross-validation says of the ways to make their heads."""

    curves: dict[Count, Curves]
    missing: dict[Count, Reason] = Field(default_factory=dict)


class Score(Settings):
    """How many of a client's own test images its personal model gets right."""

    correct: Count
    images: Positive

    @model_validator(mode="after")
    def _possible(self) -> "Score":
        if self.correct > self.images:
            raise ValueError("it gets more images right than there are")
        return self

    @property
    def accuracy(self) -> float:
        return self.correct / self.images


class Personalised(Settings):
    """The scores of a group's personal models, by client; who has none, and why."""

    scores: dict[Count, Score]
    missing: dict[Count, Reason] = Field(default_factory=dict)
    problem: Reason = ""  # why a site could not make a bundle of its model, though it has one


class Failed(Settings):
    """Why there is no answer."""

    error: Reason
    detail: Reason = ""  # the traceback; a site keeps it to itself, for it may tell of the data
    lacking: Reason = ""  # of the machine, such as room on its disk: not the client's failure


Reply = Updated | Assessed | Personalised | Failed


@dataclass(frozen=True)
class Outcome:
    """A job and what came of it."""

    job: Job
    reply: Reply
    tensors: Tensors = field(default_factory=dict)  # of an update


Record = TypeVar("Record", bound=Settings)


def write(record: Settings) -> str:
    return json.dumps({"is": type(record).__name__, **record.model_dump(mode="json")})


def read(text: object, *kinds: type[Record]) -> Record:
    """The record that a text holds, of one of these kinds; ValueError says what is wrong."""
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise ValueError("it has no text, or too long a one")
    if _depth(text) > DEEPEST:
        raise ValueError("its tables are nested too deeply")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("its text is not a table")
    known = {kind.__name__: kind for kind in kinds}
    kind = known.get(str(fields.pop("is", "")))
    if kind is None:
        raise ValueError(f"its text is no {' or '.join(known)}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ValueError(first_of(error)) from None


def _depth(text: str) -> int:
    """How deeply a text's brackets are nested, at most; those within strings count too."""
    deepest = depth = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def pack(tensors: Mapping[str, torch.Tensor], half: bool = False) -> bytes:
    """All tensors as one block; with ``half``, floating ones as float16."""
    if half:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    return st.save(ordered(tensors))


def unpack(block: bytes, limit: float = math.inf) -> Tensors:
    """The tensors of a block of at most ``limit`` bytes; ValueError says what is wrong with it."""
    if len(block) > limit:
        raise ValueError(f"its tensors take {len(block):,} bytes, at most {limit:,} are due")
    try:
        return ordered(st.load(block))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"its tensors cannot be read: {error}") from None


def restored(tensors: Tensors, like: Mapping[str, torch.Tensor]) -> Tensors:
    """Float16 that stands for float32, as ``like`` says, made float32 again."""
    return {
        name: tensor.to(like[name].dtype)
        if tensor.dtype == torch.float16 and name in like and like[name].is_floating_point()
        else tensor
        for name, tensor in tensors.items()
    }


def room_for(tensors: Mapping[str, torch.Tensor]) -> int:
    """The most bytes that a block of such tensors can take."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return size + PER_TENSOR * len(tensors) + HEADER


def _halved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    short = tensor.to(torch.float16)
    if torch.isinf(short).any() and not torch.isinf(tensor).any():
        raise ValueError(f"tensor '{name}' exceeds float16; use engine.transfer = 'exact'")
    return short
