"""L_p and L_n with clusters that are anchored by a client's labels (``kmeans = "labels"``).

After M. Assran et al., Semi-Supervised Learning of Visual Features by Non-Parametrically
Predicting View Assignments with Support Samples, ICCV 2021, arXiv:2104.13963 (PAWS). Prototypes v_k
are the means of the client's labelled images of class k, and

    p(k | z) = softmax_k cos(z, v_k) / tau_n
    L_n      = ( CE(p_a, q_b) + CE(p_b, q_a) ) / 2

where a view's target q is its other view's p, made sharper, and so that over the batch its mean is
the client's own mix of labels. (PAWS asks for a uniform mean: clients here are anything but.) L_p
contrasts prototypes of h as ever, an image in the cluster where both views' targets are highest.
Shapes: N images, n labelled ones, K classes of these.
"""

import torch
from torch import Tensor

from calibre.calibration.kmeans import means, membership
from calibre.calibration.regularizers import (
    FEWEST_IMAGES,
    Regularizers,
    Terms,
    check_finite,
    prototype_contrast,
    unit,
)

SHARPER = 4  # p^4, PAWS's temperature of 0.25
TURNS = 3  # of rows and columns, until the targets' mean is the mix


def anchored_terms(
    settings: Regularizers,
    z_a: Tensor,
    z_b: Tensor,
    h_a: Tensor,
    h_b: Tensor,
    anchors: Tensor | None,
    labels: Tensor | None,
) -> Terms:
    """Of a batch's encodings z [N, D] and head outputs h [N, H] of its two views.

    ``anchors`` [n, D] are encodings of labelled images, and ``labels`` [n] theirs; a client without
    labels, or with those of one class, has no such terms.
    """
    with torch.autocast(z_a.device.type, enabled=False):
        z_a, z_b, h_a, h_b = z_a.float(), z_b.float(), h_a.float(), h_b.float()
        check_finite(z_a, z_b)
        held = z_a.new_zeros(0) if labels is None else torch.unique(labels)
        if anchors is None or labels is None or len(held) < 2 or len(z_a) < FEWEST_IMAGES:
            nothing = z_a.new_zeros(())
            return Terms(0 * h_a.sum(), 0 * z_a.sum(), nothing, nothing + 1, nothing)
        members = membership(labels, held)  # [K, n]
        prototypes = unit(means(unit(anchors.float()), members))  # [K, D]
        if settings.detach_proto:
            prototypes = prototypes.detach()
        log_a, log_b = (
            (unit(z) @ prototypes.T / settings.tau_n).log_softmax(1) for z in (z_a, z_b)
        )  # [N, K]
        mix = members.mean(1)
        q_a, q_b = targets(log_a.detach().exp(), mix), targets(log_b.detach().exp(), mix)
        l_n = -((q_b * log_a).sum(1) + (q_a * log_b).sum(1)).mean() / 2
        image = (q_a + q_b).argmax(1)
        found = torch.unique(image)
        in_cluster = membership(image, found)  # [K_r, N]
        l_p = 0 * h_a.sum()
        if len(found) > 1:
            l_p = prototype_contrast(h_a, h_b, in_cluster, in_cluster, settings.tau_p)
        return Terms(
            l_p=l_p,
            l_n=l_n,
            clusters_valid=torch.tensor(float(len(found)), device=z_a.device),
            dropped=z_a.new_zeros(()),
            agreement=(q_a.argmax(1) == q_b.argmax(1)).float().mean(),
        )


def targets(p: Tensor, mix: Tensor) -> Tensor:
    """[N, K] from assignments ``p`` [N, K]: sharper, and their mean (nearly) ``mix`` [K]."""
    q = p.pow(SHARPER)
    q = q / q.sum(1, keepdim=True)
    for _ in range(TURNS):
        q = q * (mix / q.mean(0).clamp(min=1e-12))
        q = q / q.sum(1, keepdim=True)
    return q
