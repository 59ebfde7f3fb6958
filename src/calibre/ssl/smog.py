"""SMoG: Unsupervised Visual Representation Learning by Synchronous Momentum Grouping.

B. Pang, Y. Zhang, Y. Li, J. Cai, C. Lu, ECCV 2022, arXiv:2207.06167, Algorithm 1. In every step,
with x_1, x_2 the two views, their roles taken in turn, and groups g_k compared by cosine,

    u = projector(encoder(x_1)),   p = predictor(u),   t = momentum network(x_2),
    y = argmax_k cos(t, g_k),      s = argmax_k cos(u, g_k),
    g'_k = beta g_k + (1 - beta) mean{u_i : s_i = k}, where k has members; gradient through u,
    l_s = CE(cos(p, g') / tau, y);  then  g <- g' and the momentum network follows the online one.

The groups start as random unit vectors, travel like weights and are made unit again on receipt.
Re-clustering them is off by default: a round has fewer steps than the paper's interval of 300,
and group k of one client would no longer be group k of the next when the server averages.

Shapes: N images, K groups, D dimensions of u.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from calibre.ssl.momentum import Momentum, Target, TargetInit
from calibre.ssl.objective import (
    Draw,
    Objective,
    ObjectiveSettings,
    Pair,
    Step,
    Vectors,
    Width,
    projector,
)
from calibre.ssl.small_views import pass_small, with_small

PAPER_FEATURES = 512  # of ResNet-18
KMEANS_ITERATIONS = 20


class SMoG(ObjectiveSettings):
    title: ClassVar[str] = "SMoG"
    paper: ClassVar[str] = "Pang et al., ECCV 2022, arXiv:2207.06167"
    multi_crop: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    name: str = "smog"
    temperature: Annotated[float, Field(gt=0)] = 0.1  # tau
    beta: Momentum = 0.99  # of the groups
    momentum: Momentum = 0.99  # m of the momentum network
    target_init: TargetInit = "reset"  # where the momentum network starts in every round
    groups: Width | None = None  # K; default 100 from 512 features on, else 30
    reset_every: Annotated[int, Field(ge=0)] = 0  # local steps between re-clusterings; 0: none
    hidden: Width | None = None  # of projector and predictor; default 4 x features: 2048
    projection: Width | None = None  # length of u and p; default features / 4: 128 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return SMoGObjective(self, encoder, features)


class SMoGObjective(Objective):
    """Unless both are asked for, one view passes the online network: ``Pair`` has it twice."""

    def __init__(self, settings: SMoG, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or max(2, features // 4)
        count = settings.groups or (100 if features >= PAPER_FEATURES else 30)
        sizes = (features, hidden, projection)
        self.projector = projector(sizes, last_norm=True, last_affine=False)
        self.predictor = projector((projection, hidden, projection), last_norm=False)
        self.groups = Vectors(normalize(torch.randn(count, projection), dim=1))
        self.target = Target(self.encoder, self.projector, settings.target_init)
        self.shared = ("encoder", "projector", "predictor", "groups", *self.target.shared)
        self.kept = self.target.kept
        self.steps = 0
        self.updated = self.groups.vectors  # g', until after the step
        self.bank: list[Tensor] = []  # u of the steps since the last re-clustering

    def begin_round(self, draw: Draw) -> None:
        self.steps = 0
        self.bank = []
        self.groups.vectors.copy_(normalize(self.groups.vectors, dim=1))  # a mean of many is short
        self.target.begin_round(self.encoder, self.projector)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        swapped = self.steps % 2 == 1
        x_1, x_2 = (b, a) if swapped else (a, b)
        z_1 = self.encoder(x_1)
        u = self.projector(z_1)
        p = self.predictor(u)
        t = self.target(x_2)
        h_s = self.project_small(step)
        p_s = None if h_s is None else pass_small(self.predictor, h_s)
        with torch.autocast(a.device.type, enabled=False):
            y = cosines(t.float(), self.groups.vectors).argmax(dim=1)
            updated = moved(self.groups.vectors, u.float(), self.settings.beta)
            loss = cross_entropy(cosines(p.float(), updated) / self.settings.temperature, y)
            if p_s is not None:
                scores = cosines(p_s.float(), updated) / self.settings.temperature
                n = len(p_s) // len(y)
                of_small = cross_entropy(scores, y.repeat(n))
                loss = with_small(loss, of_small, n)
        self.updated = updated.detach()
        if self.settings.reset_every:
            self.bank.append(u.detach().float())
        z_2, h_2, p_2 = z_1, u, p
        if step.both:
            z_2 = self.encoder(x_2)
            h_2 = self.projector(z_2)
        if step.predictions:
            p_2 = self.predictor(h_2)
        if swapped:
            return Pair(loss, z_2, z_1, h_2, u, p_a=p_2, p_b=p)
        return Pair(loss, z_1, z_2, u, h_2, p_a=p, p_b=p_2)

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        self.groups.vectors.copy_(self.updated)
        self.target.follow(self.encoder, self.projector, self.settings.momentum)
        self.steps += 1
        if self.settings.reset_every and self.steps % self.settings.reset_every == 0:
            self._regroup()

    def _regroup(self) -> None:
        """Groups anew, by spherical k-means of the bank: none is left that attracts no image."""
        bank = normalize(torch.cat(self.bank), dim=1)
        found = bank[: len(self.groups.vectors)]  # batches are random, so its first are, too
        for _ in range(KMEANS_ITERATIONS):
            found = moved(found, bank, beta=0)
        self.groups.vectors[: len(found)] = normalize(found, dim=1)
        self.target.follow(self.encoder, self.projector, momentum=0)
        self.bank = []


def cosines(vectors: Tensor, groups: Tensor) -> Tensor:
    """[N, K] from [N, D] and [K, D]."""
    return normalize(vectors, dim=1) @ normalize(groups, dim=1).T


def moved(groups: Tensor, u: Tensor, beta: float) -> Tensor:
    """g' [K, D]: every group that is nearest to some u_i moves towards the mean of those."""
    nearest = cosines(u.detach(), groups).argmax(dim=1)  # [N]
    touched = torch.unique(nearest)
    members = (touched[:, None] == nearest).float()  # [touched, N]
    means = members @ u / members.sum(dim=1, keepdim=True)  # [touched, D]
    return groups.index_copy(0, touched, beta * groups[touched] + (1 - beta) * means)
