"""Local only: every client trains a network of its own on its own labels, from the common start.

The paper's Script-Fair baseline (10 epochs, as many as the other methods' personalisation): what
a client has without any federation.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors


class Local(Method):
    title: ClassVar[str] = "local only"
    paper: ClassVar[str] = "Script-Fair of the Calibre paper, section V"
    federated: ClassVar[bool] = False

    name: Literal["local"] = "local"
    epochs: Annotated[int, Field(ge=0)] = 10
    sgd: SGD = SUPERVISED_SGD

    def personalization(self) -> Personalization:
        return "native"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ()

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        train_classifier(site, self.sgd, self.epochs)
        return site.network
