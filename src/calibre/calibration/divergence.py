"""How far a client's encodings lie from their prototypes, and what that makes its update weigh.

A client whose encodings gather closely around their prototypes weighs more.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from calibre.calibration.kmeans import kmeans, means, membership
from calibre.settings import Settings


class DivergenceSettings(Settings):
    """How δ_c is measured. The paper's released code is ``ref`` with ``cluster``."""

    divergence: Literal["unit", "raw", "ref"] = "unit"  # z / |z|; z; z from unit-length prototypes
    div_mean: Literal["sample", "cluster"] = "sample"  # over samples, or over clusters' own means
    div_clusters: Annotated[int, Field(ge=1)] = 10  # K_d, at most one per two samples


@torch.no_grad()
def divergence(features: Tensor, settings: DivergenceSettings, generator: torch.Generator) -> float:
    """δ_c: the mean distance of ``features`` [n, d] from their cluster's mean; NaN if not finite.

    In [0, 2] for ``unit``, where it does not depend on the features' scale.
    """
    with torch.autocast(features.device.type, enabled=False):
        points = features.float()
        if not points.isfinite().all():
            return math.nan
        if settings.divergence == "unit":
            points = normalize(points, dim=1, eps=1e-12)
        clusters = max(1, min(settings.div_clusters, len(points) // 2))
        labels = kmeans(points, clusters, generator).labels
        members = membership(labels, torch.unique(labels))  # [k, n]
        prototypes = means(points, members)  # [k, d]
        if settings.divergence == "ref":
            prototypes = normalize(prototypes, dim=1, eps=1e-12)
        distances = (points - prototypes[labels]).norm(dim=1)  # [n]
        if settings.div_mean == "cluster":
            distances = means(distances[:, None], members)
        return float(distances.mean())


def weight(samples: int, divergence: float, gamma: float, eps: float = 1e-3) -> float:
    """s_c = n_c max(δ_c, ε)^-γ, a client's weight before the server makes them sum to one.

    NaN when δ_c is not finite: only the server knows the round's median, which stands in for it.
    """
    if gamma == 0:
        return float(samples)  # FedAvg, whatever δ_c is
    if not math.isfinite(divergence):
        return math.nan
    return samples * float(max(divergence, eps) ** -gamma)
