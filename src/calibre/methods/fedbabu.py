"""FedBABU: Towards Enhanced Representation for Federated Image Classification.

J. Oh, S. Kim, S.-Y. Yun, ICLR 2022, arXiv:2106.06042, Algorithm 1. Only the body (the encoder) is
trained and averaged: the head keeps its common random start, at the server and at every client,
until each client tunes it to itself in the end.

The head stays in the graph, so that the encoder learns to suit it. Being linear it has no mode:
taking it out of the optimizer freezes it whole.
"""

from typing import ClassVar

from torch import nn

from calibre.methods.supervised import Supervised
from calibre.models.network import Problem, build_classifier


class FedBABU(Supervised):
    title: ClassVar[str] = "FedBABU"
    paper: ClassVar[str] = "Oh et al., ICLR 2022, arXiv:2106.06042"
    shares: ClassVar[tuple[str, ...]] = ("encoder",)

    name: str = "fedbabu"

    def build(self, problem: Problem) -> nn.Module:
        network = build_classifier(problem)
        network.head.requires_grad_(False)
        return network
