"""Images that are, pixel by pixel, in training and in test data: one of the two has to go."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

from calibre.data.pool import TRAIN_AT_LEAST


class Copies(NamedTuple):
    """What to leave out, as places among all images, ascending."""

    training: list[int]  # to train on, with or without a label
    tests: list[int]


def find_copies(
    prints: Sequence[bytes],
    train: int,
    test: int,
    owners: Sequence[str] | None,
    unreadable: Collection[int],
) -> Copies:
    """Images come in the order train, test, unlabelled; equal images have equal ``prints``.

    A training image goes, whoever holds it: a shared encoder would be scored on what it has seen.
    Only where nobody will be scored on the test image, because its owner has too few images to
    train on and is no client, the test image goes instead, and the other client keeps its own.
    """
    tested = [i for i in range(train, train + test) if i not in unreadable]
    others = [
        i for i in chain(range(train), range(train + test, len(prints))) if i not in unreadable
    ]
    poor: set[str] = set()
    while True:
        seen = {prints[i] for i in tested if owners is None or owners[i] not in poor}
        training = [i for i in others if prints[i] in seen]
        if owners is None:
            return Copies(training, [])
        gone = set(training)
        left = Counter(owners[i] for i in others if i < train and i not in gone)
        more = {owners[i] for i in tested if left[owners[i]] < TRAIN_AT_LEAST} - poor
        if not more:
            break
        poor |= more
    kept = {prints[i] for i in others if i not in gone}
    return Copies(training, [i for i in tested if owners[i] in poor and prints[i] in kept])
