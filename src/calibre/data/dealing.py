"""Which images a client holds, of how many it holds of each class.

They are dealt, so that no two clients hold the same one, or drawn by every client on its own. Then
some of them keep their label, and some are held out to test on.

Shapes: C clients (novel ones included), K classes.
"""

import numpy as np

from calibre.data.partition import Streams, rank_within, round_rows
from calibre.data.parts import Ints, Labels, Mask, Parts

FLOYD = 10_000  # images of a class, above which numpy may choose in another way than Floyd's
FEW = 64  # of one class for one client: looking through more of them pair by pair is slow


def deal(counts: Ints, labels: Labels, rng: np.random.Generator) -> Parts:
    """``counts`` [C, K] images out of ``labels`` [n], each to one client at most."""
    clients, indices = [], []
    for label, column in enumerate(counts.T):
        clients.append(np.repeat(np.arange(len(counts)), column))
        indices.append(rng.permutation(np.flatnonzero(labels == label))[: column.sum()])
    return Parts.of(np.concatenate(clients), np.concatenate(indices), len(counts))


def draw(counts: Ints, labels: Labels, streams: Streams) -> Parts:
    """``counts`` [C, K] images out of ``labels`` [n], by every client without replacement."""
    sizes = np.bincount(labels, minlength=counts.shape[1])
    by_class = np.argsort(labels, kind="stable")
    places = distinct(sizes, counts, streams)
    starts = np.tile(np.cumsum(sizes) - sizes, len(counts))  # of every client's every class
    indices = by_class[places + np.repeat(starts, counts.ravel())]
    return Parts.of(np.repeat(np.arange(len(counts)), counts.sum(1)), indices, len(counts))


def distinct(sizes: Ints, counts: Ints, streams: Streams) -> Ints:
    """Places within each class, one client's after another, of ``counts`` [C, K] in all.

    To the bit what ``rng.choice(size, wanted, replace=False, shuffle=False)`` gives for one class
    after another, by the same algorithm: R. W. Floyd's, which draws from 0..j for every j of the
    last ``wanted`` places and takes j itself where that was drawn before. But a client's draws are
    one call, and those of all clients are looked through together: a hundred thousand clients
    take seconds.
    """
    if int(sizes.max(initial=0)) > FLOYD or int(counts.max(initial=0)) > FEW:
        chosen = [
            rng.choice(size, wanted, replace=False, shuffle=False)
            for rng, row in zip(map(streams, range(len(counts))), counts.tolist(), strict=True)
            for size, wanted in zip(sizes.tolist(), row, strict=True)
            if wanted
        ]
        return np.concatenate(chosen or [np.empty(0, np.int64)])
    wanted = counts.ravel()
    starts = np.cumsum(wanted) - wanted
    step = np.arange(int(wanted.sum())) - np.repeat(starts, wanted)  # within client and class
    last = np.repeat(np.tile(sizes, len(counts)) - wanted, wanted) + step  # Floyd's j
    ends = counts.sum(1).cumsum().tolist()
    places = np.empty_like(last)
    for client, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        places[start:end] = streams(client).integers(0, last[start:end], endpoint=True)
    for t in range(1, int(wanted.max(initial=0))):
        here = np.flatnonzero(step == t)
        before = here[:, None] - np.arange(1, t + 1)
        again = (places[before] == places[here, None]).any(1)
        places[here[again]] = last[here[again]]
    return places


def keep_labels(
    parts: Parts, labels: Labels, counts: Ints, by_class: bool, streams: Streams
) -> Mask:
    """Which of ``parts.indices`` keep their label: ``counts`` [C] of each client.

    At random, so that they follow the client's own mix of classes; or ``by_class``, one of every
    class after another, as evenly as the client's images allow.
    """
    keys = np.concatenate([streams(client).random(size) for client, size in enumerate(parts.sizes)])
    if by_class:
        keys = keys + rank_within(_classes_of(parts, labels), keys)  # the first of each, the second
    kept: Mask = rank_within(parts.clients, keys) < counts[parts.clients]
    return kept


def keep_of_each_class(parts: Parts, labels: Labels, kept: int, streams: Streams) -> Mask:
    """Which of ``parts.indices`` keep their label: ``kept`` per class and client, at random."""
    keys = np.concatenate([streams(client).random(size) for client, size in enumerate(parts.sizes)])
    return rank_within(_classes_of(parts, labels), keys) < kept


def _classes_of(parts: Parts, labels: Labels) -> Ints:
    """A number for every client's every class, for each of ``parts.indices``."""
    return parts.clients * (int(labels.max()) + 1) + labels[parts.indices]


def held_out(labels: Labels, rng: np.random.Generator) -> Mask:
    """Which fifth of one client's images to test on: in its class proportions, at least one.

    Every class keeps an image to train on; nothing is held out where that is impossible.
    """
    sizes = np.bincount(labels)
    room = np.maximum(sizes - 1, 0)
    images = min(max(1, round(len(labels) / 5)), int(room.sum()))
    counts = round_rows(images * sizes[None] / len(labels), room, False, rng)[0]
    held: Mask = rank_within(labels, rng.random(len(labels))) < counts[labels]
    return held
