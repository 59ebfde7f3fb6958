"""FedPer: Federated Learning with Personalization Layers.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, 2019, arXiv:1912.00818, Algorithms 1
and 2. Every client trains the base layers (here the encoder) together with personalisation layers
of its own (here the head); the server averages the base layers alone, and heads never leave.

In the end each client tunes its own head on the global encoder; one that never trained starts from
the common first head.
"""

from typing import ClassVar

from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors, take


class FedPer(Method):
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., 2019, arXiv:1912.00818"

    name: str = "fedper"
    sgd: SGD = SUPERVISED_SGD

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder",)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model, personal)
        report = train_classifier(site, self.sgd, site.training.epochs)
        return Update(
            site.client,
            samples=site.labelled,
            weight=site.labelled,
            shared={"model": take(site.network, ("encoder",))},
            personal=take(site.network, ("head",)),
            report=report,
        )
