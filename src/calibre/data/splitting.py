"""A test part, split off a source that has none."""

import numpy as np
import numpy.typing as npt

from calibre.data.formats import Part
from calibre.data.parts import Labels
from calibre.errors import UserError
from calibre.sections import DataSettings


def split(name: str, part: Part, settings: DataSettings) -> tuple[Part, Part]:
    """Split a test part off, each client's and each class's share of it as even as can be."""
    from calibre.rng import numpy_stream  # imported late: it brings torch

    owners, _ = owners_of([part])
    is_test = sample(part.labels, owners, settings.test_fraction, numpy_stream(0, "test part"))
    if is_test.all() or not is_test.any():
        raise UserError(
            f"{name}: data.test_fraction = {settings.test_fraction} of {len(is_test)} images "
            "leaves nothing to train or nothing to test on"
        )
    return part.pick(np.flatnonzero(~is_test)), part.pick(np.flatnonzero(is_test))


def sample(
    labels: Labels,
    owners: npt.NDArray[np.int32] | None,
    fraction: float,
    rng: np.random.Generator,
    start: float = 0.5,
) -> npt.NDArray[np.bool_]:
    """Which images to set aside: a systematic sample, after sorting by owner, class and chance.

    Every owner, and every class of an owner, is a run of n neighbours in that order, and of any n
    neighbours the sample takes ``n * fraction`` rounded up or down. Of all of them it takes
    that plus ``start``, which is from 0 to 1, rounded down.
    """
    count = len(labels)
    order = np.lexsort((rng.random(count), labels, np.zeros(count) if owners is None else owners))
    steps = np.floor(np.arange(count + 1) * fraction + start)
    taken = np.zeros(count, dtype=np.bool_)
    taken[order] = np.diff(steps) > 0
    return taken


def owners_of(parts: list[Part]) -> tuple[npt.NDArray[np.int32] | None, tuple[str, ...]]:
    """Owners by number, and their names."""
    if any(part.owners is None for part in parts):
        return None, ()
    owners = [owner for part in parts for owner in part.owners or ()]
    names = sorted(set(owners))
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[owner] for owner in owners], dtype=np.int32), tuple(names)
