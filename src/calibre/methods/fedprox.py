"""FedProx: Federated Optimization in Heterogeneous Networks.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, MLSys 2020, arXiv:1812.06127,
Algorithm 2. A client minimises, from the received w^t on,

    h(w; w^t) = F(w) + mu/2 ||w - w^t||^2,

whose second term adds mu (w - w^t) to the gradient of every step. Its inexact solution here is
FedAvg's E epochs of SGD and the server weighs clients by their samples as FedAvg does; with mu = 0
it is FedAvg, bit for bit. The proximal term is of parameters only, not of batch norm's buffers.

FedProx is scored with the global model, FedProx-FT with the global head tuned by each client.
"""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, pull, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors, take


class FedProx(Method):
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020, arXiv:1812.06127"

    name: str = "fedprox"
    mu: Annotated[float, Field(ge=0)] = 0.01  # how strongly w^t holds a client back
    sgd: SGD = SUPERVISED_SGD

    @property
    def label(self) -> str:
        return "FedProx-FT" if self.name.endswith("-ft") else "FedProx"

    def personalization(self) -> Personalization:
        return "head" if self.name.endswith("-ft") else "none"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder", "head")

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model)
        held_back = pull(site.network, server.model, self.mu)
        report = train_classifier(site, self.sgd, site.training.epochs, before_step=held_back)
        return Update(
            site.client,
            site.labelled,
            weight=site.labelled,
            shared={"model": take(site.network, self.shared_parts(site.network))},
            report=report,
        )
