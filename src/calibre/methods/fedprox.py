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

from calibre.local.site import Site
from calibre.methods.method import ServerState
from calibre.methods.supervised import OneModel, pull, train_classifier


class FedProx(OneModel):
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020, arXiv:1812.06127"

    name: str = "fedprox"
    mu: Annotated[float, Field(ge=0)] = 0.01  # how strongly w^t holds a client back

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        held_back = pull(site.network, server.model, self.mu)
        return train_classifier(site, self.sgd, site.training.epochs, before_step=held_back)
