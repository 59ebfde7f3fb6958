"""How well scores of distance tell images of classes that a client does not hold from its own.

``python -m benchmarks.strangers RUN...`` prints the mean over clients of the area under the ROC
curve (0.5: chance) of own test images against strangers: what docs/models.md quotes.
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
from calibre.personal.assemble import Making
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


def areas(folder: Path) -> dict[str, float]:
    """The mean over a run's clients that have test images, and strangers to them."""
    opened = FinishedRun(folder)
    found: dict[str, list[float]] = {}
    for client in opened.results:
        making = opened.making(client)
        if making.test is None or making.foreign is None:
            continue
        both = torch.cat([making.test.features, making.foreign])
        stranger = np.arange(len(both)) >= len(making.test.features)
        for name, score in scores(making).items():
            found.setdefault(name, []).append(roc_auc_score(stranger, score(both).numpy()))
    return {name: float(np.mean(values)) for name, values in found.items()}


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        print(place)
        for name, area in areas(place).items():
            print(f"  {area:.3f}  {name}")
