"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, AISTATS 2017, arXiv:1602.05629,
Algorithm 1. Batch norm's buffers are part of the model and averaged like its parameters.

FedAvg is scored with the global model as it is; FedAvg-FT lets each client first fine-tune the
global head on its own labels, the encoder frozen (a baseline of the Calibre paper, section V).
"""

from typing import ClassVar, Literal

from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors, take


class FedAvg(Method):
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"

    name: Literal["fedavg", "fedavg-ft"] = "fedavg"
    sgd: SGD = SUPERVISED_SGD

    @property
    def label(self) -> str:
        return f"{self.title}-FT" if self.name == "fedavg-ft" else self.title

    def personalization(self) -> Personalization:
        return "head" if self.name == "fedavg-ft" else "none"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder", "head")

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model)
        report = train_classifier(site, self.sgd, site.training.epochs)
        shared = take(site.network, self.shared_parts(site.network))
        return Update(
            site.client,
            site.labelled,
            weight=site.labelled,
            shared={"model": shared},
            report=report,
        )
