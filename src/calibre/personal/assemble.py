"""From a personal model and its client's images to a bundle: what is measured, and on what.

Nothing is fitted to test images. The temperature and the limit of the distance come from labelled
images answered by models that had not seen them; test images, where there are any, only tell how
well that went.
"""

import torch.nn.functional as F
from torch import Tensor

from calibre import __version__
from calibre.personal.bundle import Bundle
from calibre.personal.card import Accuracy, Calibration, Card, Held
from calibre.personal.feature_parts import spec_of
from calibre.personal.making import Making
from calibre.personal.mistakes import answered, mistakes_of
from calibre.personal.outside import fit_prototypes
from calibre.personal.predictor import Predictor
from calibre.personal.refusals import outside_of, show_made_up, usual_of
from calibre.personal.trust import calibration_error, fit_temperature, surprise, wilson
from calibre.wording import rate as in_words
from calibre.wording import span

FEWEST_TO_FIT = 10  # held-out images, below which a temperature is left at 1
FEWEST_OF_A_CLASS = 5
WIDEST = 0.2  # of the accuracy's interval
NAMED = 5  # classes that a warning names


def assemble(making: Making) -> Bundle:
    """The predictor and its card."""
    prototypes = fit_prototypes(*making.labelled)
    accuracy = _accuracy(making)
    calibration = _calibration(making)
    usual = usual_of(making)
    shown = show_made_up(making, prototypes, usual)
    outside = outside_of(making, prototypes, usual, shown)
    temperature = calibration.temperature
    seen = answered(making, temperature, prototypes, usual)
    mistakes, pictures = mistakes_of(making, seen, shown, temperature, outside.limit)
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
        chosen=making.chosen,
        accuracy=accuracy,
        calibration=calibration,
        mistakes=mistakes,
        outside=outside,
        usual=usual,
        fairness=dict(making.fairness),
        floors=dict(making.floors),
        preprocessing=making.preprocessing,
        network=making.network,
        parts=tuple(spec_of(part) for part in making.encoders),
        run=dict(making.run),
        settings=dict(making.settings),
        warnings=(*making.notes, *_warnings(making, accuracy)),
    )
    return Bundle(card, predictor, pictures=pictures)


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
