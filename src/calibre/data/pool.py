"""A data set, decoded: one uint8 array that every process maps into memory, and its labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNLABELLED = -1
TRAIN_AT_LEAST = 2  # labelled images, for an owner to be a client


@dataclass(frozen=True)
class Pool:
    """All images of a data set in one array; clients and splits are indices into it."""

    name: str
    images: npt.NDArray[np.uint8]  # [N, H, W, C], C = 1 or 3; usually a read-only memory map
    labels: npt.NDArray[np.int64]  # [N], UNLABELLED where nobody knows
    classes: tuple[str, ...]
    train: range
    test: range
    unlabelled: range  # a part of its own that comes without labels (STL-10); often empty
    fingerprint: str  # hash of images, labels, classes and splits
    owners: npt.NDArray[np.int32] | None = None  # [N], index into owner_names: a natural partition
    owner_names: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)  # what happened to it on its way in
    place: Path | None = None  # where it lies decoded, for other processes to map

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        _, height, width, channels = self.images.shape
        return height, width, channels
