"""A site: its own images, what it tells of them, and what it keeps on its own disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.augment import moments
from calibre.data.federation import Federation
from calibre.data.parts import Ints, Parts
from calibre.data.pool import UNLABELLED, Pool
from calibre.data.sources import load
from calibre.deploy.records import FederationFacts, SiteReport
from calibre.deploy.site_file import SiteSettings
from calibre.deploy.site_file import read_site as read_site
from calibre.engine.client_store import ClientStore
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import private_folder


@dataclass(frozen=True)
class OwnData:
    """A site's images: its own pool, and the indices of its training, test and further images."""

    pool: Pool
    labelled: Ints
    unlabelled: Ints
    test: Ints


def own_data(settings: SiteSettings) -> OwnData:
    """Read a site's images; the second time they come from the cache."""
    pool = load(settings.data)
    more = [] if settings.unlabelled is None else _all_images(settings, pool.shape)
    images = np.concatenate([pool.images, *more]) if more else pool.images
    labels = np.concatenate([pool.labels, np.full(len(images) - len(pool.labels), UNLABELLED)])
    further = [*pool.unlabelled, *range(len(pool.labels), len(images))]
    whole = Pool(
        name=pool.name, images=images, labels=labels, classes=pool.classes, train=pool.train,
        test=pool.test, unlabelled=range(0), fingerprint=pool.fingerprint,
    )  # fmt: skip
    return OwnData(
        pool=whole,
        labelled=np.arange(pool.train.start, pool.train.stop),
        unlabelled=np.array(further, np.int64),
        test=np.arange(pool.test.start, pool.test.stop),
    )


def _all_images(settings: SiteSettings, shape: tuple[int, int, int]) -> list[Any]:
    source = settings.data.model_copy(update={"source": str(settings.unlabelled)})
    more = load(source)
    if more.shape != shape:
        raise UserError(
            f"images in {settings.unlabelled} are {_size(more.shape)}, those of "
            f"{settings.data.source} are {_size(shape)}; bring all to one size with data.size"
        )
    return [more.images]


def report(settings: SiteSettings, data: OwnData) -> SiteReport:
    """All that the coordinator learns of the site before it trains."""
    pool = data.pool
    total, squares, values = moments(pool.images[pool.train.start : pool.train.stop])

    def by_class(indices: Ints) -> tuple[int, ...]:
        return tuple(np.bincount(pool.labels[indices], minlength=len(pool.classes)).tolist())

    return SiteReport(
        name=settings.name,
        novel=settings.novel,
        shape=pool.shape,
        classes=pool.classes,
        labelled=by_class(data.labelled),
        test=by_class(data.test),
        unlabelled=len(data.unlabelled),
        total=tuple(total.tolist()),
        squares=tuple(squares.tolist()),
        values=values,
    )


def in_federation(data: OwnData, facts: FederationFacts, client: int) -> tuple[Pool, Federation]:
    """The site as one client of the federation: all others are empty here."""
    pool = data.pool
    if pool.shape != facts.shape:
        raise UserError(
            f"images here are {_size(pool.shape)}, the federation's are {_size(facts.shape)}; "
            "set data.size in the site's file"
        )
    if strange := sorted(set(pool.classes) - set(facts.classes)):
        raise UserError(
            f"class '{strange[0]}' is not known to the federation, which has "
            f"{', '.join(facts.classes)}; rename it, or leave its images out"
        )
    number = np.array([facts.classes.index(name) for name in pool.classes] + [UNLABELLED])
    own = Pool(
        name=facts.name, images=pool.images, labels=number[pool.labels], classes=facts.classes,
        train=pool.train, test=pool.test, unlabelled=range(0), fingerprint=pool.fingerprint,
    )  # fmt: skip
    clients = max(facts.training, client + 1)

    def mine(indices: Ints) -> Parts:
        return Parts.of(np.full(len(indices), client), indices, clients)

    return own, Federation(
        fingerprint=own.fingerprint,
        classes=facts.classes,
        training=facts.training,
        names=(),
        labelled=mine(data.labelled),
        unlabelled=mine(data.unlabelled),
        test=mine(data.test),
        train_table=np.zeros((clients, len(facts.classes)), np.int64),
        test_table=np.zeros((clients, len(facts.classes)), np.int64),
        datasheet={},
    )


class SiteStore:
    """What the clients of one node keep, on its own disk (see :class:`ClientStore`).

    A version counts once a later message confirms its round; refused ones are removed then.
    """

    def __init__(self, folder: Path, training: str = "") -> None:
        self.folder = private_folder(folder)
        self.clients = ClientStore(folder / "clients", training)
        self._oldest = 0

    def settle(self, client: int, kept: int, server_round: int, oldest: int) -> None:
        """Learn what the server confirmed: what was written after ``kept`` was refused.

        Without what it confirmed the client would begin anew, unnoticed: that is a ``UserError``.
        """
        self._oldest = oldest
        if kept and (problem := self.clients.problem({client: kept})):
            raise UserError(f"{problem}; restore this node's state folder from a copy")
        for refused in range(kept + 1, server_round + 1):
            self.clients.discard(client, refused)

    def oldest_round(self) -> int:
        return self._oldest


def _size(shape: tuple[int, int, int]) -> str:
    return " x ".join(map(str, shape))


def leaves(experiment: Experiment, told: SiteReport) -> list[dict[str, Any]]:
    """What the experiment's method sends from a site in a round: part, numbers, bytes."""
    import torch

    from calibre.models.network import Problem

    height, _, channels = told.shape
    method = experiment.method
    network = method.build(
        Problem(height, channels, len(told.classes), experiment.network, experiment.seed)
    )
    expected = method.expected_update(method.init(network)) if method.federated else {}
    size = torch.finfo(torch.float16).bits // 8 if experiment.engine.transfer == "half" else None
    rows: dict[str, dict[str, Any]] = {}
    for group, tensors in expected.items():
        for name, tensor in tensors.items():
            part = f"{group}: {name.partition('.')[0]}"
            row = rows.setdefault(part, {"part": part, "numbers": 0, "bytes": 0})
            each = size if size and tensor.is_floating_point() else tensor.element_size()
            row["numbers"] += tensor.numel()
            row["bytes"] += tensor.numel() * each
    return list(rows.values())
