"""Momentum copies: a second encoder and projector that follow the trained ones as a moving average.

    xi <- m xi + (1 - m) theta

for the parameters. The buffers of their batch norms are not averaged: the copy's own forward
passes renew them. A round touches a client's copy only briefly, so where it starts matters
(``target_init``):

- ``reset``: from the network that the client received. It neither travels nor stays.
- ``average``: from the mean of the clients' copies; it travels like the network itself.
- ``local``: from where the client left it, the first time from the network that it received.
"""

import copy
import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

TargetInit = Literal["reset", "average", "local"]
Momentum = Annotated[float, Field(ge=0, le=1)]


def cosine_momentum(m0: float, progress: float) -> float:
    """From m0 at the start of the run to 1 at its end: 1 - (1 - m0)(cos(pi t / T) + 1) / 2."""
    return 1 - (1 - m0) * (math.cos(math.pi * progress) + 1) / 2


class Target(nn.Module):
    """The momentum copy of an encoder and a projector; no gradient reaches it.

    An objective has it as its part ``target`` and adds ``shared`` and ``kept`` to its own.
    """

    participations: Tensor  # of this client: 0 where nothing was kept

    def __init__(self, encoder: nn.Module, projector: nn.Module, init: TargetInit) -> None:
        super().__init__()
        self.init = init
        self.shared = ("target",) if init == "average" else ()
        self.kept = ("target",) if init == "local" else ()
        self.encoder = copy.deepcopy(encoder)
        self.projector = copy.deepcopy(projector)
        self.requires_grad_(False)
        if init == "local":
            self.register_buffer("participations", torch.zeros((), dtype=torch.int64))

    def begin_round(self, encoder: nn.Module, projector: nn.Module) -> None:
        """``encoder`` and ``projector`` are as received."""
        if self.init == "reset" or (self.init == "local" and self.participations == 0):
            self.encoder.load_state_dict(encoder.state_dict())
            self.projector.load_state_dict(projector.state_dict())
        if self.init == "local":
            self.participations += 1

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        projection: Tensor = self.projector(self.encoder(x))
        return projection

    @torch.no_grad()
    def follow(self, encoder: nn.Module, projector: nn.Module, momentum: float) -> None:
        for own, online in ((self.encoder, encoder), (self.projector, projector)):
            for xi, theta in zip(own.parameters(), online.parameters(), strict=True):
                xi.lerp_(theta, 1 - momentum)
