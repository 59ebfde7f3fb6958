"""The contract of a self-supervised objective."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from calibre.registry import OBJECTIVES
from calibre.settings import Settings, named
from calibre.ssl.small_views import pass_small


class Pair(NamedTuple):
    """What one forward pass over two views gives; z and h carry gradient for both views."""

    loss: Tensor  # what is minimised
    z_a: Tensor  # encodings [N, features]
    z_b: Tensor
    h_a: Tensor  # projector outputs [N, projection]
    h_b: Tensor
    terms: Mapping[str, Tensor] = {}  # what to report beside the loss
    p_a: Tensor | None = None  # predictor outputs [N, projection], of objectives that have one
    p_b: Tensor | None = None


class LabelledBatch(NamedTuple):
    views: Tensor  # weakly augmented images [n, C, H, W]
    labels: Tensor  # int64 [n]
    held: Tensor  # bool [K]: the classes of which the client has a label


def no_labels(count: int) -> LabelledBatch | None:
    """For clients that have none."""
    return None


class Step(NamedTuple):
    """What an objective may know of the step under way, beside the two views."""

    rows: Tensor  # int64 [N]: which of the client's images these are
    labels: Tensor  # int64 [N], -1 where unlabelled
    progress: float  # of the whole run, 0 to 1, by global epochs: for schedules
    random: Callable[[str], torch.Generator]  # purpose -> randomness of this step
    labelled: Callable[[int], LabelledBatch | None] = no_labels  # n -> at most n of the images
    both: bool = False  # whether z and h of both views will be used
    predictions: bool = False  # whether p of both will be, too
    small: Tensor | None = None  # extra views [n N, C, h, w], one of each image after the other


class Sample(NamedTuple):
    """One view each of some of a client's images."""

    rows: Tensor  # int64 [n]: which images
    views: Tensor  # [n, C, H, W]


Draw = Callable[[int], Sample]  # n -> at most n of the client's images


class Objective(nn.Module):
    """The network of an objective (encoder, heads, momentum copies) together with its loss.

    What a step of training does is, in this order: ``forward``, backward, ``before_step``, the
    optimizer's step, ``after_step``. What must not be trained has ``requires_grad`` off.
    """

    shared: tuple[str, ...] = ()  # the parts that travel: encoder and online heads
    kept: tuple[str, ...] = ()  # the parts that stay with the client from one round to its next
    encoder: nn.Module

    def begin_round(self, draw: Draw) -> None:
        """After the round's tensors were received: set up momentum copies, queues, groups."""

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        raise NotImplementedError

    def project_small(self, step: Step) -> Tensor | None:
        """The projections of the small views, if there are any."""
        if step.small is None:
            return None
        projector = self.get_submodule("projector")
        return pass_small(projector, pass_small(self.encoder, step.small))

    def before_step(self, step: Step) -> None:
        """Between backward and the optimizer's step: may change gradients."""

    def after_step(self, step: Step) -> None:
        """After the optimizer's step: momentum copies, queues, groups."""


class Vectors(nn.Module):
    """Not trained by gradients: a buffer, but a part of its own, so that it can travel."""

    vectors: Tensor  # [K, D]

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)


class Wrapped(Objective):
    """An objective around another. It has the tensors of the inner one, under the same names.

    So what travels is called alike with and without what the outer one adds.
    """

    def __init__(self, inner: Objective) -> None:
        super().__init__()
        self._inner = (inner,)  # in a tuple: its parts are this module's own, not parts of a part
        # the tables themselves: whatever moves or replaces a tensor does so for both
        self._modules, self._parameters = inner._modules, inner._parameters
        self._buffers = inner._buffers
        self._non_persistent_buffers_set = inner._non_persistent_buffers_set
        self.shared, self.kept = inner.shared, inner.kept

    @property
    def inner(self) -> Objective:
        return self._inner[0]

    def train(self, mode: bool = True) -> Self:
        self.inner.train(mode)
        return super().train(mode)

    def begin_round(self, draw: Draw) -> None:
        self.inner.begin_round(draw)

    def before_step(self, step: Step) -> None:
        self.inner.before_step(step)

    def after_step(self, step: Step) -> None:
        self.inner.after_step(step)


class ObjectiveSettings(Settings):
    """The hyper-parameters of an objective, and how to build its network around an encoder."""

    title: ClassVar[str]
    paper: ClassVar[str]
    multi_crop: ClassVar[bool] = False  # whether it has a use for small views (Step.small)
    predicts: ClassVar[bool] = False  # whether it has a predictor (Pair.p_a)

    name: str = ""  # how experiments call it; a class of your own goes by its module and name

    def build(self, encoder: nn.Module, features: int) -> Objective:
        raise NotImplementedError


AnyObjective = Annotated[
    SerializeAsAny[ObjectiveSettings],
    BeforeValidator(named("method.objective", ObjectiveSettings, OBJECTIVES, "simclr")),
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
