"""Calibre's two regularisers of an SSL loss:

    L = l_s + alpha_p L_p + alpha_n L_n

K-means gives the encodings z of both views pseudo-labels. L_p contrasts the two views' prototypes
of the head's outputs h; L_n classifies one view's encodings by the other view's prototypes. The
options are the readings of the paper's text, its Algorithm 1 and its released code, side by side.

Shapes: N images, K valid clusters (the paper's K_r), D and H dimensions of z and h.
A cluster is valid when it has a member in both views; what is in no valid cluster counts nowhere.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from calibre.calibration.kmeans import assign, kmeans, means, membership
from calibre.errors import UserError
from calibre.settings import Settings
from calibre.ssl.ntxent import ntxent

FEWEST_IMAGES = 4  # a smaller batch has nothing to cluster

Weight = Annotated[float, Field(ge=0)]
Temperature = Annotated[float, Field(gt=0)]


class Regularizers(Settings):
    """How L_p and L_n are computed; the defaults are those that docs/readings.md argues for."""

    alpha_p: Weight = 0.3  # α of L_p
    alpha_n: Weight = 0.3  # α of L_n
    clusters: Annotated[int, Field(ge=2)] = 10  # K, at most one per image of the batch
    tau_p: Temperature = 0.5  # τ of L_p's NT-Xent
    tau_n: Temperature = 0.5  # τ of L_n's cosine; raw metrics have none: softmax(-d) as it is
    support: Literal["a", "b", "sym"] = "a"  # the view that makes v_k; sym: both in turn, averaged
    ln_form: Literal["proto_ce", "sample_contrast", "neg_prob"] = "proto_ce"  # log p; Alg. 1; -p
    ln_reduction: Literal["cluster_mean", "sample_mean", "cluster_sum"] = "cluster_mean"  # Σ_k
    ln_metric: Literal["cos", "sqeuclid_raw", "euclid_raw"] = "cos"  # d(z, v_k)
    proto_of_unit: bool = False  # v_k is the mean of z / |z|, not of z
    # of [z_a, z_b], or of the support; or clusters from elsewhere (calibre.calibration.calibrated)
    kmeans: Literal["joint", "support_then_assign", "client", "server", "labels"] = "joint"
    kmeans_normalize: bool = False  # cluster z / |z|, not z
    query_label: Literal["own", "partner"] = "own"  # k of a query: its own, or its other view's
    detach_proto: bool = False  # no gradient through v_k (L_p is made of ν_k, so it keeps its own)
    h: Literal["projection", "prediction"] = "projection"  # what L_p compares: of the projector,
    # or of the predictor where an objective has one
    oracle_labels: bool = False  # true labels for clusters: an upper bound to analyse, no result

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kmeans == "support_then_assign" and self.support == "sym":
            raise UserError(
                "kmeans = 'support_then_assign' clusters the support view, but support = 'sym' "
                "makes both views support: set support to 'a' or 'b', or kmeans to 'joint'"
            )
        if self.kmeans == "labels" and (self.ln_metric, self.ln_form) != ("cos", "proto_ce"):
            raise UserError(
                "kmeans = 'labels' compares cosines by cross-entropy: leave ln_metric 'cos' and "
                "ln_form 'proto_ce'"
            )
        if self.proto_of_unit and self.ln_metric != "cos":
            raise UserError(
                f"proto_of_unit averages unit vectors, but ln_metric = '{self.ln_metric}' "
                "measures their distance from raw encodings: set ln_metric to 'cos', "
                "or proto_of_unit to false"
            )
        return self


@dataclass(frozen=True)
class Terms:
    """The two terms, and what to watch while they act. All scalars that stay on the device."""

    l_p: Tensor  # in the graph, like l_n
    l_n: Tensor
    clusters_valid: Tensor  # K_r
    dropped: Tensor  # share of the 2N encodings that are in no valid cluster
    agreement: Tensor  # share of the images whose two views are in the same cluster


def calibration_terms(
    settings: Regularizers,
    z_a: Tensor,
    z_b: Tensor,
    h_a: Tensor,
    h_b: Tensor,
    generator: torch.Generator,
    labels: Tensor | None = None,
) -> Terms:
    """L_p and L_n of a batch: encodings z [N, D] and head outputs h [N, H] of its two views.

    ``labels`` [N] are clusters known beforehand, negative where unknown: the true ones for
    ``oracle_labels``, or what ``kmeans`` has found elsewhere. Otherwise nothing reads them.
    """
    with torch.autocast(z_a.device.type, enabled=False):
        z_a, z_b, h_a, h_b = z_a.float(), z_b.float(), h_a.float(), h_b.float()
        check_finite(z_a, z_b)
        y_a, y_b = pseudo_labels(settings, z_a, z_b, generator, labels)
        found = torch.unique(y_a)
        valid = found[(found >= 0) & torch.isin(found, y_b)]  # V, [K]
        in_a, in_b = membership(y_a, valid), membership(y_b, valid)  # [K, N]
        if len(valid) < 2:
            l_p, l_n = 0 * (h_a.sum() + h_b.sum()), 0 * (z_a.sum() + z_b.sum())
        else:
            l_p = prototype_contrast(h_a, h_b, in_a, in_b, settings.tau_p)
            a_to_b, b_to_a = (z_a, z_b, in_a, in_b), (z_b, z_a, in_b, in_a)
            ways = {"a": [a_to_b], "b": [b_to_a], "sym": [a_to_b, b_to_a]}[settings.support]
            l_n = torch.stack([prototype_assignment(settings, *way) for way in ways]).mean()
        return Terms(
            l_p=l_p,
            l_n=l_n,
            clusters_valid=torch.tensor(float(len(valid)), device=z_a.device),
            dropped=1 - (in_a.sum() + in_b.sum()) / (2 * len(z_a)),
            agreement=((y_a == y_b) & (y_a >= 0)).float().mean(),
        )


def check_finite(*encodings: Tensor) -> None:
    if not torch.stack([z.detach().sum() for z in encodings]).sum().isfinite():
        raise FloatingPointError(
            "the encodings hold NaN or infinity: training diverged; "
            "a lower learning rate usually helps"
        )


def pseudo_labels(
    settings: Regularizers,
    z_a: Tensor,
    z_b: Tensor,
    generator: torch.Generator,
    labels: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The cluster of every encoding of the two views, [N] each; negative: in none."""
    if len(z_a) < FEWEST_IMAGES:
        none = torch.full((len(z_a),), -1, device=z_a.device)
        return none, none
    if settings.oracle_labels or settings.kmeans in ("client", "server"):
        assert labels is not None
        return labels, labels
    if settings.kmeans_normalize:
        z_a, z_b = unit(z_a), unit(z_b)
    clusters = min(settings.clusters, len(z_a))
    if settings.kmeans == "joint":
        y_a, y_b = kmeans(torch.cat([z_a, z_b]), clusters, generator).labels.chunk(2)
    elif settings.support == "a":
        support = kmeans(z_a, clusters, generator)
        y_a, y_b = support.labels, assign(z_b, support.centroids)
    else:
        support = kmeans(z_b, clusters, generator)
        y_a, y_b = assign(z_a, support.centroids), support.labels
    return y_a, y_b


