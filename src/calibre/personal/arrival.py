"""A personal model for a client that no run has seen: a trained encoder, a few labelled images.

The encoder stays as it is; the head is the client's own, whatever its classes are called.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibre.data.formats import EncodedImage, Part, Raw, Shape
from calibre.data.formats.decoders import decode
from calibre.data.sources import read
from calibre.errors import UserError
from calibre.personal.pictures import as_encoded
from calibre.sections import DataSettings

NAMED = 3  # files that a note names


class Images(NamedTuple):
    """Labelled images, decoded as the encoder wants them."""

    pixels: Tensor  # uint8 [n, H, W, C]
    labels: Tensor  # int64 [n]


class Arrived(NamedTuple):
    """What a new client brought."""

    classes: tuple[str, ...]
    train: Images
    test: Images | None
    unlabelled: Tensor  # uint8 [m, H, W, C]
    notes: tuple[str, ...]  # what was left out
    given: int = 0  # labels that come from a labels.csv


def read_images(place: Path, shape: Shape, to_test: Path | None = None) -> Arrived:
    """A folder with one sub-folder per class (or another source of one client), decoded.

    ``to_test`` is a folder of images to measure with, where ``place`` has none of its own.
    """
    raw = _read(place)
    if to_test is not None and raw.test is None:
        raw = replace(raw, test=_test_part(to_test, raw.classes))
    if raw.train.owners is not None and len(set(raw.train.owners)) > 1:
        one = sorted(set(raw.train.owners))[0]
        raise UserError(
            f"{place} holds images of {len(set(raw.train.owners))} clients; give the folder of "
            f"one, such as {place / one}"
        )
    train, unread = decoded(raw.train, shape)
    test, lost = decoded(raw.test, shape) if raw.test else (None, [])
    nothing = Images(torch.zeros(0, *shape, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    more, gone = decoded(raw.unlabelled, shape) if raw.unlabelled else (nothing, [])
    unread += [*lost, *gone]
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
        more.pixels,
        tuple(notes),
        raw.given,
    )


def _test_part(place: Path, classes: tuple[str, ...]) -> Part:
    """The images of a folder that are of these classes."""
    raw = _read(place)
    names = [raw.classes[label] for label in raw.train.labels.tolist()]
    rows = [row for row, name in enumerate(names) if name in classes]
    labels = np.array([classes.index(names[row]) for row in rows], np.int64)
    return replace(raw.train.pick(np.array(rows, np.intp)), labels=labels)


def _read(place: Path) -> Raw:
    if not place.exists():
        raise UserError(f"--data {place}: no such folder; give one sub-folder per class")
    try:
        return read(DataSettings(source=str(place)))
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error}") from None


def decoded(part: Part, shape: Shape) -> tuple[Images, list[str]]:
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
