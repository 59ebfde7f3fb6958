"""Encoder and head as named parts; what is shared, frozen or kept is said by these names."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibre import rng
from calibre.errors import UserError
from calibre.experiment import NetworkSettings
from calibre.registry import ENCODERS
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
    """The encoder at the common start: the same bits for every method of the same seed."""
    settings = problem.network
    stem = settings.stem
    if stem == "auto":
        stem = "imagenet" if problem.size >= IMAGENET_STEM_FROM else "cifar"
    factory = look_up("network.encoder", settings.encoder, ENCODERS)
    with rng.isolated(problem.seed, "init-encoder"):
        encoder = factory(channels=problem.channels, width=settings.width, stem=stem)
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "features", 0.0), int):
        raise UserError(
            f"network.encoder '{settings.encoder}' must return an nn.Module with an integer "
            "attribute 'features', the length of its output"
        )
    return encoder


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
