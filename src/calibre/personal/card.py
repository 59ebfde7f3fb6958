"""A bundle's model card: what the model is, what it was made from and how far to trust it.

``card.json`` is for programs and is checked when a bundle is loaded; ``card.md`` says the same to
people. Both are functions of what they describe: the same run gives the same bytes.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from calibre.data.augment import Normalization
from calibre.personal.feature_parts import PartSpec, in_words
from calibre.personal.judge import GRAY, Statistics
from calibre.sections import Fraction, NetworkSettings
from calibre.settings import Settings
from calibre.wording import percent, span

Side = Annotated[int, Field(ge=1, le=8192)]
Number = Annotated[int, Field(ge=0)]


class Accuracy(Settings):
    """A share of images that were answered rightly, with its 95 % interval."""

    how: Literal["test images", "cross-validation"]
    images: Annotated[int, Field(ge=1)]
    correct: Number
    value: Fraction
    low: Fraction
    high: Fraction


class Calibration(Settings):
    """Whether "80 %" is right in 8 of 10 cases, before and after the temperature."""

    temperature: Annotated[float, Field(gt=0)]
    fitted: str  # on what
    images: Number  # that it was fitted on
    measured: str  # on what
    measured_images: Number
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


class ForeignKind(Settings):
    """Made-up images of one kind: how many were taken for one of the client's classes."""

    name: str
    images: Annotated[int, Field(ge=1)]
    accepted: Number
    low: Fraction  # of the share, 95 % interval
    high: Fraction


class Outside(Settings):
    """When an image is none of the client's classes."""

    rate: Fraction
    limit: float | None  # of the distance; None: too few images to tell
    held_out: Number  # own images that the limits come from
    own_images: Number  # test images behind ``own``
    foreign_images: Number  # behind ``foreign``
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
    labelled: Number
    test: Number


