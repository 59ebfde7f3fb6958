"""SimCLR: A Simple Framework for Contrastive Learning of Visual Representations.

T. Chen, S. Kornblith, M. Norouzi, G. Hinton, ICML 2020, arXiv:2002.05709, Algorithm 1. Small views
must find both views of their image (``find_image``).
"""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from calibre.ssl.ntxent import find_image, ntxent
from calibre.ssl.objective import (
    Objective,
    ObjectiveSettings,
    Pair,
    Step,
    Width,
    projector,
)
from calibre.ssl.small_views import with_small


class SimCLR(ObjectiveSettings):
    title: ClassVar[str] = "SimCLR"
    paper: ClassVar[str] = "Chen et al., ICML 2020, arXiv:2002.05709"
    multi_crop: ClassVar[bool] = True

    name: str = "simclr"
    temperature: Annotated[float, Field(gt=0)] = 0.2  # tau_s
    hidden: Width | None = None  # of the projector; default 4 x features: 2048 for ResNet-18
    projection: Width | None = None  # length of h; default features / 2: 256 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return SimCLRObjective(self, encoder, features)


class SimCLRObjective(Objective):
    shared = ("encoder", "projector")

    def __init__(self, settings: SimCLR, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.temperature = settings.temperature
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or max(2, features // 2)
        self.projector = projector((features, hidden, projection), last_norm=True)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        z_a, z_b = self.encoder(a), self.encoder(b)  # two passes: batch norm sees one view each
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        loss = ntxent(h_a, h_b, self.temperature)
        if (h_s := self.project_small(step)) is not None:
            of_small = find_image(h_s, h_a, h_b, self.temperature)
            loss = with_small(loss, of_small, len(h_s) // len(h_a))
        return Pair(loss, z_a, z_b, h_a, h_b)
