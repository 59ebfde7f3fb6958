"""STL-10: 5,000 labelled, 8,000 test and 100,000 unlabelled images of 96x96, binary files."""

from pathlib import Path

import numpy as np

from calibre.data.formats import Part, PixelArray, Raw
from calibre.data.parts import Labels
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError

FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt")
UNLABELLED_FILE = "unlabeled_X.bin"  # 2.7 GB that some people take away
SIDE = 96


def read(folder: Path) -> Raw:
    unlabelled = None
    if (folder / UNLABELLED_FILE).exists():
        images = _images(folder / UNLABELLED_FILE)
        unlabelled = Part(images, np.full(len(images), UNLABELLED, dtype=np.int64))
    try:
        classes = tuple((folder / "class_names.txt").read_text(encoding="utf-8").split())
    except UnicodeDecodeError as error:
        raise UserError(f"{folder / 'class_names.txt'} is damaged: {error}; get it again") from None
    return Raw(classes, _part(folder, "train"), _part(folder, "test"), unlabelled)


def _part(folder: Path, part: str) -> Part:
    return Part(_images(folder / f"{part}_X.bin"), _labels(folder / f"{part}_y.bin"))


def _labels(path: Path) -> Labels:
    return np.fromfile(path, np.uint8).astype(np.int64) - 1  # the file counts from 1


def _images(path: Path) -> PixelArray:
    """A memory map, so that three gigabytes pass through block by block."""
    size = path.stat().st_size
    if size == 0 or size % (3 * SIDE * SIDE):
        raise UserError(f"{path} is not a whole number of images ({size:,} bytes); get it again")
    columns_first = np.memmap(path, np.uint8, "r").reshape(-1, 3, SIDE, SIDE)  # [N, C, W, H]
    return columns_first.transpose(0, 3, 2, 1)
