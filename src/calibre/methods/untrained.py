"""Untrained: personal heads on the encoder as it was initialised.

The probe that every trained encoder must beat: random convolutions already carry much of an
image, so an accuracy says nothing without this floor beside it.
"""

from typing import ClassVar

from torch import nn

from calibre.methods.method import Method
from calibre.models.network import Problem, build_encoder


class Untrained(Method):
    title: ClassVar[str] = "untrained encoder"
    paper: ClassVar[str] = "random-encoder probe"
    federated: ClassVar[bool] = False
    shares: ClassVar[tuple[str, ...]] = ()

    name: str = "untrained"

    def build(self, problem: Problem) -> nn.Module:
        network = nn.Module()
        network.encoder = build_encoder(problem)
        return network
