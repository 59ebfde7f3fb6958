"""One small reader per file format. Each returns a Raw, which ``sources`` turns into a pool."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from calibre.data.class_names import one_spelling
from calibre.data.parts import Labels
from calibre.errors import UserError

PixelArray = npt.NDArray[np.uint8]  # [N, H, W, C], C = 1 or 3
Shape = tuple[int, int, int]  # height, width, channels
LONGEST_NAME = 1_000  # characters of a class


class UnreadableError(Exception):
    """Why an image cannot be read, to be said after its name."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A JPEG, PNG, ... still to be decoded: its bytes, or the path of the file that holds them."""

    name: str  # what a message calls it
    content: bytes | str


class Stream(Protocol):
    """Encoded images that stay on disk until a loop comes to them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[EncodedImage]: ...

    def __getitem__(self, places: npt.NDArray[np.intp]) -> "Stream":
        """Those at ``places``, which ascend."""


EncodedImages = Sequence[EncodedImage] | Stream


@dataclass(frozen=True)
class Part:
    """Images of one purpose: to train on, to test on, or without labels."""

    images: PixelArray | EncodedImages
    labels: Labels
    owners: Sequence[str] | None = None  # whose image it is, where the source knows

    def pick(self, index: npt.NDArray[np.intp]) -> "Part":
        """The images at ``index``."""
        images = self.images
        return Part(
            images[index] if isinstance(images, np.ndarray) else pick(images, index),
            self.labels[index],
            None if self.owners is None else [self.owners[i] for i in index],
        )


def pick(images: EncodedImages, places: npt.NDArray[np.intp]) -> EncodedImages:
    """The images at ``places``, which ascend; none of them is read for that."""
    return [images[i] for i in places] if isinstance(images, Sequence) else images[places]


@dataclass(frozen=True)
class Raw:
    """What a reader finds."""

    classes: tuple[str, ...]
    train: Part
    test: Part | None = None  # None: the source has no test part of its own
    unlabelled: Part | None = None
    notes: tuple[str, ...] = ()  # sentences about what was not read
    left_out: tuple[tuple[str, str], ...] = ()  # every file or row of those, and why
    given: int = 0  # labels of ``train`` that come from a labels.csv


def number_classes(
    place: Path | str, *parts: Sequence[Any], classes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], list[Labels]]:
    """Class names, and the labels of each part as indices into them.

    Labels are numbers or names; with ``classes``, names or indices of those.
    """
    found = {value: _named(value) for value in set().union(*parts)}
    if classes is None:
        if len({isinstance(value, str) for value in found}) > 1:
            raise UserError(f"{place}: some labels are numbers and others names; make all one kind")
        values = sorted(set(found.values()))
        classes = tuple(str(value) for value in values)
        index = {value: i for i, value in enumerate(values)}
    else:
        classes = tuple(map(one_spelling, classes))
        index = {name: i for i, name in enumerate(classes)} | {i: i for i in range(len(classes))}
    for name in classes:
        if len(name) > LONGEST_NAME:
            raise UserError(f"{place}: a class has a name of {len(name):,} characters; shorten it")
    if len(set(classes)) != len(classes):
        raise UserError(f"{place}: two classes have the same name; name each differently")
    for value in set(found.values()) - index.keys():
        known = f"from 0 = {classes[0]} to {len(classes) - 1} = {classes[-1]}" if classes else ""
        raise UserError(
            f"{place}: the label {str(value)[:LONGEST_NAME]!r} is neither the name nor the number "
            f"of one of the {len(classes)} classes{known and f', {known}'}"
        )
    number = {value: index[name] for value, name in found.items()}
    return classes, [np.array([number[value] for value in part], np.int64) for part in parts]


def _named(value: Any) -> Any:
    return one_spelling(value) if isinstance(value, str) else value
