"""A personal model for a client that no run has seen: a trained encoder, a few labelled images.

The encoder stays as it is; the head is the client's own, whatever its classes are called.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibre import rng
from calibre.data.formats import EncodedImage, Part, Raw
from calibre.data.formats.decoders import decode
from calibre.data.sources import read
from calibre.errors import UserError
from calibre.experiment import DataSettings, PersonalSettings
from calibre.personal.heads import Head, Samples, fresh_head, train_heads
from calibre.personal.holdout import HeldOut, cross_validate, refit_heads
from calibre.personal.pictures import as_encoded

# A few images make few batches; ten epochs of them are too few steps for a head to settle.
STEPS = 400
# Encoders differ in the scale of their features, and a learning rate suits one scale: features are
# centred and brought to this mean squared length.
LENGTH = 30.0
NAMED = 3  # files that a note names

Shape = tuple[int, int, int]


class Images(NamedTuple):
    """Labelled images, decoded as the encoder wants them."""

    pixels: Tensor  # uint8 [n, H, W, C]
    labels: Tensor  # int64 [n]


class Arrived(NamedTuple):
    """What a new client brought."""

    classes: tuple[str, ...]
    train: Images
    test: Images | None
    unlabelled: int
    notes: tuple[str, ...]  # what was left out


def read_images(place: Path, shape: Shape) -> Arrived:
    """A folder with one sub-folder per class (or another source of one client), decoded."""
    raw = _read(place)
    if raw.train.owners is not None and len(set(raw.train.owners)) > 1:
        one = sorted(set(raw.train.owners))[0]
        raise UserError(
            f"{place} holds images of {len(set(raw.train.owners))} clients; give the folder of "
            f"one, such as {place / one}"
        )
    train, unread = _decoded(raw.train, shape)
    test, more = _decoded(raw.test, shape) if raw.test else (None, [])
    unread += more
    notes = list(raw.notes)
    if unread:
        rest = f" and {len(unread) - NAMED} more" if len(unread) > NAMED else ""
        notes.append(f"left out: {'; '.join(unread[:NAMED])}{rest}")
    if len(train.labels) == 0:
        raise UserError(f"none of the images in {place} can be read: {'; '.join(unread[:NAMED])}")
    return Arrived(
        raw.classes,
        train,
        test if test and len(test.labels) else None,
        len(raw.unlabelled.labels) if raw.unlabelled else 0,
        tuple(notes),
    )


def fit_head(
    samples: Samples, classes: int, settings: PersonalSettings, seed: int
) -> tuple[Head, HeldOut]:
    """A head of its own on frozen features, and what such heads say of images held out."""
    steps = math.ceil(len(samples.labels) / settings.batch)
    longer = settings.model_copy(update={"epochs": max(settings.epochs, math.ceil(STEPS / steps))})
    centre = samples.features.mean(0)
    spread = (samples.features - centre).square().sum(1).mean().clamp(min=1e-12)
    scale = (LENGTH / spread).sqrt()
    scaled = Samples((samples.features - centre) * scale, samples.labels)
    start = fresh_head(seed, 0, classes, len(centre))
    held_out = cross_validate(
        samples.labels, refit_heads(scaled, start, longer, seed), rng.stream(seed, "folds")
    )
    weight, bias = train_heads([0], [scaled], [start], longer, seed)
    weight = weight[0] * scale  # the same answers, from features as they are
    return Head(weight, bias[0] - weight @ centre), held_out


def _read(place: Path) -> Raw:
    if not place.exists():
        raise UserError(f"--data {place}: no such folder; give one sub-folder per class")
    try:
        return read(DataSettings(source=str(place)))
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error}") from None


def _decoded(part: Part, shape: Shape) -> tuple[Images, list[str]]:
    """The images that can be read, and what is wrong with the others."""
    encoded = [
        image if isinstance(image, EncodedImage) else as_encoded(image, i)
        for i, image in enumerate(part.images)
    ]
    pixels, kept, unread = [], [], []
    start = 0
    for block in decode(encoded, shape):
        good = [i for i in range(len(block.pixels)) if i not in block.problems]
        unread += [f"{encoded[start + i].name} {text}" for i, text in block.problems.items()]
        pixels.append(block.pixels[good])
        kept += [start + i for i in good]
        start += len(block.pixels)
    stacked = np.concatenate(pixels) if pixels else np.zeros((0, *shape), np.uint8)
    return Images(torch.from_numpy(stacked), torch.from_numpy(part.labels[kept])), unread
