"""Clients that the data itself knows: every owner of images is one."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from calibre.data.dealing import held_out
from calibre.data.partition import rank_within
from calibre.data.parts import Ints, Mask, Parts
from calibre.data.pool import TRAIN_AT_LEAST, Pool
from calibre.data.purposes import Division
from calibre.errors import UserError
from calibre.rng import numpy_stream
from calibre.sections import FederationSettings
from calibre.wording import how_many


class Natural(NamedTuple):
    """What the clients hold, and who they are."""

    train: Parts
    test: Parts
    unlabelled: Parts
    names: tuple[str, ...]
    left_out: dict[str, str]  # why other owners are no clients


def natural(pool: Pool, division: Division, settings: FederationSettings, seed: int) -> Natural:
    """The images as their owners hold them.

    An owner without test images holds some of its own training images out, by class. One that has
    too few images to be scored is left out: among fifty hospitals, one with a single image should
    not keep the others from training.
    """
    owner_of = pool.owners  # [N]
    if owner_of is None:
        raise UserError(
            f'federation.scheme = "natural": {pool.name} does not say who owns an image; give '
            "data.client_column, or one folder per client, or choose another federation.scheme"
        )
    everybody = len(pool.owner_names)

    def held(places: Ints) -> Parts:
        return Parts.of(owner_of[places], places, everybody)

    train, test = held(division.train), held(division.test)
    untested = np.flatnonzero((test.sizes == 0) & (train.sizes > 0)).tolist()
    train, moved = hold_out(train, pool, untested, range(everybody), seed, division)
    test = test.joined(moved)
    poor = (train.sizes < TRAIN_AT_LEAST) | (test.sizes < 1)
    left_out = {
        pool.owner_names[owner]: _too_few(int(train.sizes[owner]), int(test.sizes[owner]))
        for owner in np.flatnonzero(poor).tolist()
    }
    if poor.all():
        name, why = next(iter(left_out.items()))
        raise UserError(
            f"no owner in {pool.name} has images enough: '{name}' has {why} (or 3 in all, two of "
            "them of one class)"
        )
    owners = _owners(np.flatnonzero(~poor), pool, settings, seed)  # [C]
    names = tuple(pool.owner_names[owner] for owner in owners)
    unlabelled = _own_unlabelled(held(division.unlabelled), settings.unlabelled, seed)
    return Natural(train.pick(owners), test.pick(owners), unlabelled.pick(owners), names, left_out)


def _too_few(train: int, test: int) -> str:
    labelled = how_many(train, "labelled image")
    return f"{labelled} to train on and {test} to test on: {TRAIN_AT_LEAST} and 1 are needed"


def hold_out(
    train: Parts,
    pool: Pool,
    clients: Iterable[int],
    names: Sequence[int] | Ints,
    seed: int,
    division: Division,
    again: Mask | None = None,
) -> tuple[Parts, Parts]:
    """What stays for training, and what these clients hold out of it to test on.

    That is some of their new images, and those [N] that were held out before and are ``again``.
    """
    new = ~(division.trained | division.validation)  # [N]
    moved = np.zeros(len(train.indices), np.bool_)
    for client in clients:
        rng = numpy_stream(seed, "federation/held-out", int(names[client]))
        own = slice(train.offsets[client], train.offsets[client + 1])
        images = train[client]
        if again is not None:
            moved[own] = again[images]
        if (free := new[images]).any():
            moved[own][free] |= held_out(pool.labels[images[free]], rng)
    return train.where(~moved), train.where(moved)


def _owners(able: Ints, pool: Pool, settings: FederationSettings, seed: int) -> Ints:
    """Of the owners that can be clients, those that train, then the novel ones."""
    if settings.samples or settings.test_samples:
        raise UserError(
            "federation.samples and federation.test_samples do not go with federation.scheme = "
            '"natural": an owner holds what it holds; leave them out'
        )
    owners, novel = len(able), settings.novel
    clients = settings.clients or owners - novel
    if not 1 <= clients <= owners - novel:
        raise UserError(
            f"federation.clients = {settings.clients} and federation.novel = {novel}: there are "
            f"{owners} owners in {pool.name} with images enough; leave out clients and set novel "
            f"below {owners}, or let the two add up to no more than that"
        )
    order = able[numpy_stream(seed, "federation/owners").permutation(owners)]
    return np.concatenate([np.sort(order[:clients]), np.sort(order[clients : clients + novel])])


def _own_unlabelled(held: Parts, most: int | None, seed: int) -> Parts:
    """What owners hold without labels, ``most`` images each if that is given."""
    if most is None:
        return held
    keys = numpy_stream(seed, "federation/unlabelled").random(len(held.indices))
    return held.where(rank_within(held.clients, keys) < most)
