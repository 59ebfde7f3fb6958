"""Calibre's loss: an objective around an objective, Algorithm 1 of the paper.

    L = l_s + alpha_p L_p + alpha_n L_n

l_s is the inner objective's own; L_p and L_n are made of its encodings z and projections h. With
``h = "prediction"``, the predictor's outputs stand in place of h.
"""

from torch import Tensor

from calibre.calibration.regularizers import Regularizers, calibration_terms
from calibre.ssl.objective import Objective, Pair, Step, Wrapped


class Calibrated(Wrapped):
    def __init__(self, inner: Objective, settings: Regularizers) -> None:
        super().__init__(inner)
        self.settings = settings

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        predictions = self.settings.h == "prediction"
        pair: Pair = self.inner(a, b, step._replace(both=True, predictions=predictions))
        h_a, h_b = pair.h_a, pair.h_b
        if predictions:
            assert pair.p_a is not None
            assert pair.p_b is not None
            h_a, h_b = pair.p_a, pair.p_b
        prototypes = calibration_terms(
            self.settings, pair.z_a, pair.z_b, h_a, h_b, step.random("kmeans"), step.labels
        )
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
