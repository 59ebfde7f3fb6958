"""When an image is none of the client's classes: where the limit is set, and what it is good for.

An image is refused for its pixels (:mod:`calibre.personal.judge`) or for its distance to every
class. Both count towards the share of own images that may be refused: each held-out image is looked
at by statistics of images without it, and one that they refuse is infinitely far away.

Shapes: n images, d features, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre.data.formats import PixelArray
from calibre.personal import judge
from calibre.personal.card import ForeignKind, Outside, Refusal
from calibre.personal.foreign import made_up
from calibre.personal.judge import Statistics
from calibre.personal.making import Making
from calibre.personal.outside import RATES, Prototypes, refused, threshold
from calibre.personal.trust import wilson

NONE = torch.empty(0)


def usual_of(making: Making) -> Statistics | None:
    """What the client's images look like; None where they are too few to say."""
    return None if making.images is None else judge.statistics(making.images.numpy())


class MadeUp(NamedTuple):
    """Images of one made-up kind, and what the model says of them."""

    name: str
    pixels: PixelArray  # [n, H, W, 3]
    distances: Tensor  # [n]: infinite where pixels are refused
    logits: Tensor  # [n, K]

    def accepted(self, limit: float | None) -> Tensor:
        """Which get a class, [n]."""
        return self.distances.isfinite() if limit is None else self.distances <= limit


def outside_of(
    making: Making,
    prototypes: Prototypes | None,
    usual: Statistics | None,
    shown: Sequence[MadeUp],
) -> Outside:
    """The limits, and which images would be refused by them; ``shown``: made-up ones."""
    held = held_out_distances(making)
    known = prototypes is not None and bool(held.isfinite().any())
    limits = {rate: limit_at(held, rate) for rate in sorted({*RATES, making.rate})} if known else {}
    limit = limits.get(making.rate)

    def seen(images: Tensor | None, features: Tensor | None = None) -> Tensor:
        if images is None:
            return NONE if features is None else _distances(prototypes, features)
        features = making.features(images) if features is None else features
        return far_away(_distances(prototypes, features), images, usual)

    own = seen(making.test_images, making.test.features if making.test else None)
    foreign = seen(making.foreign)
    return Outside(
        rate=making.rate,
        limit=limit,
        held_out=len(held),
        own_images=len(own) if known else 0,
        foreign_images=len(foreign) if known else 0,
        tradeoff=tuple(
            Refusal(
                rate=rate,
                limit=at,
                own=refused(own, at) if len(own) else None,
                foreign=refused(foreign, at) if len(foreign) else None,
            )
            for rate, at in limits.items()
        ),
        kinds=tuple(_kind(each, limit) for each in shown) if usual or known else (),
    )


def limit_at(distances: Tensor, rate: float) -> float:
    """The limit for a rate; where pixels alone refuse more than that, the farthest of the rest."""
    return min(threshold(distances, rate), distances[distances.isfinite()].max().item())


def held_out_distances(making: Making) -> Tensor:
    """Of held-out images, each judged by what is usual among the others: infinite if refused."""
    held = making.held_out
    if making.images is None or len(held.distances) != len(held.labels):
        return held.distances
    found = held.distances.clone()
    for fold in held.folds.unique():
        here = held.folds == fold
        others = torch.ones(len(making.images), dtype=torch.bool)
        others[held.rows[here]] = False
        usual = judge.statistics(making.images[others].numpy())
        found[here] = far_away(found[here], making.images[held.rows[here]], usual)
    return found


def far_away(distances: Tensor, images: Tensor, usual: Statistics | None) -> Tensor:
    """Distances [n], infinite where pixels are not as usual."""
    if usual is None:
        return distances
    strange = [bool(found) for found in judge.problems(images.numpy(), usual)]
    return distances.masked_fill(torch.tensor(strange, dtype=torch.bool), torch.inf)


def _distances(prototypes: Prototypes | None, features: Tensor) -> Tensor:
    return torch.zeros(len(features)) if prototypes is None else prototypes.distance(features)


def show_made_up(
    making: Making, prototypes: Prototypes | None, usual: Statistics | None
) -> list[MadeUp]:
    """Made-up images of every kind, shown to the model."""
    if making.images is None:
        return []
    shown = []
    for name, pixels in made_up(making.images.numpy()).items():
        gray = torch.from_numpy(judge.as_trained(pixels, making.preprocessing.channels))
        features = making.features(gray)
        far = far_away(_distances(prototypes, features), torch.from_numpy(pixels), usual)
        shown.append(MadeUp(name, pixels, far, F.linear(features, *making.head)))
    return shown


def _kind(shown: MadeUp, limit: float | None) -> ForeignKind:
    accepted, images = int(shown.accepted(limit).sum()), len(shown.pixels)
    low, high = wilson(accepted, images)
    return ForeignKind(name=shown.name, images=images, accepted=accepted, low=low, high=high)
