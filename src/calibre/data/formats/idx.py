"""MNIST and its relatives: idx files, plain or gzipped (yann.lecun.com/exdb/mnist)."""

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibre.data.formats import Part, PixelArray, Raw
from calibre.errors import UserError
from calibre.files import open_regular

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# people have train-images-idx3-ubyte, the same with .gz, and train-images.idx3-ubyte
FILES = tuple(
    f"{part}-{kind}?idx{axes}-ubyte*"
    for part in ("train", "t10k")
    for kind, axes in (("images", 3), ("labels", 1))
)
UNSIGNED_BYTES = 8  # the idx code of the only element type these data sets use
MOST_BYTES = 2**30  # of an array: twenty times MNIST


def read(folder: Path, classes: tuple[str, ...]) -> Raw:
    train_images, train_labels, test_images, test_labels = (
        _array(sorted(folder.glob(pattern))[0]) for pattern in FILES
    )
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if images.ndim != 3 or labels.ndim != 1:
            raise UserError(f"{folder}: images and labels are swapped; download them again")
    return Raw(
        classes,
        Part(train_images[..., None], train_labels.astype(np.int64)),
        Part(test_images[..., None], test_labels.astype(np.int64)),
    )


def _array(path: Path) -> PixelArray:
    """Two zero bytes, the element type, the number of axes, their lengths, then the elements."""
    try:
        with open_regular(path) as file:
            return _content(path, gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error


def _content(path: Path, file: BinaryIO | gzip.GzipFile) -> PixelArray:
    """No more is unpacked than the header says, and no more of that than a data set has."""
    start = file.read(4)
    axes = start[3] if len(start) == 4 else 0
    lengths = file.read(4 * axes)
    if start[:3] != bytes([0, 0, UNSIGNED_BYTES]) or len(lengths) < 4 * axes:
        raise UserError(f"{path} is not an idx file of bytes; download it again")
    shape = np.frombuffer(lengths, ">u4").tolist()
    claimed = math.prod(shape)
    words = "x".join(map(str, shape))
    if axes not in (1, 3) or claimed > MOST_BYTES:
        raise UserError(f"{path} has a header that says {words}; download it again")
    content = file.read(claimed)
    more = len(file.read(1))
    if len(content) + more != claimed:
        found = f"more than {claimed:,}" if more else f"{len(content):,}"
        raise UserError(
            f"{path} holds {found} bytes where its header says {words}; download it again"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
