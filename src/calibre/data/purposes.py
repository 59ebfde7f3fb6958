"""What a run's images were for, known by their pixels: to train on, or to test on.

A run that goes on from another one keeps to that. What was trained on, with or without a label,
would otherwise be tested on whenever the test part of a growing source is drawn anew.
"""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from calibre.data.formats.images import prints
from calibre.data.parts import Ints, Mask
from calibre.data.pool import Pool
from calibre.data.splitting import sample
from calibre.errors import UserError
from calibre.files import open_regular, write_atomic
from calibre.freed import let_go
from calibre.rng import numpy_stream
from calibre.run_files import RunFiles

if TYPE_CHECKING:
    from calibre.data.federation import Federation

Prints = npt.NDArray[np.bytes_]  # a hash of each image's pixels, "S16"
BLOCK = 2**26  # bytes of pixels looked at together


@dataclass(frozen=True, eq=False)
class Purposes:
    """Images by their prints, each in one of these at most."""

    train: Prints
    test: Prints
    validation: Prints  # held out of the training images, with federation.score_on = "validation"

    def save(self, folder: Path, federation: str) -> None:
        """Into the folder of the run that has a federation of this hash."""
        arrays = {name: _bytes(array) for name, array in vars(self).items()}
        content = safetensors.numpy.save(
            arrays, metadata={"federation": federation, "sha256": _checksum(arrays, federation)}
        )
        write_atomic(RunFiles(folder).purposes, content)


class Division(NamedTuple):
    """The images of a pool by what they are for: places in it, ascending."""

    train: Ints
    test: Ints
    unlabelled: Ints
    trained: Mask  # [N] which ones an earlier run has trained on
    validation: Mask  # [N] which ones it has held out to validate with


class Earlier(NamedTuple):
    """What the images were for before, and which part of new ones is to test on."""

    purposes: Purposes
    fraction: float | None  # None: the source has a test part of its own


def divided(pool: Pool, earlier: Earlier | None = None) -> Division:
    """The pool's own parts; but every image that an earlier run has held stays what it was."""
    parts = (np.arange(part.start, part.stop) for part in (pool.train, pool.test, pool.unlabelled))
    train, test, unlabelled = parts
    nobody = np.zeros(len(pool.labels), np.bool_)
    if earlier is None:
        return Division(train, test, unlabelled, nobody, nobody)
    known, found = earlier.purposes, prints_of(pool)
    trained, validation = np.isin(found, known.train), np.isin(found, known.validation)
    is_test = nobody.copy()
    is_test[_new_tests(pool, earlier, trained | validation | np.isin(found, known.test))] = True
    is_test[trained | validation] = False
    is_test[np.isin(found, known.test)] = True
    labelled = np.concatenate([train, test])
    tests = labelled[is_test[labelled]]
    to_train = ~np.isin(found, found[tests])  # the copy of a test image is not trained on
    return Division(
        labelled[to_train[labelled]], tests, unlabelled[to_train[unlabelled]], trained, validation
    )


def _new_tests(pool: Pool, earlier: Earlier, known: Mask) -> Ints:
    """Which images to test on, of those that no earlier run has held: a share of them alone."""
    if earlier.fraction is None:
        return np.arange(pool.test.start, pool.test.stop)
    labelled = np.arange(pool.train.start, pool.test.stop)
    new = labelled[~known[labelled]]
    owners = None if pool.owners is None else pool.owners[new]
    # the draw is another one in every update: one new image at a time, every fifth is a test image
    rng = numpy_stream(0, "test part/new images", sum(map(len, vars(earlier.purposes).values())))
    return new[sample(pool.labels[new], owners, earlier.fraction, rng, start=rng.random())]


def purposes_of(
    pool: Pool, federation: "Federation", earlier: Earlier | None = None, validated: bool = False
) -> Purposes:
    """What a run's images are for, and what they were for in the runs that it goes on from.

    Where clients are made up, images count that no client was dealt. ``validated``: scores are
    those of images held out of training (federation.score_on).
    """
    division, found = divided(pool, earlier), prints_of(pool)
    scored = _mask(found, federation.test.indices)
    train = _mask(found, federation.labelled.indices) | _mask(found, federation.unlabelled.indices)
    test = np.zeros_like(scored) if validated else scored
    if validated or not federation.names:
        test = test | _mask(found, division.test)
    if not federation.names:
        train |= _mask(found, division.train) & ~scored
    before = earlier.purposes if earlier else NOTHING
    trained = np.union1d(before.train, found[train])
    tested = np.setdiff1d(np.union1d(before.test, found[test]), trained)
    held = np.union1d(before.validation, found[scored] if validated else NOTHING.validation)
    return Purposes(trained, tested, np.setdiff1d(held, np.union1d(trained, tested)))


def _mask(found: Prints, places: npt.NDArray[Any]) -> Mask:
    mask = np.zeros(len(found), np.bool_)
    mask[places] = True
    return mask


def prints_of(pool: Pool) -> Prints:
    """Of every image of a pool, [N]; read once, and let go of."""
    step = max(1, BLOCK // max(1, pool.images[:1].nbytes))
    blocks = [
        prints(pool.images[start : start + step]) for start in range(0, len(pool.images), step)
    ]
    let_go(pool.images)
    return np.concatenate(blocks).view("S16")


def load(folder: Path, federation: str) -> Purposes:
    """What :meth:`Purposes.save` wrote there, whole and of this federation."""
    path = RunFiles(folder).purposes
    try:
        open_regular(path).close()
        with safetensors.safe_open(path, framework="numpy") as file:
            said = file.metadata() or {}
            arrays = {field.name: file.get_tensor(field.name) for field in fields(Purposes)}
        if said.get("sha256") != _checksum(arrays, federation):
            raise ValueError("its checksum does not match, or it is another run's")
        return Purposes(**{name: _prints(array) for name, array in arrays.items()})
    except (safetensors.SafetensorError, OSError, ValueError, LookupError) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it from a copy; without it nobody knows which "
            "images the run has trained on"
        ) from None


def _bytes(found: Prints) -> npt.NDArray[np.uint8]:
    return np.frombuffer(found.astype("S16").tobytes(), np.uint8).reshape(-1, 16)


def _prints(array: npt.NDArray[np.uint8]) -> Prints:
    return np.frombuffer(array.tobytes(), "S16")


def _checksum(arrays: dict[str, npt.NDArray[np.uint8]], federation: str) -> str:
    digest = hashlib.sha256(federation.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


NOTHING = Purposes(*(np.empty(0, "S16") for _ in fields(Purposes)))
