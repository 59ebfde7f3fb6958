"""The steps of ``torch.optim.SGD`` and ``torch.optim.AdamW``, to the bit, by torch's own functions.

Their classes would load torch's compiler, a second of every process; and on Flower every message
has a process of its own.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

Kind = Literal["sgd", "adamw"]
EPSILON = 1e-8  # of AdamW: keeps a step finite where gradients vanish


class Descent:
    """Parameters on their way down, and what the optimizer remembers of each.

    A parameter without a gradient stays as it is in that step, and so does its memory.
    """

    def __init__(
        self,
        kind: Kind,
        parameters: list[nn.Parameter],
        *,
        momentum: float,
        beta2: float,
        weight_decay: float,
    ) -> None:
        self.kind = kind
        self.parameters = parameters
        self.momentum = momentum
        self.beta2 = beta2
        self.weight_decay = weight_decay
        self.velocities: list[Tensor | None] = [None] * len(parameters)
        self.moments: list[tuple[Tensor, Tensor, Tensor] | None] = [None] * len(parameters)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        gradients = {
            i: part.grad for i, part in enumerate(self.parameters) if part.grad is not None
        }
        if self.kind == "sgd":
            self._step_of_sgd(gradients, rate)
        else:
            self._step_of_adamw(gradients, rate)

    def _step_of_sgd(self, gradients: dict[int, Tensor], rate: float) -> None:
        moving = [self.velocities[i] for i in gradients]  # made by torch in the first step
        sgd(
            [self.parameters[i] for i in gradients],
            list(gradients.values()),
            moving,
            foreach=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0,
            nesterov=False,
            maximize=False,
        )
        for i, velocity in zip(gradients, moving, strict=True):
            self.velocities[i] = velocity

    def _step_of_adamw(self, gradients: dict[int, Tensor], rate: float) -> None:
        held = [self._moments_of(i) for i in gradients]
        adamw(
            [self.parameters[i] for i in gradients],
            list(gradients.values()),
            [mean for mean, _, _ in held],
            [square for _, square, _ in held],
            [],
            [steps for _, _, steps in held],
            foreach=True,
            amsgrad=False,
            beta1=self.momentum,
            beta2=self.beta2,
            lr=rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def _moments_of(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """The running means of gradients and of their squares, and the steps so far."""
        found = self.moments[i]
        if found is None:
            part = self.parameters[i]
            found = torch.zeros_like(part), torch.zeros_like(part), torch.tensor(0.0)
            self.moments[i] = found
        return found
