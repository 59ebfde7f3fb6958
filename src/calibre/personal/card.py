"""A bundle's model card: what the model is, what it was made from and how far to trust it.

``card.json`` is for programs and is checked when a bundle is loaded; ``card.md`` says the same to
people. Both are functions of what they describe: the same run gives the same bytes.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from calibre.data.augment import Normalization
from calibre.personal.feature_parts import PartSpec
from calibre.personal.judge import Statistics
from calibre.sections import Count, Fraction, NetworkSettings
from calibre.settings import Settings

Side = Annotated[int, Field(ge=1, le=8192)]


class Accuracy(Settings):
    """A share of images that were answered rightly, with its 95 % interval."""

    how: Literal["test images", "cross-validation"]
    images: Annotated[int, Field(ge=1)]
    correct: Count
    value: Fraction
    low: Fraction
    high: Fraction


class Calibration(Settings):
    """Whether "80 %" is right in 8 of 10 cases, before and after the temperature."""

    temperature: Annotated[float, Field(gt=0)]
    fitted: str  # on what
    images: Count  # that it was fitted on
    measured: str  # on what
    measured_images: Count
    error_before: Fraction | None  # expected calibration error
    error_after: Fraction | None
    surprise_before: float | None  # negative log-likelihood
    surprise_after: float | None


class Refusal(Settings):
    """One row of the trade-off: refuse more, catch more."""

    rate: Fraction  # of own images refused that the limit is set for
    limit: float
    own: Fraction | None  # of the client's own test images refused
    foreign: Fraction | None  # of images of classes that it does not hold


class ClassRecall(Settings):
    """How many images of a class were answered rightly, with the 95 % interval of that share."""

    name: str
    images: Annotated[int, Field(ge=1)]
    correct: Count
    low: Fraction
    high: Fraction
    refused: Count | None  # called none of the client's classes; None: none ever is


class Confused(Settings):
    """Images of one class that were taken for another."""

    truth: str
    answer: str
    images: Annotated[int, Field(ge=1)]


class Mistake(Settings):
    """A picture in ``mistakes.png``, where they are numbered from 1 on."""

    kind: Literal["wrong class", "refused", "accepted"]
    truth: str  # its class, or the kind of a made-up image
    answer: str | None  # None: none of the client's classes
    probability: Fraction | None


class Mistakes(Settings):
    """What the model gets wrong."""

    how: Literal["test images", "cross-validation"]
    images: Annotated[int, Field(ge=1)]
    classes: tuple[ClassRecall, ...]
    confused: tuple[Confused, ...]  # the most frequent first
    pictured: tuple[Mistake, ...]


class ForeignKind(Settings):
    """Made-up images of one kind: how many were taken for one of the client's classes."""

    name: str
    images: Annotated[int, Field(ge=1)]
    accepted: Count
    low: Fraction  # of the share, 95 % interval
    high: Fraction


class Outside(Settings):
    """When an image is none of the client's classes."""

    rate: Fraction
    limit: float | None  # of the distance; None: too few images to tell
    held_out: Count  # own images that the limits come from
    own_images: Count  # test images behind ``own``
    foreign_images: Count  # behind ``foreign``
    tradeoff: tuple[Refusal, ...]
    kinds: tuple[ForeignKind, ...]  # at the limit used


class Preprocessing(Settings):
    """What becomes of an image before the encoder sees it."""

    height: Side
    width: Side
    channels: Literal[1, 3]
    mean: tuple[float, ...]  # of values in [0, 1]
    std: tuple[Annotated[float, Field(gt=0)], ...]

    @classmethod
    def of(cls, shape: tuple[int, int, int], norm: Normalization) -> "Preprocessing":
        """Of images of a shape (height, width, channels)."""
        height, width, channels = shape
        values = {"height": height, "width": width, "channels": channels}
        return cls.model_validate({**values, "mean": norm.mean, "std": norm.std})

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.mean, self.std)


class Held(Settings):
    """How many images of a class the client has."""

    name: str
    labelled: Count
    test: Count


class Card(Settings):
    format: Literal["calibre-bundle"] = "calibre-bundle"
    version: Literal[3] = 3
    made_by: str  # which Calibre
    client: str
    novel: bool  # took no part in training the encoder
    method: str
    classes: Annotated[tuple[Held, ...], Field(min_length=1, max_length=100_000)]
    unlabelled: Count
    chosen: str | None = None  # how the labelled ones were chosen; None: of an older Calibre
    accuracy: Accuracy | None  # None: nothing to measure it on
    calibration: Calibration
    mistakes: Mistakes | None  # None: nothing to measure them on
    outside: Outside
    usual: Statistics | None  # what its images look like; None: too few to say
    fairness: dict[str, dict[str, float | int | None]]  # of the run: "train", "novel"
    floors: dict[str, float]  # what this client reaches without the federation
    preprocessing: Preprocessing
    network: NetworkSettings
    parts: Annotated[tuple[PartSpec, ...], Field(min_length=1, max_length=8)]  # side by side
    run: dict[str, str | int]  # experiment, federation, seed, rounds
    settings: dict[str, Any]  # the whole experiment
    warnings: tuple[str, ...]
    files: dict[str, str] = Field(default_factory=dict)  # sha256 of everything beside this card
    hash: str = ""  # of this card, and through ``files`` of everything

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(held.name for held in self.classes)

    def digest(self) -> str:
        """What ``hash`` must be."""
        unknown = {"chosen"} if self.chosen is None else set()
        content = self.model_dump(mode="json", exclude={"hash", *unknown})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
