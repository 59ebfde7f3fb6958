"""Noise as a data set for Calibre, whose workers import it from here."""

import numpy as np

from benchmarks.peer_drivers.job import CLASSES, CLIENTS, IMAGES


def noise() -> dict[str, np.ndarray]:
    """A data set: as many images as the clients train on, and half as many to test with."""
    random = np.random.default_rng(0)
    count = CLIENTS * IMAGES * 3 // 2
    return {
        "images": random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        "labels": np.arange(count) % CLASSES,
    }
