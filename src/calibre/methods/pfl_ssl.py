"""pFL-SSL: a global encoder trained by self-supervision, then a personal head for every client.

The plain design of the Calibre paper, section III-B; with SimCLR it is pFL-SimCLR. FedAvg over the
online networks of the objective; momentum copies and queues never travel.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods import self_supervised as ssl
from calibre.methods.method import Method, ServerState, Update
from calibre.models.network import Problem
from calibre.ssl.objective import AnyObjective
from calibre.tensors import Tensors, take


class PflSsl(Method):
    title: ClassVar[str] = "pFL-SSL"
    paper: ClassVar[str] = "Chen, Su and Li, Calibre, section III-B"

    name: Literal["pfl-ssl"] = "pfl-ssl"
    objective: AnyObjective = Field(default="simclr", validate_default=True)
    exchange: ssl.Exchange = "model"  # encoder: the heads stay with their client
    sgd: SGD = SGD()

    @property
    def label(self) -> str:
        return f"pFL-{ssl.objective_title(self.objective)}"

    def build(self, problem: Problem) -> nn.Module:
        return ssl.build_objective(self.objective, problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ssl.shared_parts(network, self.exchange)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model, personal)
        report = ssl.train_objective(site, self.sgd)
        return Update(
            site.client,
            samples=len(site.images),
            weight=len(site.images),
            shared={"model": take(site.network, self.shared_parts(site.network))},
            personal=ssl.kept_parts(site.network, self.exchange),
            report=report,
        )
