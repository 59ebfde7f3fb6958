"""What a personal model gets wrong: recall by class, what it mixes up, its surest mistakes.

Test images tell it; where they are few, held-out ones do. The pictures are the client's own images:
they stay in its bundle's folder, and a bundle without them is as good as one with them.

Shapes: n images of H x W pixels in C channels, K classes.
"""

import io
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from calibre.data.formats import PixelArray
from calibre.personal.card import ClassRecall, Confused, Mistake, Mistakes
from calibre.personal.judge import Statistics
from calibre.personal.making import Making
from calibre.personal.outside import Prototypes
from calibre.personal.refusals import MadeUp, far_away, held_out_distances
from calibre.personal.trust import wilson

FEW = 50  # test images, below which more held-out ones tell more
PICTURED = 8  # mistakes of a kind
SIDE, GAP, FOOT = 96, 8, 18  # pixels of a picture, between pictures, and below one for its number
PAPER, INK = 255, 40


class Answered(NamedTuple):
    """Images that the model had not seen, and what it says of them."""

    how: Literal["test images", "cross-validation"]
    labels: Tensor  # int64 [n]
    probabilities: Tensor  # [n, K], calibrated
    distances: Tensor | None  # [n]: infinite where pixels are refused; None: nothing is refused
    images: Tensor | None  # uint8 [n, H, W, C]

    def refused(self, limit: float | None) -> Tensor:
        """Which are called none of the client's classes, [n]."""
        if self.distances is None:
            return torch.zeros(len(self.labels), dtype=torch.bool)
        return self.distances.isinf() if limit is None else self.distances > limit


def mistakes_of(
    making: Making, seen: Answered, shown: Sequence[MadeUp], temperature: float, limit: float | None
) -> tuple[Mistakes | None, bytes | None]:
    """What there is to tell, and its pictures as one PNG; None where there is nothing."""
    if not len(seen.labels):
        return None, None
    surest, answers = seen.probabilities.max(1)
    refused, wrong = seen.refused(limit), answers != seen.labels
    names = making.classes
    told: list[Mistake] = []
    pictures: list[PixelArray] = []
    if seen.images is not None:
        for row in _first(torch.where(wrong & ~refused, surest, -1)):
            is_, said = names[int(seen.labels[row])], names[int(answers[row])]
            told.append(_mistake("wrong class", is_, said, float(surest[row])))
            pictures.append(seen.images[row].numpy())
        if seen.distances is not None:
            for row in _first(torch.where(refused, seen.distances, -1)):
                told.append(_mistake("refused", names[int(seen.labels[row])], None, None))
                pictures.append(seen.images[row].numpy())
        for kind, pixels, said, sure in _accepted(making, shown, temperature, limit):
            told.append(_mistake("accepted", kind, said, sure))
            pictures.append(pixels)
    found = Mistakes(
        how=seen.how,
        images=len(seen.labels),
        classes=_recalls(names, seen, answers, refused),
        confused=_confused(names, seen.labels[wrong], answers[wrong]),
        pictured=tuple(told),
    )
    return found, contact_sheet(pictures) if pictures else None


def answered(
    making: Making, temperature: float, prototypes: Prototypes | None, usual: Statistics | None
) -> Answered:
    """The images that tell most: test images, unless they are few and held-out ones are more."""
    held, test = making.held_out, making.test
    more = making.usable and len(held.labels) > (len(test.labels) if test else 0)
    if test is not None and (len(test.labels) >= FEW or not more):
        logits = F.linear(test.features, *making.head)
        near = (
            torch.zeros(len(logits)) if prototypes is None else prototypes.distance(test.features)
        )
        pixels = making.test_images
        far = near if pixels is None else far_away(near, pixels, usual)
        return Answered("test images", test.labels, _shares(logits, temperature), far, pixels)
    far = held_out_distances(making)
    images = None if making.images is None else making.images[held.rows]
    known = len(far) == len(held.labels)
    return Answered(
        "cross-validation", held.labels, _shares(held.logits, temperature), far if known else None,
        images,
    )  # fmt: skip


def _shares(logits: Tensor, temperature: float) -> Tensor:
    return (logits / temperature).softmax(1)


def _first(scores: Tensor) -> list[int]:
    """The rows of the highest scores, of those that are not negative."""
    order = scores.sort(descending=True, stable=True).indices[:PICTURED].tolist()
    return [row for row in order if scores[row] >= 0]


def _mistake(
    kind: Literal["wrong class", "refused", "accepted"], is_: str, answer: str | None,
    sure: float | None,
) -> Mistake:  # fmt: skip
    return Mistake(kind=kind, truth=is_, answer=answer, probability=sure)


def _accepted(
    making: Making, shown: Sequence[MadeUp], temperature: float, limit: float | None
) -> list[tuple[str, PixelArray, str, float]]:
    """Made-up images that got a class, the surest first."""
    found = []
    for kind in shown:
        sure, answers = _shares(kind.logits, temperature).max(1)
        for row in torch.nonzero(kind.accepted(limit))[:, 0].tolist():
            said = making.classes[int(answers[row])]
            found.append((kind.name, kind.pixels[row], said, float(sure[row])))
    return sorted(found, key=lambda each: -each[3])[:PICTURED]


def _recalls(
    names: Sequence[str], seen: Answered, answers: Tensor, refused: Tensor
) -> tuple[ClassRecall, ...]:
    rows = []
    for label in seen.labels.unique().tolist():
        here = seen.labels == label
        images, correct = int(here.sum()), int((answers[here] == label).sum())
        low, high = wilson(correct, images)
        rows.append(
            ClassRecall(
                name=names[label],
                images=images,
                correct=correct,
                low=low,
                high=high,
                refused=int(refused[here].sum()) if seen.distances is not None else None,
            )
        )
    return tuple(rows)


def _confused(names: Sequence[str], labels: Tensor, answers: Tensor) -> tuple[Confused, ...]:
    """Pairs of classes, the most frequent first."""
    pairs, counts = torch.stack([labels, answers]).unique(dim=1, return_counts=True)
    order = counts.sort(descending=True, stable=True).indices.tolist()
    return tuple(
        Confused(truth=names[pairs[0, i]], answer=names[pairs[1, i]], images=int(counts[i]))
        for i in order
    )


def contact_sheet(images: Sequence[PixelArray]) -> bytes:
    """Images [H, W, C] side by side, each with its number from 1 on below it, as PNG."""
    font = ImageFont.load_default()
    rows = -(-len(images) // PICTURED)
    cell = SIDE + GAP
    size = (min(len(images), PICTURED) * cell + GAP, rows * (cell + FOOT) + GAP)
    sheet = Image.new("RGB", size, (PAPER, PAPER, PAPER))
    draw = ImageDraw.Draw(sheet)
    for number, pixels in enumerate(images):
        row, column = divmod(number, PICTURED)
        left, top = GAP + column * cell, GAP + row * (cell + FOOT)
        plain = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
        picture = Image.fromarray(plain)
        scale = SIDE / max(picture.size)
        wide, high = (max(1, round(scale * side)) for side in picture.size)
        sheet.paste(picture.resize((wide, high), Image.Resampling.NEAREST), (left, top))
        draw.text((left, top + SIDE + 2), str(number + 1), fill=(INK, INK, INK), font=font)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
