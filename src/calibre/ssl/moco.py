"""MoCo v2: Improved Baselines with Momentum Contrastive Learning.

X. Chen, H. Fan, R. Girshick, K. He, 2020, arXiv:2003.04297; the algorithm is that of K. He et al.,
Momentum Contrast, CVPR 2020, arXiv:1911.05722, Algorithm 1. The query of one view must find the
momentum copy's key of the other among the keys of earlier batches:

    l_s = 1/2 [c(q_a, k_b) + c(q_b, k_a)],
    c(q, k) = -log e^(q.k/tau) / (e^(q.k/tau) + sum over the queue of e^(q.n/tau))

where keys of the query's own image do not count: a client's queue holds its own few images, so that
a quarter to a third of all queries would have to tell themselves apart from themselves.

The copy moves first, the keys of a batch join the queue after the step. Different from the paper:
both directions count, since Calibre needs both views of the trained network; a client's queue is
no longer than its data and starts each round with keys of its own images; and batches are not
shuffled for batch norm, which makes no difference on a single device.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from calibre.local.batches import balanced_batches
from calibre.ssl.momentum import Momentum, Target, TargetInit
from calibre.ssl.objective import Draw, Objective, ObjectiveSettings, Pair, Step, Width
from calibre.ssl.small_views import with_small

CHUNK = 256  # images at a time when a queue is first filled: keeps memory flat


class MoCo(ObjectiveSettings):
    title: ClassVar[str] = "MoCoV2"
    paper: ClassVar[str] = "Chen et al., 2020, arXiv:2003.04297"
    multi_crop: ClassVar[bool] = True

    name: str = "moco"
    temperature: Annotated[float, Field(gt=0)] = 0.2  # tau
    momentum: Momentum = 0.99  # m, the same all along
    target_init: TargetInit = "reset"  # where the momentum copy starts in every round
    queue: Annotated[int, Field(ge=1)] = 1024  # keys, or as many as the client has images
    persist: bool = False  # the client keeps its queue, of full length, empty at first
    hidden: Width | None = None  # of the projector; default 4 x features: 2048 for ResNet-18
    projection: Width | None = None  # length of h; default features / 4: 128 for ResNet-18

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return MoCoObjective(self, encoder, features)


class MoCoObjective(Objective):
    def __init__(self, settings: MoCo, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        hidden = settings.hidden or 4 * features
        projection = settings.projection or max(2, features // 4)
        self.projector = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, projection)
        )
        self.target = Target(self.encoder, self.projector, settings.target_init)
        self.queue = Queue(settings.queue, projection, settings.persist)
        self.shared = ("encoder", "projector", *self.target.shared)
        self.kept = (*self.target.kept, "queue") if settings.persist else self.target.kept

    def begin_round(self, draw: Draw) -> None:
        self.target.begin_round(self.encoder, self.projector)
        if not self.settings.persist:
            sample = draw(self.settings.queue)
            chunks = sample.views.split(balanced_batches(len(sample.views), CHUNK))
            self.queue.fill(torch.cat([self._keys(chunk) for chunk in chunks]), sample.rows)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        self.target.follow(self.encoder, self.projector, self.settings.momentum)
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        k_a, k_b = self._keys(a), self._keys(b)
        rows = step.rows
        loss = (self._contrast(h_a, k_b, rows) + self._contrast(h_b, k_a, rows)) / 2
        if (h_s := self.project_small(step)) is not None:
            n = len(h_s) // len(h_a)
            own = rows.repeat(n)
            to_a, to_b = (self._contrast(h_s, k.repeat(n, 1), own) for k in (k_a, k_b))
            loss = with_small(loss, (to_a + to_b) / 2, n)
        self._joining = torch.cat([k_a, k_b])
        return Pair(loss, z_a, z_b, h_a, h_b)

    def after_step(self, step: Step) -> None:
        self.queue.push(self._joining, step.rows.repeat(2))

    def _keys(self, x: Tensor) -> Tensor:
        return normalize(self.target(x).float(), dim=1, eps=1e-12)

    def _contrast(self, h: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """Of queries ``h`` of the client's images ``rows``."""
        hidden = self.queue.empty() | self.queue.of_images(rows)
        return info_nce(h, keys, self.queue.keys, hidden, self.settings.temperature)


class Queue(nn.Module):
    """The latest keys, first in, first out: a ring of rows."""

    keys: Tensor  # [Q, d]
    rows: Tensor  # [Q]: of which of the client's images they are
    pushed: Tensor  # how many keys ever came in; the next goes to row ``pushed`` modulo Q

    def __init__(self, length: int, width: int, persist: bool) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(length, width), persistent=persist)
        self.register_buffer("rows", torch.full((length,), -1), persistent=persist)
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64), persistent=persist)

    def fill(self, keys: Tensor, rows: Tensor) -> None:
        """Exactly these; from now on the queue is as long as they are many."""
        self.keys = keys
        self.rows = rows
        self.pushed = torch.full_like(self.pushed, len(keys))

    def push(self, keys: Tensor, rows: Tensor) -> None:
        keys, rows = keys[-len(self.keys) :], rows[-len(self.keys) :]
        places = (torch.arange(len(keys), device=keys.device) + self.pushed) % len(self.keys)
        self.keys[places] = keys
        self.rows[places] = rows
        self.pushed += len(keys)

    def empty(self) -> Tensor:
        """Which rows [Q] hold no key yet."""
        return torch.arange(len(self.keys), device=self.keys.device) >= self.pushed

    def of_images(self, rows: Tensor) -> Tensor:
        """Which keys are of the same image as each of ``rows`` [N]: [N, Q]."""
        return rows[:, None] == self.rows


def info_nce(h: Tensor, keys: Tensor, queue: Tensor, hidden: Tensor, temperature: float) -> Tensor:
    """Mean cross entropy of finding a row's key among it and the queue, by cosine; in fp32.

    ``h`` and ``keys`` are [N, d]; ``queue`` is [Q, d], of which those that are ``hidden``, from all
    ([Q]) or from some ([N, Q]), do not count. Keys and queue are unit vectors already.
    """
    with torch.autocast(h.device.type, enabled=False):
        query = normalize(h.float(), dim=1, eps=1e-12)
        positive = (query * keys).sum(dim=1, keepdim=True)  # [N, 1]
        negative = (query @ queue.T).masked_fill(hidden, -torch.inf)  # [N, Q]
        logits = torch.cat([positive, negative], dim=1) / temperature
        return cross_entropy(logits, torch.zeros(len(h), dtype=torch.int64, device=h.device))
