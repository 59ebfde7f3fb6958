"""Encoder and head as named parts; what is shared, frozen or kept is said by these names."""

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calibre import rng
from calibre.errors import UserError
from calibre.models import libraries, weights
from calibre.registry import ENCODERS
from calibre.sections import NetworkSettings
from calibre.settings import look_up

IMAGENET_STEM_FROM = 64  # pixels


@dataclass(frozen=True)
class Problem:
    """What a network must fit, and the settings and seed to build it by."""

    size: int
    channels: int
    classes: int
    network: NetworkSettings
    seed: int

    def without_weights(self) -> "Problem":
        """The same network at a random start, whose file is not read: for tensors at hand."""
        return replace(self, network=self.network.model_copy(update={"weights": None}))


class Head(NamedTuple):
    """A linear classifier, or those of C clients stacked."""

    weight: Tensor  # [K, d] or [C, K, d]
    bias: Tensor  # [K] or [C, K]

    @staticmethod
    def of(linear: nn.Linear) -> "Head":
        """A copy that later training leaves alone."""
        return Head(linear.weight.detach().clone(), linear.bias.detach().clone())


class Classifier(nn.Module):
    """The supervised network: ``encoder`` and a linear ``head``."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


def build_encoder(problem: Problem) -> nn.Module:
    """The encoder at the common start: the same bits for every method of the same seed.

    Where ``network.weights`` names a file, that start is the file's.
    """
    start = problem.network.weights
    if start is None:
        return _built(problem)
    # on "meta" a network is its shapes alone: they are checked before memory is asked for
    with torch.device("meta") if problem.network.encoder in ENCODERS else nullcontext():
        encoder = _built(problem)
    weights.load(encoder, start, _built_by(problem))
    return encoder


def is_own_code(encoder: str) -> bool:
    """Whether it is somebody's own function, whose module must be trusted to be imported."""
    return encoder not in ENCODERS and not libraries.is_of_library(encoder)


def _built(problem: Problem) -> nn.Module:
    name = problem.network.encoder
    with rng.isolated(problem.seed, "init-encoder"):
        encoder = _made(problem)
    if not isinstance(encoder, nn.Module):
        raise UserError(f"network.encoder '{name}' returns no nn.Module: {encoder!r}")
    if isinstance(getattr(encoder, "features", None), int):
        return encoder
    return Measured(encoder, _output_length(encoder, problem))


def _made(problem: Problem) -> Any:
    name = problem.network.encoder
    if libraries.is_of_library(name):
        return libraries.build(name, problem.channels)
    factory = look_up("network.encoder", name, ENCODERS)
    settings = _built_by(problem)
    given = {"channels": problem.channels, "width": settings["width"], "stem": settings["stem"]}
    asked = inspect.signature(factory).parameters
    more = {"size": problem.size, "patch": settings["patch"], "pooling": problem.network.pooling}
    return factory(**given, **{key: value for key, value in more.items() if key in asked})


def _built_by(problem: Problem) -> dict[str, Any]:
    """The settings that decide an encoder's tensors, with nothing left open."""
    settings = problem.network
    stem = settings.stem
    if stem == "auto":
        stem = "imagenet" if problem.size >= IMAGENET_STEM_FROM else "cifar"
    return {
        "encoder": settings.encoder, "width": settings.width, "stem": stem, "patch": settings.patch,
    }  # fmt: skip


class Measured(nn.Module):
    """A network of somebody's own, with the length of its output found by trying."""

    def __init__(self, network: nn.Module, features: int) -> None:
        super().__init__()
        self.network = network
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.network(x)
        return z


def _output_length(encoder: nn.Module, problem: Problem) -> int:
    """Of one blank image's encoding."""
    what = f"network.encoder '{problem.network.encoder}'"
    blank = torch.zeros(1, problem.channels, problem.size, problem.size)
    was_training = encoder.training
    try:
        with torch.no_grad(), rng.isolated(problem.seed, "measure-encoder"):
            z = encoder.eval()(blank)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"{what} fails on images {list(blank.shape)}: {error}") from error
    encoder.train(was_training)
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != 1:
        given = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise UserError(
            f"{what} must turn images {list(blank.shape)} into vectors [1, features], not into "
            f"{given}: take its classifier off, end it with pooling and nn.Flatten()"
        )
    return z.shape[1]


def build_head(problem: Problem, features: int) -> nn.Linear:
    """The common first head."""
    with rng.isolated(problem.seed, "init-head"):
        return nn.Linear(features, problem.classes)


def build_classifier(problem: Problem) -> Classifier:
    encoder = build_encoder(problem)
    return Classifier(encoder, build_head(problem, feature_count(encoder)))


def feature_count(encoder: nn.Module) -> int:
    features = encoder.features
    assert isinstance(features, int)
    return features


def to_fast_layout(network: nn.Module, device: torch.device) -> nn.Module:
    """channels_last, the layout in which CPU and GPU convolutions run fastest."""
    return network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
