"""How many images of each class a client holds, by a scheme: tables of counts.

Which images these are is decided in :mod:`calibre.data.dealing`.

Shapes: C clients (novel ones included), K classes, S classes per client.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from calibre.data.parts import Floats, Ints, Mask
from calibre.errors import UserError
from calibre.wording import percent

Counts = TypeVar("Counts", Ints, Floats)
Streams = Callable[[int], np.random.Generator]  # a client's own generator

SWEEPS = 50  # of iterative proportional fitting
TINY = 1e-300  # keeps 0 / 0 at 0


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


def _load(table: Counts, disjoint: bool) -> Counts:
    """What a class must provide: [1, K] for all clients together, or [C, K] for each."""
    return table.sum(0, keepdims=True) if disjoint else table


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
