"""Majority: every image gets the client's most frequent class. The least that a model must beat."""

from typing import ClassVar

from torch import nn

from calibre.methods.method import Method
from calibre.models.fixed import Nothing
from calibre.models.network import Problem


class Majority(Method):
    title: ClassVar[str] = "majority class"
    paper: ClassVar[str] = "no learning at all"
    federated: ClassVar[bool] = False
    shares: ClassVar[tuple[str, ...]] = ()

    name: str = "majority"

    def build(self, problem: Problem) -> nn.Module:
        network = nn.Module()
        network.encoder = Nothing()
        return network