def prototype_contrast(
    h_a: Tensor, h_b: Tensor, in_a: Tensor, in_b: Tensor, temperature: float
) -> Tensor:
    """L_p: NT-Xent between the two views' prototypes ν_k, the means of h [N, H] in cluster k.

    ``in_a`` and ``in_b`` [K, N] mark the members of each cluster, in each view at least one.
    """
    return ntxent(means(h_a, in_a), means(h_b, in_b), temperature)


def prototype_assignment(
    settings: Regularizers, support: Tensor, query: Tensor, in_support: Tensor, in_query: Tensor
) -> Tensor:
    """L_n: the cost of finding each query's cluster by the support view's prototypes v_k.

    Encodings are [N, D]; ``in_support`` and ``in_query`` [K, N] mark the members of each cluster.
    """
    prototypes = means(unit(support) if settings.proto_of_unit else support, in_support)  # [K, D]
    if settings.detach_proto:
        prototypes = prototypes.detach()
    if settings.query_label == "partner":
        in_query = in_support
    logits = _similarity(settings, prototypes, query)  # [K, N]

    match settings.ln_form:
        case "proto_ce":  # -log p(k | query)
            cost = -logits.log_softmax(0)
        case "neg_prob":
            cost = -logits.softmax(0)
        case "sample_contrast":  # against the queries of other clusters, itself not among them
            others = in_query.sum(0) - in_query  # [K, N]: 1 where a query is valid and not in k
            against = logits.masked_fill(others == 0, -torch.inf).logsumexp(1, keepdim=True)
            cost = against - logits

    # cost[k, j] counts where query j is in cluster k
    match settings.ln_reduction:
        case "cluster_mean":
            weights = in_query / in_query.sum(1, keepdim=True) / len(in_query)
        case "cluster_sum":
            weights = in_query / in_query.sum(1, keepdim=True)
        case "sample_mean":
            weights = in_query / in_query.sum()
    return (weights * cost).sum()


def _similarity(settings: Regularizers, prototypes: Tensor, query: Tensor) -> Tensor:
    """[K, N]. For unit vectors softmax(-d²) is softmax(cos / 0.5): the cosine needs no root."""
    if settings.ln_metric == "cos":
        return unit(prototypes) @ unit(query).T / settings.tau_n
    exact = "donot_use_mm_for_euclid_dist"  # and a zero, not NaN, for the gradient at distance 0
    distance = torch.cdist(prototypes, query, compute_mode=exact)
    return -distance.square() if settings.ln_metric == "sqeuclid_raw" else -distance


def unit(vectors: Tensor) -> Tensor:
    return normalize(vectors, dim=1, eps=1e-12)
