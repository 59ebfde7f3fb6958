"""SwAV: Unsupervised Learning of Visual Features by Contrasting Cluster Assignments.

M. Caron, I. Misra, J. Mairal, P. Goyal, P. Bojanowski, A. Joulin, NeurIPS 2020, arXiv:2006.09882,
Algorithm 1 and appendix A. With unit projections h of the two views and unit prototypes C,

    s = h C^T,   q = Sinkhorn(s / epsilon), without gradient,
    l_s = 1/2 [CE(q_b, softmax(s_a / tau)) + CE(q_a, softmax(s_b / tau))]:

each view predicts the code of the other. Two crops and no small ones; the optional queue serves as
soon as it holds anything, not only once it is full, as it starts empty in every round.

Shapes: N images, K prototypes, D dimensions of h.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from calibre.ssl.objective import (
    Draw,
    Objective,
    ObjectiveSettings,
    Pair,
    Step,
    Width,
    projector,
)
from calibre.ssl.small_views import with_small_of_both

Count = Annotated[int, Field(ge=0)]
PAPER_FEATURES = 512  # of ResNet-18; below, batches are small too and many prototypes make noise


class SwAV(ObjectiveSettings):
    title: ClassVar[str] = "SwAV"
    paper: ClassVar[str] = "Caron et al., NeurIPS 2020, arXiv:2006.09882"
    multi_crop: ClassVar[bool] = True

    name: str = "swav"
    temperature: Annotated[float, Field(gt=0)] = 0.1  # tau
    epsilon: Annotated[float, Field(gt=0)] = 0.05  # of Sinkhorn: small makes codes sharp
    iterations: Annotated[int, Field(ge=1)] = 3  # of Sinkhorn
    prototypes: Width | None = None  # K; default 100 from 512 features on, else 30
    freeze_prototypes: Count = 313  # first local steps of the run's first epoch: they stay put
    queue: Count = 0  # past projections of each view that share in Sinkhorn
    hidden: Width | None = None  # of the projector; default 4 x features: 2048 for ResNet-18
    projection: Width | None = None  # length of h; default features / 4: 128 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return SwAVObjective(self, encoder, features)


class SwAVObjective(Objective):
    shared = ("encoder", "projector", "prototypes")

    def __init__(self, settings: SwAV, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or max(2, features // 4)
        count = settings.prototypes or (100 if features >= PAPER_FEATURES else 30)
        self.projector = projector((features, hidden, projection), last_norm=False)
        self.prototypes = nn.Linear(projection, count, bias=False)  # C [K, D], rows made unit
        self._forget()

    def begin_round(self, draw: Draw) -> None:
        self._forget()

    def _forget(self) -> None:
        self.steps = 0
        self.past = self.prototypes.weight.new_empty(0, 2, self.prototypes.in_features)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        with torch.no_grad():  # averaging at the server and steps of SGD leave the unit sphere
            self.prototypes.weight.copy_(normalize(self.prototypes.weight, dim=1))
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        h_s = self.project_small(step)
        with torch.autocast(a.device.type, enabled=False):
            h_a, h_b = normalize(h_a.float(), dim=1), normalize(h_b.float(), dim=1)
            s_a, s_b = self.prototypes(h_a), self.prototypes(h_b)  # [N, K]
            q_a, q_b = self._codes(s_a, self.past[:, 0]), self._codes(s_b, self.past[:, 1])
            tau = self.settings.temperature
            loss = (cross_entropy(s_a / tau, q_b) + cross_entropy(s_b / tau, q_a)) / 2
            if h_s is not None:
                s_s = self.prototypes(normalize(h_s.float(), dim=1)) / tau
                loss = with_small_of_both(loss, s_s, q_a, q_b, cross_entropy)
        newest = torch.stack([h_a, h_b], dim=1).detach()  # [N, 2, D]
        self.past = torch.cat([newest, self.past])[: self.settings.queue]
        return Pair(loss, z_a, z_b, h_a, h_b)

    @torch.no_grad()
    def _codes(self, scores: Tensor, past: Tensor) -> Tensor:
        """q [N, K]; past projections [Q, D] only help to share the prototypes out."""
        every = torch.cat([scores, self.prototypes(past)])  # [N + Q, K]
        return sinkhorn(every, self.settings.epsilon, self.settings.iterations)[: len(scores)]

    def before_step(self, step: Step) -> None:
        # to leave out the gradient, unlike a zero one, also leaves out weight decay
        if step.progress == 0 and self.steps < self.settings.freeze_prototypes:
            self.prototypes.weight.grad = None

    def after_step(self, step: Step) -> None:
        self.steps += 1


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes [N, K] that fit ``scores`` [N, K] while all prototypes get the same share of images.

    Every row sums to 1; the columns approach N / K with the iterations. Done on logarithms, where
    normalising is a log-softmax, which subtracts the maximum: no overflow at any epsilon.
    """
    logs = scores.float() / epsilon
    for _ in range(iterations):
        logs = logs.log_softmax(dim=0)  # every prototype hands out the same mass
        logs = logs.log_softmax(dim=1)  # every image gets one unit of it
    return logs.exp()
