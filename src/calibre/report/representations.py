"""What an encoder makes of images: do classes, or clients, form clusters of their own?

Three figures say so, all on the representations themselves: a flat picture of them bends distances.
Representations are scaled to unit length first, so that encoders of unlike scale are comparable.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

NEIGHBOURS = 5
PERPLEXITY = 30  # of t-SNE; a third of the images where they are few


@dataclass(frozen=True, eq=False)
class Representations:
    """Images of some clients as one method's encoder sees them."""

    label: str  # of the method
    features: Floats  # [n, d]
    classes: Labels  # [n]
    clients: Labels  # [n]: whose encoder it was, and whose image
    class_names: tuple[str, ...]
    client_names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Separation:
    """How clearly groups stand apart; None where there are too few images or groups to say."""

    silhouette: float | None  # -1 to 1: how much nearer one's own group is than the next
    nmi: float | None  # 0 to 1: how much of the groups k-means finds, given their number
    neighbours: float | None  # the share of images whose nearest others are mostly of their group


def unit(features: Floats) -> Floats:
    """Scaled to length 1; zero stays zero."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(length, 1e-12), np.float32)


def clusters(features: Floats, groups: Labels) -> Separation:
    """The three figures of representations [n, d] whose groups (classes, clients) are known."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import normalized_mutual_info_score, silhouette_score
    from threadpoolctl import threadpool_limits

    points, count = unit(features), len(np.unique(groups))
    if count < 2 or count >= len(points):
        return Separation(None, None, neighbour_accuracy(points, groups))
    # one thread: sums are then rounded alike on every machine
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        found = KMeans(count, n_init=10, random_state=0).fit_predict(points)
        return Separation(
            silhouette=float(silhouette_score(points, groups)),
            nmi=float(normalized_mutual_info_score(groups, found)),
            neighbours=neighbour_accuracy(points, groups),
        )


def neighbour_accuracy(points: Floats, groups: Labels) -> float | None:
    """Leave-one-out accuracy of the vote of the nearest others; the nearest decides a tie."""
    from sklearn.neighbors import NearestNeighbors

    if len(points) <= NEIGHBOURS:
        return None
    # without an argument nobody is a neighbour of their own
    nearest = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(points).kneighbors()[1]  # [n, k]
    names, own = np.unique(groups, return_inverse=True)
    votes = np.zeros((len(points), len(names)))
    for rank in range(NEIGHBOURS):
        votes[np.arange(len(points)), own[nearest[:, rank]]] += 1 + 0.1 / (rank + 1) ** 2
    return float((votes.argmax(axis=1) == own).mean())


def flatten(features: Floats) -> npt.NDArray[np.float64]:
    """A picture of representations [n, d] in two dimensions by t-SNE, the same every time."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    points = unit(features)
    if len(points) < 4 or np.ptp(points, axis=0).max() < 1e-6:
        return np.zeros((len(points), 2))  # all alike: there is no picture to draw
    with threadpool_limits(1):
        placed: Any = TSNE(
            perplexity=min(PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=0
        ).fit_transform(points)
    return np.asarray(placed, np.float64)
