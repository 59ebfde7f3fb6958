"""Barlow Twins: Self-Supervised Learning via Redundancy Reduction.

J. Zbontar, L. Jing, I. Misra, Y. LeCun, S. Deny, ICML 2021, arXiv:2103.03230, Algorithm 1. With C
the correlations, over the batch, between the dimensions of the two views' projections,

    l_s = [ sum_i (1 - C_ii)^2 + lambda sum_(i != j) C_ij^2 ] / D

Divided by the length D of a projection, unlike in the paper: SGD's rate then suits any D.
"""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from calibre.ssl.objective import Objective, ObjectiveSettings, Pair, Step, Width, projector


class BarlowTwins(ObjectiveSettings):
    title: ClassVar[str] = "Barlow Twins"
    paper: ClassVar[str] = "Zbontar et al., ICML 2021, arXiv:2103.03230"

    redundancy: Annotated[float, Field(ge=0)] = 5e-3  # lambda
    hidden: Width | None = None  # two layers of them; default 4 x features
    projection: Width | None = None  # D; default 4 x features

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return BarlowTwinsObjective(self, encoder, features)


class BarlowTwinsObjective(Objective):
    shared = ("encoder", "projector")  # the parts that travel

    def __init__(self, settings: BarlowTwins, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.redundancy = settings.redundancy
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        sizes = (features, hidden, hidden, settings.projection or 4 * features)
        self.projector = projector(sizes, last_norm=False)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        return Pair(self.decorrelation(h_a.float(), h_b.float()), z_a, z_b, h_a, h_b)

    def decorrelation(self, h_a: Tensor, h_b: Tensor) -> Tensor:
        unit_a = F.batch_norm(h_a, None, None, training=True)  # mean 0, variance 1 per dimension
        unit_b = F.batch_norm(h_b, None, None, training=True)
        off = (unit_a.T @ unit_b / len(h_a) - torch.eye(h_a.shape[1], device=h_a.device)).square()
        alike = off.diagonal().sum()
        return (alike + self.redundancy * (off.sum() - alike)) / len(off)
