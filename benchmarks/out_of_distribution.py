"""How well a client's model tells out-of-distribution images from its own: as docs/models.md says.

``python -m benchmarks.out_of_distribution RUN...`` prints, as means over a run's clients,

- by several scores of distance, the area under the ROC curve (0.5: chance) of own test images
  against images of classes that the client does not hold;
- by the cards, for each share of own images that may be refused, the share of own test images and
  of images of other classes that are;
- by the cards, the share of made-up images of ten kinds that get a class all the same.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from calibre.finished.run import FinishedRun
from calibre.personal.assemble import assemble
from calibre.personal.card import Outside
from calibre.personal.making import Making
from calibre.personal.outside import fit_prototypes

Score = Callable[[Tensor], Tensor]  # of features: the larger, the stranger


def scores(making: Making) -> dict[str, Score]:
    """Of one client's model; every score is fitted to its labelled images alone."""
    x, y = making.labelled
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    prototypes = fit_prototypes(x, y)
    assert prototypes is not None
    unit, unit_means = F.normalize(x), F.normalize(means)
    return {
        "Mahalanobis, shrunk": prototypes.distance,
        "Euclid to the nearest mean": lambda z: torch.cdist(z, means).amin(1),
        "cosine to the nearest mean": lambda z: -(F.normalize(z) @ unit_means.T).amax(1),
        "cosine to the nearest image": lambda z: -(F.normalize(z) @ unit.T).amax(1),
        "largest probability": lambda z: -F.linear(z, *making.head).softmax(1).amax(1),
        "energy": lambda z: -F.linear(z, *making.head).logsumexp(1),
    }


def areas(making: Making) -> dict[str, float]:
    """Under the ROC curve of each score; empty where there are no test images, or no others."""
    if making.test is None or making.foreign is None:
        return {}
    both = torch.cat([making.test.features, making.features(making.foreign)])
    foreign = np.arange(len(both)) >= len(making.test.features)
    return {
        name: float(roc_auc_score(foreign, score(both).numpy()))
        for name, score in scores(making).items()
    }


def refused(outside: Outside) -> dict[str, float]:
    """The shares of own and of other classes' images that each row of the trade-off refuses."""
    shares = {
        f"aimed at {row.rate:.0%}: {whose}": share
        for row in outside.tradeoff
        for whose, share in (("own", row.own), ("others", row.foreign))
    }
    return {name: share for name, share in shares.items() if share is not None}


def accepted(outside: Outside) -> dict[str, float]:
    """The share of each made-up kind that gets a class."""
    shares = {kind.name: kind.accepted / kind.images for kind in outside.kinds}
    return {**shares, "all ten kinds": float(np.mean([*shares.values()]))} if shares else {}


def means(rows: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def show(title: str, rows: list[dict[str, float]]) -> None:
    print(f"  {title}")
    for name, mean in means(rows).items():
        print(f"  {mean:.3f}  {name}")


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        print(place)
        opened = FinishedRun(place)
        makings = [opened.making(client) for client in opened.results]
        cards = [assemble(making).card.outside for making in makings]
        show("area under the ROC curve, by score", [*map(areas, makings)])
        show("share refused, by the share of own images that may be", [*map(refused, cards)])
        show("share of made-up images that get a class, by kind", [*map(accepted, cards)])
