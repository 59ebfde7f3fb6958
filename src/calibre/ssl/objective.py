"""The contract of a self-supervised objective."""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Protocol

from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from calibre.registry import OBJECTIVES
from calibre.settings import Settings, named


class Pair(NamedTuple):
    """What one forward pass over two views gives; z and h carry gradient for both views."""

    loss: Tensor  # l_s
    z_a: Tensor  # encodings [N, features]
    z_b: Tensor
    h_a: Tensor  # projector outputs [N, projection]
    h_b: Tensor


Sample = Callable[[int], Tensor]  # n -> one view each of at most n of the client's images


class Objective(nn.Module):
    """The network of an objective (encoder, heads, momentum copies) together with its loss.

    What a step of training does is, in this order: ``forward``, backward, ``before_step``, the
    optimizer's step, ``after_step``. What must not be trained has ``requires_grad`` off.
    """

    shared: tuple[str, ...] = ()  # the parts that travel: encoder and online heads
    kept: tuple[str, ...] = ()  # the parts that stay with the client from one round to its next
    progress: float = 0.0  # of the whole run, 0 to 1, by global epochs: for schedules
    calibrated: bool = False  # whether z and h of both views will be used
    encoder: nn.Module

    def begin_round(self, sample: Sample) -> None:
        """After the round's tensors were received: set up momentum copies, queues, groups."""

    def forward(self, a: Tensor, b: Tensor) -> Pair:
        raise NotImplementedError

    def before_step(self) -> None:
        """Between backward and the optimizer's step: may change gradients."""

    def after_step(self) -> None:
        """After the optimizer's step: momentum copies, queues, groups."""


class ObjectiveSettings(Protocol):
    """The hyper-parameters of an objective, and how to build its network around an encoder."""

    title: ClassVar[str]
    paper: ClassVar[str]

    @property
    def name(self) -> str: ...

    def build(self, encoder: nn.Module, features: int) -> Objective: ...


AnyObjective = Annotated[
    SerializeAsAny[Settings], BeforeValidator(named("method.objective", OBJECTIVES, "simclr"))
]

Width = Annotated[int, Field(ge=2)]  # of a layer


def projector(
    sizes: tuple[int, ...], *, last_norm: bool, last_affine: bool = True
) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them; the last is bare or batch-normed.

    ``last_affine=False``: the last batch norm only standardises, without scale and offset.
    """
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        normed = last_norm or not last
        layers.append(nn.Linear(before, after, bias=not normed))
        if normed:
            layers.append(nn.BatchNorm1d(after, affine=last_affine or not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