class Card(Settings):
    format: Literal["calibre-bundle"] = "calibre-bundle"
    version: Literal[3] = 3
    made_by: str  # which Calibre
    client: str
    novel: bool  # took no part in training the encoder
    method: str
    classes: Annotated[tuple[Held, ...], Field(min_length=1, max_length=100_000)]
    unlabelled: Number
    accuracy: Accuracy | None  # None: nothing to measure it on
    calibration: Calibration
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
        content = self.model_dump(mode="json", exclude={"hash"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def accuracy_in_words(found: Accuracy | None) -> str:
    """``87.5 % of 56 test images (95 % interval 76.4 to 93.8 %)``."""
    if found is None:
        return "unknown: no image could be set aside to measure it"
    interval = f"95 % interval {span(found.low, found.high)}"
    how = found.how if found.how == "test images" else "images, by cross-validation"
    return f"{percent(found.value)} of {found.images} {how} ({interval})"


def markdown(card: Card) -> str:
    """``card.md``."""
    sections = [
        f"# Personal model of {_plain(card.client)}",
        _summary(card),
        *[f"**Warning:** {_plain(text)}" for text in card.warnings],
        "## Classes\n\n" + _table(
            ["class", "labelled", "test"],
            [[_plain(held.name), held.labelled, held.test] for held in card.classes],
        ) + f"\n\nand {card.unlabelled} images without a label.",
        "## Are its probabilities right?\n\n" + _calibration(card.calibration),
        "## None of your classes\n\n" + _outside(card),
        "## The run\n\n" + _run(card),
        "## Preprocessing\n\n" + _preprocessing(card),
        "## Contents\n\n"
        "`model.safetensors` (encoder, head, temperature, class means), `card.json` (this card for "
        "programs, with every setting and the SHA-256 of everything here). Class means and spread "
        "are statistics of the client's own images: give the bundle to whom you would give those.",
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def _summary(card: Card) -> str:
    who = "took no part in training the encoder" if card.novel else "took part in training"
    lines = [
        f"- accuracy: {accuracy_in_words(card.accuracy)}",
        f"- method: {_plain(card.method)}; this client {who}",
    ]
    lines += [
        f"- for comparison, {name}: {percent(value)}" for name, value in sorted(card.floors.items())
    ]
    return "\n".join(lines)


def _calibration(found: Calibration) -> str:
    text = f"Temperature {found.temperature:.3f}"
    text += f", fitted on {found.images} images" if found.images else ""
    text += f": {found.fitted}."
    if found.error_before is None:
        return text + " Nothing was left to measure the calibration error on."
    return f"{text}\n\nMeasured on {found.measured_images} images ({found.measured}):\n\n" + _table(
        ["", "before", "after"],
        [
            ["calibration error", percent(found.error_before), percent(found.error_after)],
            [
                "negative log-likelihood",
                f"{found.surprise_before:.3f}",
                f"{found.surprise_after:.3f}",
            ],
        ],
    )


def _outside(card: Card) -> str:
    return "\n\n".join([_pixels(card), _limits(card.outside), *_kinds(card.outside)])


def _pixels(card: Card) -> str:
    """What is looked at before the model."""
    if card.usual is None:
        return "Pixels are not looked at: too few images to tell what is usual."
    gray = card.usual.colour.high <= GRAY
    colour = "in colour" if gray else "far more colourful"
    return (
        f"Before the model is asked, an image is refused that is blank, inverted, {colour}, or far "
        "darker, brighter, rougher or smoother than the training images."
    )


def _kinds(found: Outside) -> list[str]:
    if not found.kinds:
        return []
    rows = [
        [kind.name, kind.images, kind.accepted, span(kind.low, kind.high, 0)]
        for kind in found.kinds
    ]
    accepted = sum(kind.accepted for kind in found.kinds)
    images = sum(kind.images for kind in found.kinds)
    return [
        f"Of {images} made-up images of {len(found.kinds)} kinds that are none of the classes, "
        f"{accepted} ({percent(accepted / images)}) were given a class all the same, with at most "
        f"{percent(found.rate, 0)} of own images refused:",
        _table(["kind", "images", "given a class", "95 % interval"], rows),
    ]


def _limits(found: Outside) -> str:
    if found.limit is None:
        return "No limit of the distance: too few images to tell how far its own ones lie apart."
    rows = [
        [
            percent(row.rate, 0),
            f"{row.limit:.3f}" + (" (used)" if row.rate == found.rate else ""),
            percent(row.own),
            percent(row.foreign),
        ]
        for row in found.tradeoff
    ]
    others = (
        f"{found.foreign_images} images of classes that this client does not have"
        if found.foreign_images
        else "no images of other classes, for none were at hand"
    )
    return (
        f"An image farther than {found.limit:.3f} from every class is refused. Limits are set on "
        f"{found.held_out} held-out images of the client's own; the right-hand columns were "
        f"measured on {found.own_images} own test images and {others}.\n\n"
        + _table(["own images refused: aim", "limit", "measured", "others caught"], rows)
    )


def _run(card: Card) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in card.run.items())
    columns = ("clients", "mean", "variance", "worst_tenth", "min")
    rows = [
        [
            {"train": "trained", "novel": "novel"}.get(group, group),
            figures["clients"],
            percent(figures["mean"]),
            "–" if figures["variance"] is None else f"{figures['variance']:.4f}",
            percent(figures["worst_tenth"]),
            percent(figures["min"]),
        ]
        for group, figures in card.fairness.items()
        if figures.get("clients")
    ]
    if not rows:
        return f"{facts}.\n\nHow it does for all its clients is known to its coordinator alone."
    heads = ["", *(name.replace("_", " ") for name in columns)]
    return f"{facts}.\n\nAccuracy over all its clients:\n\n" + _table(heads, rows)


def _preprocessing(card: Card) -> str:
    p = card.preprocessing
    kind = "gray" if p.channels == 1 else "RGB"
    return (
        f"Turned upright (EXIF), made {kind} with 8 bits, resized to {p.width} x {p.height} "
        f"(bilinear), then (value / 255 - mean) / std with mean "
        f"{', '.join(f'{value:.4f}' for value in p.mean)} and std "
        f"{', '.join(f'{value:.4f}' for value in p.std)}. "
        f"Encoder: {card.network.encoder} of width {card.network.width}"
        + f". The classifier sees {in_words(card.parts)}."
    )


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _plain(text: str) -> str:
    """Names are the user's: they must not become markup, nor leave their cell."""
    text = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!&" else c for c in text)
