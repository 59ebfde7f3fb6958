"""The only place where randomness is born.

Every draw comes from a generator keyed by the experiment's seed, a purpose and where in the run
it is needed. A draw therefore does not depend on what ran before it, in which process, or whether
the run was resumed: that is what makes the same experiment give the same bits.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, *keys: int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(0, "batches", round, client, epoch)``."""
    label = "/".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "big") >> 1


def stream(
    seed: int, purpose: str, *keys: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """An independent torch generator for one purpose and place in the run."""
    return torch.Generator(device=device).manual_seed(derive(seed, purpose, *keys))


def numpy_stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The numpy twin of :func:`stream`, for index work."""
    return np.random.default_rng(derive(seed, purpose, *keys))


@contextmanager
def isolated(seed: int, purpose: str, *keys: int) -> Iterator[None]:
    """Give code that draws from torch's global generator a keyed one, and put the old one back.

    Module constructors initialise their weights, and dropout draws its masks, from the global
    generator; inside this block both are reproducible and nothing outside notices.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(derive(seed, purpose, *keys))
        yield
