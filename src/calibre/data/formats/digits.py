"""The 1,797 handwritten digits of 8x8 that come with scikit-learn."""

from pathlib import Path

import numpy as np

from calibre.data.formats import Part, Raw


def read(_: Path) -> Raw:
    from sklearn.datasets import load_digits  # imported late: it takes a second

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # ink 0..16 -> 0..255
    classes = tuple(str(name) for name in digits.target_names)
    return Raw(classes, Part(images[..., None], digits.target.astype(np.int64)))
