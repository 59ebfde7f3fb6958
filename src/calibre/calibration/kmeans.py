"""K-means that can run inside every training step: seeded, on any device, safe with few points.

Shapes: n points of d dimensions, k clusters.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import threshold

SEEDS = 1024  # of more points than this, a random part chooses the first centroids


@dataclass(frozen=True)
class Clusters:
    """No cluster is empty, so there can be fewer than were asked for."""

    labels: Tensor  # [n] int64, 0 .. k-1
    centroids: Tensor  # [k, d] float32


@torch.no_grad()
def kmeans(
    points: Tensor, clusters: int, generator: torch.Generator, iterations: int = 20
) -> Clusters:
    """At most ``clusters`` clusters of ``points`` [n, d], by k-means++ and Lloyd's algorithm."""
    with torch.autocast(points.device.type, enabled=False):
        points = points.float()
        centre = points.mean(0)
        points = points - centre  # keeps the squares below small, and fp32 exact enough
        centroids = _plus_plus(points, clusters, generator)
        labels = _nearest(points, centroids)
        ids = torch.arange(len(centroids), device=labels.device)
        for _ in range(iterations):
            centroids = _update(points, labels, ids)
            old, labels = labels, _nearest(points, centroids)
            if torch.equal(labels, old):
                break
        occupied, labels = torch.unique(labels, return_inverse=True)
        return Clusters(labels, centroids[occupied] + centre)


@torch.no_grad()
def assign(points: Tensor, centroids: Tensor) -> Tensor:
    """The nearest of ``centroids`` [k, d] for each of ``points`` [n, d]: [n] int64."""
    with torch.autocast(points.device.type, enabled=False):
        centre = centroids.mean(0)
        return _nearest(points.float() - centre, centroids - centre)


def membership(labels: Tensor, clusters: Tensor) -> Tensor:
    """[k, n] of 0 and 1: row i marks the points whose label is ``clusters[i]``."""
    return (clusters[:, None] == labels).float()


def means(points: Tensor, members: Tensor) -> Tensor:
    """[k, d]: the mean of each cluster's points; its gradient reaches them."""
    return members @ points / members.sum(1, keepdim=True)


def _plus_plus(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Greedy k-means++ (as in scikit-learn): of a few draws in proportion to the squared distance
    from the centroids so far, the one that leaves the least of it becomes the next centroid."""
    device = generator.device
    shuffled = torch.randperm(len(points), generator=generator, device=device)
    trials = 2 + int(math.log(clusters))
    draws = torch.rand(clusters - 1, trials, generator=generator, device=device)

    points = points[shuffled[:SEEDS].to(points.device)]
    squares = points.square().sum(1)  # [n]
    distances = torch.addmm(squares, points, points.T, alpha=-2) + squares[:, None]  # [n, n]
    rounding = 4e-6 * float(squares.max())  # points nearer than this are the same to fp32
    distances = threshold(distances, rounding, 0.0)

    chosen = [0]
    remaining = distances[0]  # [n], from the nearest centroid
    for draw in draws.to(points.device):
        mass = remaining.cumsum(0)
        if not mass[-1]:
            break  # every point lies on a centroid: there are fewer distinct points than clusters
        candidates = torch.searchsorted(mass, draw * mass[-1])  # [trials]
        left = torch.minimum(remaining, distances[candidates])  # [trials, n]
        best = int(left.sum(1).argmin())
        chosen.append(int(candidates[best]))
        remaining = left[best]
    return points[chosen]


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    # |p - c|^2 without |p|^2, which is the same for every centroid
    return torch.addmm(centroids.square().sum(1), points, centroids.T, alpha=-2).argmin(1)


def _update(points: Tensor, labels: Tensor, clusters: Tensor) -> Tensor:
    """Lloyd's step; a centroid that lost all its points restarts at the farthest point."""
    members = membership(labels, clusters)
    sizes = members.sum(1, keepdim=True)  # [k, 1]
    centroids = members @ points / sizes
    if not sizes.all():
        empty = sizes[:, 0] == 0
        off = (points - centroids[labels]).square().sum(1)  # [n]
        centroids[empty] = points[off.topk(int(empty.sum())).indices]
    return centroids
