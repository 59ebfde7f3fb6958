"""Who gets which images: index arithmetic on labels.

A scheme decides how many images of each class a client holds. The images themselves are then
either dealt, so that no two clients hold the same one, or drawn by every client on its own.

Shapes: C clients (novel ones included), K classes, S classes per client.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from calibre.data.parts import Floats, Ints, Labels, Mask, Parts
from calibre.errors import UserError
from calibre.wording import percent

Table = TypeVar("Table", Ints, Floats)
Streams = Callable[[int], np.random.Generator]  # a client's own generator

SWEEPS = 50  # of iterative proportional fitting
TINY = 1e-300  # keeps 0 / 0 at 0
FLOYD = 10_000  # images of a class, above which numpy may choose in another way than Floyd's
FEW = (
    64  # images of one class for one client, above which looking through them pair by pair is slow
)


# How many images of each class: the schemes -------------------------------------------------------


def iid(sizes: Ints, clients: int, samples: int | None, disjoint: bool, streams: Streams) -> Ints:
    """Counts [C, K] of clients that take their images blindly from ``sizes`` [K] per class."""
    samples = _even_share(int(sizes.sum()), clients, samples, disjoint)
    left = sizes.copy()
    counts = np.empty((clients, len(sizes)), np.int64)
    for client in range(clients):
        counts[client] = streams(client).multivariate_hypergeometric(left, samples)
        if disjoint:
            left -= counts[client]
    return counts


def dirichlet(
    sizes: Ints,
    clients: int,
    samples: int | None,
    disjoint: bool,
    streams: Streams,
    rng: np.random.Generator,
    alpha: float,
) -> Ints:
    """D-non-iid: counts [C, K] close to ``samples`` times the client's own draw from Dir(alpha)."""
    samples = _even_share(int(sizes.sum()), clients, samples, disjoint)
    mix = [streams(client).dirichlet(np.full(len(sizes), alpha)) for client in range(clients)]
    return round_rows(fit(samples * np.array(mix), sizes, disjoint), sizes, disjoint, rng)


