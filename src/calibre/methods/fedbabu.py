"""FedBABU: Towards Enhanced Representation for Federated Image Classification.

J. Oh, S. Kim, S.-Y. Yun, ICLR 2022, arXiv:2106.06042, Algorithm 1. Only the body (the encoder) is
trained and averaged: the head keeps its common random start, at the server and at every client,
until each client tunes it to itself in the end.

The head stays in the graph, so that the encoder learns to suit it. Being linear it has no mode:
taking it out of the optimizer freezes it whole.
"""

from typing import ClassVar

from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors, take


class FedBABU(Method):
    title: ClassVar[str] = "FedBABU"
    paper: ClassVar[str] = "Oh et al., ICLR 2022, arXiv:2106.06042"

    name: str = "fedbabu"
    sgd: SGD = SUPERVISED_SGD

    def build(self, problem: Problem) -> nn.Module:
        network = build_classifier(problem)
        network.head.requires_grad_(False)
        return network

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder",)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model)
        report = train_classifier(site, self.sgd, site.training.epochs)
        return Update(
            site.client,
            samples=site.labelled,
            weight=site.labelled,
            shared={"model": take(site.network, ("encoder",))},
            report=report,
        )
