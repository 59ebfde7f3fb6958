"""From a personal model and its client's images to a bundle: what is measured, and on what.

Nothing is fitted to test images. The temperature and the limit for strangers come from labelled
images answered by models that had not seen them; test images, where there are any, only tell how
well that went.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import __version__
from calibre.models.network import Head
from calibre.personal.bundle import Bundle
from calibre.personal.card import (
    Accuracy,
    Calibration,
    Card,
    Held,
    Outside,
    Preprocessing,
    Refusal,
)
from calibre.personal.feature_parts import spec_of
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut
from calibre.personal.outside import RATES, Prototypes, fit_prototypes, refused, threshold
from calibre.personal.predictor import Predictor
from calibre.personal.trust import calibration_error, fit_temperature, surprise, wilson
from calibre.sections import NetworkSettings
from calibre.wording import rate as in_words
from calibre.wording import span

RATE = 0.05  # of own images that may be refused as strangers
FEWEST_TO_FIT = 10  # held-out images, below which a temperature is left at 1
FEWEST_OF_A_CLASS = 5
WIDEST = 0.2  # of the accuracy's interval
NAMED = 5  # classes that a warning names


@dataclass(frozen=True)
class Making:
    """Everything that a bundle is made from."""

    client: str
    novel: bool
    method: str
    classes: tuple[str, ...]
    network: NetworkSettings
    preprocessing: Preprocessing
    encoders: Sequence[nn.Module]
    head: Head
    labelled: Samples
    held_out: HeldOut
    fitted: str  # how the held-out answers came about, or why they cannot be used
    final: Head | None = None  # what is bundled, after all labels; None: what is measured
    usable: bool = True  # whether they are like the model's own, so that a temperature fits both
    test: Samples | None = None
    foreign: Tensor | None = None  # features of images of classes that the client does not hold
    unlabelled: int = 0
    fairness: Mapping[str, Any] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    run: Mapping[str, str | int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rate: float = RATE


def assemble(making: Making) -> Bundle:
    """The predictor and its card."""
    prototypes = fit_prototypes(*making.labelled)
    accuracy = _accuracy(making)
    calibration = _calibration(making)
    outside = _outside(making, prototypes)
    predictor = Predictor.of(
        making.encoders,
        making.final or making.head,
        calibration.temperature,
        prototypes if outside.limit is not None else None,
        making.preprocessing.normalization,
    )
    card = Card(
        made_by=f"Calibre {__version__}",
        client=making.client,
        novel=making.novel,
        method=making.method,
        classes=_held(making),
        unlabelled=making.unlabelled,
        accuracy=accuracy,
        calibration=calibration,
        outside=outside,
        fairness=dict(making.fairness),
        floors=dict(making.floors),
        preprocessing=making.preprocessing,
        network=making.network,
        parts=tuple(spec_of(part) for part in making.encoders),
        run=dict(making.run),
        settings=dict(making.settings),
        warnings=(*making.notes, *_warnings(making, accuracy)),
    )
    return Bundle(card, predictor)


def _held(making: Making) -> tuple[Held, ...]:
    count = len(making.classes)
    labelled = making.labelled.labels.bincount(minlength=count).tolist()
    test = making.test.labels.bincount(minlength=count).tolist() if making.test else [0] * count
    return tuple(
        Held(name=name, labelled=a, test=b)
        for name, a, b in zip(making.classes, labelled, test, strict=True)
    )


def _accuracy(making: Making) -> Accuracy | None:
    """On test images; where there are none, on held-out ones."""
    if making.test is not None:
        correct = int((_logits(making, making.test.features).argmax(1) == making.test.labels).sum())
        images = len(making.test.labels)
    else:
        correct, images = making.held_out.correct, len(making.held_out.labels)
    if images == 0:
        return None
    low, high = wilson(correct, images)
    return Accuracy(
        how="test images" if making.test is not None else "cross-validation",
        images=images,
        correct=correct,
        value=correct / images,
        low=low,
        high=high,
    )


def _calibration(making: Making) -> Calibration:
    held = making.held_out
    images = len(held.labels)
    enough = making.usable and images >= FEWEST_TO_FIT
    temperature = fit_temperature(held.logits, held.labels) if enough else 1.0
    if making.test is not None:
        logits, labels = _logits(making, making.test.features), making.test.labels
        before, after = logits.softmax(1), (logits / temperature).softmax(1)
        measured = "the client's test images, which nothing was fitted to"
    else:
        labels, before = held.labels, held.logits.softmax(1)
        after = held.calibrated() if enough else before
        measured = "held-out images, each with the temperature of the others"
    known = len(labels) > 0
    return Calibration(
        temperature=temperature,
        fitted=_how(making, images),
        images=images if enough else 0,
        measured=measured,
        measured_images=len(labels),
        error_before=calibration_error(before, labels) if known else None,
        error_after=calibration_error(after, labels) if known else None,
        surprise_before=surprise(before, labels) if known else None,
        surprise_after=surprise(after, labels) if known else None,
    )


def _how(making: Making, images: int) -> str:
    if making.usable and images < FEWEST_TO_FIT:
        return f"left at 1, for {images} held-out images are too few"
    return making.fitted


def _outside(making: Making, prototypes: Prototypes | None) -> Outside:
    held = making.held_out.distances
    if prototypes is None or len(held) == 0:
        return Outside(
            rate=making.rate, limit=None, held_out=len(held),
            own_images=0, foreign_images=0, tradeoff=(),
        )  # fmt: skip
    own = _distances(prototypes, making.test.features if making.test else None)
    foreign = _distances(prototypes, making.foreign)
    limits = {rate: threshold(held, rate) for rate in sorted({*RATES, making.rate})}
    return Outside(
        rate=making.rate,
        limit=limits[making.rate],
        held_out=len(held),
        own_images=len(own),
        foreign_images=len(foreign),
        tradeoff=tuple(
            Refusal(
                rate=rate,
                limit=limit,
                own=refused(own, limit) if len(own) else None,
                foreign=refused(foreign, limit) if len(foreign) else None,
            )
            for rate, limit in limits.items()
        ),
    )


def _distances(prototypes: Prototypes, features: Tensor | None) -> Tensor:
    return torch.empty(0) if features is None else prototypes.distance(features)


def _logits(making: Making, features: Tensor) -> Tensor:
    return F.linear(features, *making.head)


def _warnings(making: Making, accuracy: Accuracy | None) -> list[str]:
    """What is too little to be relied on."""
    found = []
    counts = making.labelled.labels.bincount(minlength=len(making.classes)).tolist()
    few = [
        name
        for name, count in zip(making.classes, counts, strict=True)
        if 0 < count < FEWEST_OF_A_CLASS
    ]
    if few:
        more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
        found.append(
            f"fewer than {FEWEST_OF_A_CLASS} labelled images of {', '.join(few[:NAMED])}{more}: "
            "label more of them"
        )
    if sum(count > 0 for count in counts) == 1:
        found.append("all labelled images are of one class: there is nothing to tell apart")
    if accuracy is None:
        found.append("too few images to estimate the accuracy")
    elif accuracy.high - accuracy.low > WIDEST:
        found.append(
            f"the accuracy may be anything from {span(accuracy.low, accuracy.high, 0)}: "
            f"{accuracy.images} images are too few to say more"
        )
    if 0 < len(making.held_out.distances) < 1 / making.rate - 1:
        found.append(
            f"{len(making.held_out.distances)} held-out images are too few to refuse "
            f"{in_words(making.rate)} of own images: the farthest of them sets the limit"
        )
    return found