def quantity(
    sizes: Ints,
    clients: int,
    samples: int | None,
    disjoint: bool,
    rng: np.random.Generator,
    held: int,
    names: Sequence[str],
) -> Ints:
    """Q-non-iid: counts [C, K] with exactly ``held`` classes per client.

    Without ``samples``, disjoint clients share every class evenly, to the last image.
    """
    if held > len(sizes):
        raise UserError(f"federation.classes = {held}: there are {len(sizes)} classes in all")
    lists = deal_classes(len(sizes), clients, held, rng)  # [C, S]
    holds = np.zeros((clients, len(sizes)), np.bool_)
    np.put_along_axis(holds, lists, True, axis=1)
    holders = np.bincount(lists.ravel(), minlength=len(sizes))
    if not disjoint:
        holders = np.minimum(holders, 1)  # each has the class to itself

    least = max(2, held)  # one image of every class, and two in all
    _at_least(least, samples)
    fair = np.where(holders > 0, sizes // np.maximum(holders, 1), sizes.max())  # [K]
    scarce = int(fair.argmin())
    most = held * int(fair[scarce])
    share = samples or (most if disjoint else min(most, int(sizes.sum()) // clients))
    if not least <= share <= most:
        wanted = max(share, least)
        fewer = len(sizes) * (int(sizes.min()) // -(-wanted // held)) // held
        raise _infeasible(
            f"{clients} clients (novel ones included) x {wanted} samples of {held} classes: class "
            f"'{names[scarce]}' has {sizes[scarce]} training images"
            + (f" for {holders[scarce]} of them" if disjoint else ""),
            (most >= least, f"federation.samples from {least} to {most}"),
            (disjoint and 1 <= fewer < clients, f"at most {fewer} clients"),
            (disjoint and held * int(sizes.min()) >= wanted, _independent(samples)),
            (True, "another federation.scheme"),
        )
    if samples is None and disjoint:
        return split_evenly(sizes, holds)
    counts = holds * (share // held)
    np.put_along_axis(counts, lists[:, : share % held], share // held + 1, axis=1)
    return counts


def deal_classes(classes: int, clients: int, held: int, rng: np.random.Generator) -> Ints:
    """Class lists [C, S]: distinct within a client, every class equally often (to within one).

    Each client takes the classes that fewest others took, ties broken at random. So the classes
    are balanced among the first clients too, those that train, and nothing needs repair.
    """
    taken = np.zeros(classes, np.int64)
    lists = np.empty((clients, held), np.int64)
    for client in range(clients):
        lists[client] = np.lexsort((rng.random(classes), taken))[:held]
        taken[lists[client]] += 1
    return lists


def split_evenly(sizes: Ints, holds: Mask) -> Ints:
    """Counts [C, K] that share each class among its holders [C, K], to within one image."""
    holders = np.maximum(holds.sum(0), 1)
    turn = holds.cumsum(0) - 1  # 0 for a class's first holder, 1 for its second, ...
    return np.where(holds, sizes // holders + (turn < sizes % holders), 0)


def follow(
    train: Ints,
    room: Ints,
    most: int | None,
    wanted: int | None,
    rng: np.random.Generator,
    names: Sequence[str],
) -> Ints:
    """Test counts [C, K] in each client's own training proportions (``train`` [C, K]).

    ``room`` is what the test split holds for every client [K], or for each [C, K]. As many images
    as keep every class within half an image of its due, which bounds the total variation between
    training and test proportions by K / (2 * images), and no more than ``most``; or ``wanted``.
    """
    due = train / train.sum(1, keepdims=True)
    room_is_shared = room.ndim == 2  # the class is dealt, not drawn
    room = np.where(train > 0, room, 0)
    fitting = np.where(train > 0, (room + 0.5) / np.maximum(due, TINY), np.inf)  # [C, K]
    limit = np.minimum(fitting.min(1).astype(np.int64), room.sum(1))  # [C]
    client = int(limit.argmin())
    if limit[client] < (wanted or 1):
        scarce = int(fitting[client].argmin())
        fewer = room.shape[1] * int(room.sum(0).min()) // int(np.count_nonzero(train[client]))
        raise _infeasible(
            f"client {client} cannot have {f'{wanted} test images' if wanted else 'a test image'} "
            f"in the proportions of its training images: {percent(due[client, scarce], 0)} of "
            f"those are of class '{names[scarce]}', of which there are {room[client, scarce]} to "
            "test it on",
            (limit[client] > 0, f"federation.test_samples up to {limit[client]}"),
            (room_is_shared and fewer > 0, f"at most {fewer} clients (novel ones included)"),
            (room_is_shared, _independent(samples=1)),
            (True, "more test images (data.test_fraction, where the source has no test part)"),
        )
    images = np.full(len(train), wanted) if wanted else np.minimum(limit, most or limit)
    return round_rows(images[:, None] * due, room, False, rng)


# Tables of counts ---------------------------------------------------------------------------------


def fit(wanted: Floats, sizes: Ints, disjoint: bool) -> Floats:
    """The expected counts nearest to ``wanted`` [C, K] that the class sizes allow.

    The rows keep their sums. Disjoint clients share ``sizes`` [K]; others have it each to
    themselves.
    """
    rows = wanted.sum(1, keepdims=True)

    def pressed(table: Floats) -> Floats:
        scale: Floats = np.minimum(1, sizes / np.maximum(_load(table, disjoint), TINY))
        return table * scale

    table = pressed(wanted)
    for _ in range(SWEEPS):
        table = pressed(table * rows / np.maximum(table.sum(1, keepdims=True), TINY))
    # What the sweeps left open is spread over the classes in proportion to their room, which fits:
    # together the clients never ask for more than there is.
    missing: Floats = np.maximum(rows - table.sum(1, keepdims=True), 0)
    room: Floats = np.maximum(sizes - _load(table, disjoint), 0)
    share: Floats = room / np.maximum(room.sum(1, keepdims=True), TINY)
    return table + missing * share


def round_rows(expected: Floats, sizes: Ints, disjoint: bool, rng: np.random.Generator) -> Ints:
    """Whole counts with the same row sums: largest remainders first, while a class has room.

    All clients choose at once, so that none is left with what others did not want; ties are
    broken at random. Every pass gives out an image or closes a class, so the loop ends.
    """
    counts = np.floor(expected).astype(np.int64)
    missing = np.rint(expected.sum(1)).astype(np.int64) - counts.sum(1)
    ties = 1e-9 * rng.random(expected.shape)
    while (rows := np.flatnonzero(missing)).size:
        room = sizes - _load(counts, disjoint)  # [1, K] or [C, K]
        wish = np.where(room > 0, expected - counts + ties, -np.inf)[rows]
        choice = wish.argmax(1)
        if disjoint:
            served = rank_within(choice, -wish.max(1)) < room[0, choice]
            rows, choice = rows[served], choice[served]
        counts[rows, choice] += 1
        missing[rows] -= 1
    return counts


def rank_within(groups: Ints, keys: Floats) -> Ints:
    """Each element's place, from 0, among those of its group in ascending order of the keys."""
    order = np.lexsort((keys, groups))
    ordered = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return ranks


def _load(table: Table, disjoint: bool) -> Table:
    """What a class must provide: [1, K] for all clients together, or [C, K] for each."""
    return table.sum(0, keepdims=True) if disjoint else table


# Which images -------------------------------------------------------------------------------------


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


def _even_share(images: int, clients: int, samples: int | None, disjoint: bool) -> int:
    """Training images per client."""
    _at_least(2, samples)
    most = images // clients if disjoint else images
    share = samples or images // clients
    if 2 <= share <= most:
        return share
    wanted = max(share, 2)
    raise _infeasible(
        f"{clients} clients (novel ones included) x {wanted} samples needs {clients * wanted} "
        f"training images, there are {images}"
        if disjoint
        else f"federation.samples = {samples or share}: there are {images} training images",
        (disjoint and most >= 2, f"at most {most} per client"),
        (disjoint and images >= wanted, f"at most {images // wanted} clients"),
        (disjoint and images >= wanted, _independent(samples)),
        (not disjoint, f"federation.samples from 2 to {images}"),
    )


def _independent(samples: int | None) -> str:
    return 'federation.overlap = "independent"' + (
        " with federation.samples" if not samples else ""
    )


def _at_least(least: int, samples: int | None) -> None:
    if samples is not None and samples < least:
        raise UserError(f"federation.samples = {samples}: a client needs {least} or more")


def _infeasible(problem: str, *remedies: tuple[bool, str]) -> UserError:
    """The error that names what would work."""
    return UserError(f"{problem}: " + ", or ".join(text for works, text in remedies if works))
