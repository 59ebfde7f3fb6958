"""BYOL: Bootstrap Your Own Latent, a New Approach to Self-Supervised Learning.

J.-B. Grill, F. Strub, F. Altché, C. Tallec, P. Richemond et al., NeurIPS 2020, arXiv:2006.07733,
Algorithm 1. From each view, a predictor guesses what the momentum copy makes of the other:

    l_s = 1/2 [d(p_a, t_b) + d(p_b, t_a)],  d(p, t) = 2 - 2 cos(p, t)

and after every step the copy follows the trained network with a momentum that rises from m0 to 1.
The paper sums the two directions; here they are averaged, so that the terms of Calibre keep the
same weight beside every objective.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from calibre.ssl.momentum import Momentum, Target, TargetInit, cosine_momentum
from calibre.ssl.objective import (
    Draw,
    Objective,
    ObjectiveSettings,
    Pair,
    Step,
    Width,
    projector,
)
from calibre.ssl.small_views import pass_small, with_small_of_both


class BYOL(ObjectiveSettings):
    title: ClassVar[str] = "BYOL"
    paper: ClassVar[str] = "Grill et al., NeurIPS 2020, arXiv:2006.07733"
    multi_crop: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    name: str = "byol"
    momentum: Momentum = 0.99  # m0, rising to 1 over the run
    target_init: TargetInit = "reset"  # where the momentum copy starts in every round
    hidden: Width | None = None  # of the projector; default 4 x features: 2048 for ResNet-18
    projection: Width | None = None  # length of h; default features / 2: 256 for ResNet-18
    predictor: Width | None = None  # its hidden layer; default 4 x features: 2048 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return BYOLObjective(self, encoder, features)


class BYOLObjective(Objective):
    def __init__(self, settings: BYOL, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.momentum = settings.momentum
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or max(2, features // 2)
        guess = settings.predictor or 4 * features
        self.projector = projector((features, hidden, projection), last_norm=False)
        self.predictor = projector((projection, guess, projection), last_norm=False)
        self.target = Target(self.encoder, self.projector, settings.target_init)
        self.shared = ("encoder", "projector", "predictor", *self.target.shared)
        self.kept = self.target.kept

    def begin_round(self, draw: Draw) -> None:
        self.target.begin_round(self.encoder, self.projector)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        p_a, p_b = self.predictor(h_a), self.predictor(h_b)
        t_a, t_b = self.target(a), self.target(b)
        loss = (distance(p_a, t_b) + distance(p_b, t_a)) / 2
        if (h_s := self.project_small(step)) is not None:
            p_s = pass_small(self.predictor, h_s)
            loss = with_small_of_both(loss, p_s, t_a, t_b, distance)
        return Pair(loss, z_a, z_b, h_a, h_b, p_a=p_a, p_b=p_b)

    def after_step(self, step: Step) -> None:
        momentum = cosine_momentum(self.momentum, step.progress)
        self.target.follow(self.encoder, self.projector, momentum)


def distance(p: Tensor, t: Tensor) -> Tensor:
    """2 - 2 cos, the squared distance of unit vectors, on average over the rows."""
    return (2 - 2 * F.cosine_similarity(p.float(), t.float(), dim=1, eps=1e-12)).mean()
