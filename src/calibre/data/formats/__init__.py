"""One small reader per file format. Each returns a Raw, which ``sources`` turns into a pool."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from calibre.errors import UserError

Pixels = npt.NDArray[np.uint8]  # [N, H, W, C], C = 1 or 3
Labels = npt.NDArray[np.int64]  # [N], indices into the class names


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


Encoded = Sequence[EncodedImage] | Stream


@dataclass(frozen=True)
class Part:
    """Images of one purpose: to train on, to test on, or without labels."""

    images: Pixels | Encoded
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


def pick(images: Encoded, places: npt.NDArray[np.intp]) -> Encoded:
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


def number_classes(
    place: Path | str, *parts: Sequence[Any], classes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], list[Labels]]:
    """Class names, and the labels of each part as indices into them.

    Labels are numbers or names of any kind; with ``classes``, names or indices of those.
    """
    if classes is None:
        values = sorted(set().union(*parts))
        classes = tuple(str(value) for value in values)
        index = {value: i for i, value in enumerate(values)}
    else:
        index = {name: i for i, name in enumerate(classes)} | {i: i for i in range(len(classes))}
    for value in set().union(*parts) - index.keys():
        raise UserError(
            f"{place}: the label {value!r} is neither the name nor the number of one of the "
            f"{len(classes)} classes, from 0 = {classes[0]} to {len(classes) - 1} = {classes[-1]}"
        )
    return classes, [np.array([index[value] for value in part], np.int64) for part in parts]
