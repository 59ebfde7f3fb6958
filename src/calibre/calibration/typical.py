"""Which images to label next: the most typical of every group that has no label yet.

Groups and typicality follow TypiClust (Hacohen et al., ICML 2022, arXiv:2202.02794).
Shapes: n images, d features.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from calibre.calibration.kmeans import kmeans

NEIGHBOURS = 20  # that an image is compared with
MOST_CLUSTERS = 500  # beyond it clusters would be a handful of images, and k-means slow
CHUNK = 1024  # images whose distances to a cluster are in memory at once
CONSTANT = 1e-6  # spread of a feature below which it says nothing


@dataclass(frozen=True)
class Suggestion:
    """An image worth a label, and why."""

    index: int
    cluster: int  # from 0, the largest first
    size: int  # images in its cluster
    typicality: float  # 1: its neighbours in the cluster look the same; 0: it has none


@torch.no_grad()
def suggest(
    encodings: Tensor, labelled: Collection[int], count: int, generator: torch.Generator
) -> list[Suggestion]:
    """At most ``count`` of the images [n, d], ``labelled`` ones being those that have a label.

    There are as many clusters as labels given and asked for. Those that hold a label are passed
    over, the largest of the others come first, and each gives the image that is nearest to its
    neighbours. Beyond ``MOST_CLUSTERS`` every cluster may hold a label: those with the fewest come
    first then.

    The same encodings, labels and generator, with the same number of threads, give the same list.
    """
    n, has = len(encodings), sorted(set(labelled))
    if count < 1 or len(has) >= n:
        return []
    x = prepared(encodings)
    wanted = len(has) + count
    groups = kmeans(x, min(wanted, MOST_CLUSTERS, n), generator).labels
    sizes = groups.bincount()
    held = groups[has].bincount(minlength=len(sizes))
    free = torch.ones(n, dtype=torch.bool)
    free[has] = False
    order = [
        cluster
        for cluster in sorted(range(len(sizes)), key=lambda c: (int(held[c]), -int(sizes[c]), c))
        if held[cluster] < (sizes[cluster] if wanted > MOST_CLUSTERS else 1)
    ]
    found = []
    for rank, cluster in enumerate(order[:count]):
        rows = torch.nonzero(groups == cluster)[:, 0]
        typical = typicality(x[rows]).masked_fill(~free[rows], -1.0)
        best = int(typical.argmax())
        found.append(Suggestion(int(rows[best]), rank, len(rows), float(typical[best])))
    return found


def prepared(encodings: Tensor) -> Tensor:
    """Every feature to mean 0 and deviation 1, then every image to length 1; float32 [n, d]."""
    x = encodings.double()
    spread = x.std(0, correction=0)
    x = (x - x.mean(0)) / spread.where(spread > CONSTANT, 1.0)
    return torch.nn.functional.normalize(x).float()


def typicality(x: Tensor) -> Tensor:
    """One less half the mean distance to the nearest neighbours, of images [m, d] of length 1."""
    m = len(x)
    if m == 1:
        return x.new_zeros(1)
    squares = x.square().sum(1)
    means = []
    for start in range(0, m, CHUNK):
        part = x[start : start + CHUNK]
        apart = torch.addmm(squares, part, x.T, alpha=-2) + squares[start : start + CHUNK, None]
        rows = torch.arange(len(part))
        apart[rows, rows + start] = torch.inf  # an image is no neighbour of its own
        near = apart.topk(min(NEIGHBOURS, m - 1), largest=False).values
        means.append(near.clamp(min=0).sqrt().mean(1))
    return 1 - torch.cat(means) / 2
