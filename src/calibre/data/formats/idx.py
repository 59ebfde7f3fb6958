"""MNIST and its relatives: idx files, plain or gzipped (yann.lecun.com/exdb/mnist)."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from calibre.data.formats import Part, Pixels, Raw
from calibre.errors import UserError

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


def read(folder: Path, classes: tuple[str, ...]) -> Raw:
    train_images, train_labels, test_images, test_labels = (
        _array(sorted(folder.glob(pattern))[0]) for pattern in FILES
    )
    return Raw(
        classes,
        Part(train_images[..., None], train_labels.astype(np.int64)),
        Part(test_images[..., None], test_labels.astype(np.int64)),
    )


def _array(path: Path) -> Pixels:
    """Two zero bytes, the element type, the number of axes, their lengths, then the elements."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error
    axes = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * axes
    if content[:3] != bytes([0, 0, UNSIGNED_BYTES]) or len(content) < start:
        raise UserError(f"{path} is not an idx file of bytes; download it again")
    shape = [int(n) for n in np.frombuffer(content, ">u4", axes, offset=4)]
    if len(content) != start + np.prod(shape, dtype=np.int64):
        raise UserError(
            f"{path} holds {len(content) - start:,} bytes where its header says "
            f"{'x'.join(map(str, shape))}; download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
