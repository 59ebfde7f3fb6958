"""Clients that are made up: a pool's images shared out among them, by a scheme."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from calibre.data import dealing, partition
from calibre.data.parts import Ints, Labels, Parts
from calibre.data.pool import Pool
from calibre.data.purposes import Division
from calibre.errors import UserError
from calibre.rng import numpy_stream
from calibre.sections import FederationSettings
from calibre.settings import nearest

CLIENTS = 16  # that train, where nothing else is said
TEST_IMAGES = 200  # per client, where test sets may overlap: a standard error of 3.5 % at most


def made_up(
    pool: Pool, division: Division, settings: FederationSettings, seed: int
) -> tuple[Parts, Parts]:
    """Training and test images of clients that are made up."""
    training, every = settings.clients or CLIENTS, np.arange(len(pool.classes))
    if not settings.novel_classes:
        return _shared_out(pool, division, settings, seed, training + settings.novel, every)
    unseen = _numbers(pool, settings.novel_classes)
    if len(unseen) > len(every) - 2:
        raise UserError(
            f"federation.novel_classes names {len(unseen)} of {len(every)} classes: leave at least "
            "two to those who train"
        )
    seen = np.setdiff1d(every, unseen)
    train, test = _shared_out(pool, division, settings, seed, training, seen)
    more, more_test = _shared_out(pool, division, settings, seed, settings.novel, unseen, "novel/")
    return train.followed_by(more), test.followed_by(more_test)


def _numbers(pool: Pool, names: Sequence[str]) -> Ints:
    """Classes by their names."""
    for name in names:
        if name not in pool.classes:
            known = nearest(name, pool.classes)
            raise UserError(f"federation.novel_classes: there is no class '{name}': {known}")
    return np.array(sorted({pool.classes.index(name) for name in names}))


def _shared_out(
    pool: Pool,
    division: Division,
    settings: FederationSettings,
    seed: int,
    clients: int,
    classes: Ints,
    group: str = "",  # of clients, for draws of its own
) -> tuple[Parts, Parts]:
    """The images of some classes, dealt or drawn by clients."""
    (rows, labels), (test_rows, test_labels) = (
        _of_classes(pool, part, classes) for part in (division.train, division.test)
    )
    names = [pool.classes[k] for k in classes]
    sizes = np.bincount(labels, minlength=len(classes))
    test_sizes = np.bincount(test_labels, minlength=len(classes))
    disjoint = settings.overlap == "disjoint"
    mix, train_stream, test_stream = (
        partial(numpy_stream, seed, f"federation/{group}{purpose}")
        for purpose in ("mix", "train", "test")
    )

    counts = _counts(settings, sizes, clients, names, mix)
    dealt = disjoint and settings.scheme == "quantity"  # test sets may overlap otherwise
    test_counts = partition.follow(
        counts,
        room=partition.split_evenly(test_sizes, counts > 0) if dealt else test_sizes,
        most=None if dealt else TEST_IMAGES,
        wanted=settings.test_samples,
        rng=numpy_stream(seed, f"federation/{group}test-counts"),
        names=names,
    )
    train = (
        dealing.deal(counts, labels, train_stream())
        if disjoint
        else dealing.draw(counts, labels, train_stream)
    )
    test = (
        dealing.deal(test_counts, test_labels, test_stream())
        if dealt
        else dealing.draw(test_counts, test_labels, test_stream)
    )
    return train.among(rows), test.among(test_rows)


def _counts(
    settings: FederationSettings,
    sizes: Ints,
    clients: int,
    names: Sequence[str],
    mix: Callable[..., np.random.Generator],
) -> Ints:
    """How many training images of each class a client gets, [C, K], by the scheme."""
    disjoint = settings.overlap == "disjoint"
    if settings.scheme == "iid":
        return partition.iid(sizes, clients, settings.samples, disjoint, mix)
    if settings.scheme == "quantity":
        return partition.quantity(
            sizes, clients, settings.samples, disjoint, mix(), settings.classes, names
        )
    return partition.dirichlet(
        sizes, clients, settings.samples, disjoint, mix, mix(), settings.alpha
    )


def _of_classes(pool: Pool, part: Ints, classes: Ints) -> tuple[Ints, Labels]:
    """Which images of a part are of these classes, ascending; their classes counted among these."""
    rows = part[np.isin(pool.labels[part], classes)]
    return rows, np.searchsorted(classes, pool.labels[rows])


def deal_unlabelled(
    pool: Pool, division: Division, settings: FederationSettings, clients: int, seed: int
) -> Parts:
    """The source's own unlabelled part, dealt blindly to the clients that train."""
    images, training = len(division.unlabelled), clients - settings.novel
    each = settings.unlabelled
    if each is not None and each * training > images:
        raise UserError(
            f"federation.unlabelled = {each}: {training} clients need {each * training} unlabelled "
            f"images, {pool.name} has {images}: at most {images // training} per client"
        )
    takes = np.arange(clients)[:, None] < training  # [C, 1]
    counts = partition.split_evenly(np.array([images]), takes) if each is None else takes * each
    rng = numpy_stream(seed, "federation/unlabelled")
    return dealing.deal(counts, np.zeros(images, np.int64), rng).among(division.unlabelled)
