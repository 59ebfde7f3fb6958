"""SimSiam: Exploring Simple Siamese Representation Learning.

X. Chen, K. He, CVPR 2021, arXiv:2011.10566, Algorithm 1. From each view, a predictor guesses the
projection of the other, through which no gradient flows:

    l_s = 1/2 [d(p_a, sg h_b) + d(p_b, sg h_a)],  d(p, h) = -cos(p, h)
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from calibre.ssl.objective import (
    Objective,
    ObjectiveSettings,
    Pair,
    Step,
    Width,
    projector,
)
from calibre.ssl.small_views import pass_small, with_small_of_both


class SimSiam(ObjectiveSettings):
    title: ClassVar[str] = "SimSiam"
    paper: ClassVar[str] = "Chen and He, CVPR 2021, arXiv:2011.10566"
    multi_crop: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    name: str = "simsiam"
    hidden: Width | None = None  # two layers of them; default 4 x features: 2048 for ResNet-18
    projection: Width | None = None  # length of h; default 4 x features: 2048 for ResNet-18
    predictor: Width | None = None  # its bottleneck; default features: 512 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return SimSiamObjective(self, encoder, features)


class SimSiamObjective(Objective):
    shared = ("encoder", "projector", "predictor")

    def __init__(self, settings: SimSiam, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or 4 * features
        bottleneck = settings.predictor or features
        sizes = (features, hidden, hidden, projection)
        self.projector = projector(sizes, last_norm=True, last_affine=False)
        self.predictor = projector((projection, bottleneck, projection), last_norm=False)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        p_a, p_b = self.predictor(h_a), self.predictor(h_b)
        t_a, t_b = h_a.detach(), h_b.detach()
        loss = (distance(p_a, t_b) + distance(p_b, t_a)) / 2
        if (h_s := self.project_small(step)) is not None:
            p_s = pass_small(self.predictor, h_s)
            loss = with_small_of_both(loss, p_s, t_a, t_b, distance)
        return Pair(loss, z_a, z_b, h_a, h_b, p_a=p_a, p_b=p_b)


def distance(p: Tensor, h: Tensor) -> Tensor:
    """The negative cosine, on average over the rows."""
    return -F.cosine_similarity(p.float(), h.float(), dim=1, eps=1e-12).mean()
