"""Calibre's loss: an objective around an objective, Algorithm 1 of the paper.

    L = l_s + alpha_p L_p + alpha_n L_n

l_s is the inner objective's own; L_p and L_n are made of its encodings z and projections h.
"""

from typing import Self

from torch import Tensor

from calibre.calibration.regularizers import Regularizers, calibration_terms
from calibre.ssl.objective import Draw, Objective, Pair, Step


class Wrapped(Objective):
    """An objective around another. It has the tensors of the inner one, under the same names.

    So what travels is called alike with and without what the outer one adds.
    """

    def __init__(self, inner: Objective) -> None:
        super().__init__()
        self._inner = (inner,)  # in a tuple: its parts are this module's own, not parts of a part
        # the tables themselves: whatever moves or replaces a tensor does so for both
        self._modules, self._parameters = inner._modules, inner._parameters
        self._buffers = inner._buffers
        self._non_persistent_buffers_set = inner._non_persistent_buffers_set
        self.shared, self.kept = inner.shared, inner.kept

    @property
    def inner(self) -> Objective:
        return self._inner[0]

    def train(self, mode: bool = True) -> Self:
        self.inner.train(mode)
        return super().train(mode)

    def begin_round(self, draw: Draw) -> None:
        self.inner.begin_round(draw)

    def before_step(self, step: Step) -> None:
        self.inner.before_step(step)

    def after_step(self, step: Step) -> None:
        self.inner.after_step(step)


class Calibrated(Wrapped):
    def __init__(self, inner: Objective, settings: Regularizers) -> None:
        super().__init__(inner)
        self.settings = settings

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        pair: Pair = self.inner(a, b, step._replace(both=True))
        prototypes = calibration_terms(
            self.settings, pair.z_a, pair.z_b, pair.h_a, pair.h_b, step.random("kmeans"),
            step.labels,
        )  # fmt: skip
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
