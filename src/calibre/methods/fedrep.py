"""FedRep: Exploiting Shared Representations for Personalized Federated Learning.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, ICML 2021, arXiv:2102.07078, Algorithm 1.
A client receives the encoder and then, with the head that it kept,

- trains the head for E_h epochs, the encoder frozen, and
- trains the encoder for E_b epochs, the new head frozen.

The server averages the encoders; heads never leave. In the end each client tunes its own head on
the global encoder; one that never trained starts from the common first head.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from calibre.local.sgd import SGD, train
from calibre.local.site import Site
from calibre.methods.method import ServerState
from calibre.methods.supervised import Supervised, cross_entropy


class FedRep(Supervised):
    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = "Collins et al., ICML 2021, arXiv:2102.07078"
    shares: ClassVar[tuple[str, ...]] = ("encoder",)
    keeps: ClassVar[tuple[str, ...]] = ("head",)

    name: str = "fedrep"
    head_epochs: Annotated[int, Field(ge=0)] | None = None  # E_h; default: what E_b leaves of E
    encoder_epochs: Annotated[int, Field(ge=0)] = 1  # E_b

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        head_epochs = self.head_epochs
        if head_epochs is None:
            head_epochs = max(1, site.training.epochs - self.encoder_epochs)
        report = train_part("head", site, self.sgd, head_epochs)
        return report | train_part("encoder", site, self.sgd, self.encoder_epochs)


def train_part(part: str, site: Site, sgd: SGD, epochs: int) -> dict[str, float]:
    """SGD on one part of ``site.network``; not a bit of the rest changes, batch norm included."""
    network = site.network.eval().requires_grad_(False)
    trained = network.get_submodule(part).requires_grad_(True)
    trained.train(site.labelled > 1)  # batch norm has no statistics of one image
    try:
        return train(
            site,
            cross_entropy(site),
            examples=site.labelled,
            epochs=epochs,
            sgd=sgd,
            parameters=trained.parameters(),
        )
    finally:
        network.requires_grad_(True)  # the network outlives this client
