"""Calibre's loss: an objective around an objective, Algorithm 1 of the paper.

    L = l_s + alpha_p L_p + alpha_n L_n

l_s is the inner objective's own; L_p and L_n are made of its encodings z and projections h. With
``h = "prediction"``, the predictor's outputs stand in place of h.

Clusters are those of the batch, unless ``kmeans`` names another source of them:

- ``client``: of all the client's images, once at the beginning of a round;
- ``server``: prototypes that the server made of all clients' own; an image is in the nearest
  one's cluster, as the round begins. They travel as a part ``prototypes`` of the network: up the
  client's own, of the encoder that it received, and down, a round later, the server's;
- ``labels``: of the client's labelled images (:mod:`calibre.calibration.anchored`).
"""

import torch
from torch import Tensor

from calibre.calibration.anchored import anchored_terms
from calibre.calibration.kmeans import assign, kmeans
from calibre.calibration.regularizers import (
    Regularizers,
    Terms,
    calibration_terms,
    check_finite,
    unit,
)
from calibre.ssl.objective import Draw, Objective, Pair, Step, Vectors, Wrapped

MOST_IMAGES = 4096  # of a client are sorted as a round begins; others are in no cluster
CHUNK = 64  # of them are encoded at a time
ANCHORS = 64  # labelled images in a step


class Calibrated(Wrapped):
    """``features``: of an encoding, which only prototypes at the server need to know."""

    def __init__(self, inner: Objective, settings: Regularizers, features: int = 0) -> None:
        super().__init__(inner)
        self.settings = settings
        self.cluster_of = torch.empty(0, dtype=torch.int64)  # each image's, by its row
        if settings.kmeans == "server":
            self.prototypes = Vectors(torch.zeros(settings.clusters, features))  # not known yet
            self.shared = (*inner.shared, "prototypes")

    def begin_round(self, draw: Draw) -> None:
        super().begin_round(draw)
        if self.settings.kmeans not in ("client", "server"):
            return
        sample = draw(MOST_IMAGES)
        z = self._encodings(sample.views)
        check_finite(z)
        generator = torch.Generator(z.device).manual_seed(0)  # of images in random order
        own = kmeans(z, min(self.settings.clusters, len(z)), generator)
        labels = own.labels
        if self.settings.kmeans == "server":
            if self.prototypes.vectors.any():
                labels = assign(z, self.prototypes.vectors)
            asked = torch.arange(len(self.prototypes.vectors), device=z.device)
            self.prototypes.vectors.copy_(own.centroids[asked % len(own.centroids)])
        self.cluster_of = labels.new_full((int(sample.rows.max()) + 1,), -1)
        self.cluster_of[sample.rows] = labels

    @torch.no_grad()
    def _encodings(self, views: Tensor) -> Tensor:
        """Of the encoder as received; batch norm does not follow them."""
        training = self.encoder.training
        self.encoder.eval()
        z = torch.cat([self.encoder(chunk).float() for chunk in views.split(CHUNK)])
        self.encoder.train(training)
        return unit(z) if self.settings.kmeans_normalize else z

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        predictions = self.settings.h == "prediction"
        pair: Pair = self.inner(a, b, step._replace(both=True, predictions=predictions))
        h_a, h_b = pair.h_a, pair.h_b
        if predictions:
            assert pair.p_a is not None
            assert pair.p_b is not None
            h_a, h_b = pair.p_a, pair.p_b
        prototypes = self._terms(pair.z_a, pair.z_b, h_a, h_b, step)
        added = self.settings.alpha_p * prototypes.l_p + self.settings.alpha_n * prototypes.l_n
        return pair._replace(
            loss=pair.loss + added,
            terms={
                "l_s": pair.loss,
                **pair.terms,
                "l_p": prototypes.l_p,
                "l_n": prototypes.l_n,
                "clusters": prototypes.clusters_valid,
                "dropped": prototypes.dropped,
                "agreement": prototypes.agreement,
            },
        )

    def _terms(self, z_a: Tensor, z_b: Tensor, h_a: Tensor, h_b: Tensor, step: Step) -> Terms:
        if self.settings.kmeans == "labels":
            anchors = step.labelled(ANCHORS)
            z = None if anchors is None else self.encoder(anchors.views)
            labels = None if anchors is None else anchors.labels
            return anchored_terms(self.settings, z_a, z_b, h_a, h_b, z, labels)
        known = step.labels
        if self.settings.kmeans in ("client", "server"):
            within = step.rows < len(self.cluster_of)
            known = torch.full_like(step.rows, -1)
            known[within] = self.cluster_of[step.rows[within]]
        return calibration_terms(self.settings, z_a, z_b, h_a, h_b, step.random("kmeans"), known)
