"""Pixels: a client's own linear classifier on its own pixels, what a person would try first."""

from typing import ClassVar

from torch import nn

from calibre.methods.method import Method
from calibre.models import fixed
from calibre.models.network import Problem


class OwnPixels(Method):
    title: ClassVar[str] = "own pixels"
    paper: ClassVar[str] = "logistic regression at each client"
    federated: ClassVar[bool] = False
    shares: ClassVar[tuple[str, ...]] = ()

    name: str = "pixels"

    def build(self, problem: Problem) -> nn.Module:
        network = nn.Module()
        side = min(problem.size, fixed.LARGEST_SIDE)
        network.encoder = fixed.Pixels(problem.channels, side)
        return network
