"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, ICLR 2021, arXiv:2102.07623, Algorithm 1. FedAvg, but
batch norm's scales, shifts and running statistics never travel: every client keeps its own. The
server weighs clients by their samples, as FedAvg does here.

A client that took part uses its own batch norm for its personal model. One that never did has the
scales and shifts of the common start, and takes the statistics from one pass over its own training
images, labelled or not. FedBN trains nothing more; FedBN-FT tunes the global head on top.
"""

from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from calibre.local.batches import balanced_batches
from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors, belongs, take

BATCH = 256  # images whose statistics a newcomer averages


class FedBN(Method):
    title: ClassVar[str] = "FedBN"
    paper: ClassVar[str] = "Li et al., ICLR 2021, arXiv:2102.07623"

    name: str = "fedbn"
    sgd: SGD = SUPERVISED_SGD

    @property
    def label(self) -> str:
        return "FedBN-FT" if self.name.endswith("-ft") else "FedBN"

    def personalization(self) -> Personalization:
        return "head" if self.name.endswith("-ft") else "none"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        kept = norm_parts(network)
        return tuple(name for name in network.state_dict() if not belongs(name, kept))

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model, personal)
        report = train_classifier(site, self.sgd, site.training.epochs)
        return Update(
            site.client,
            site.labelled,
            weight=site.labelled,
            shared={"model": take(site.network, self.shared_parts(site.network))},
            personal=take(site.network, norm_parts(site.network)),
            report=report,
        )

    def newcomer(self, server: ServerState, site: Site) -> Tensors:
        """The batch norm of a client that never trained: statistics of its own images."""
        site.load(server.model)
        if len(site.images) > 1:  # a single image has no statistics
            chunks = site.images.split(balanced_batches(len(site.images), BATCH))
            update_bn((site.plain(chunk) for chunk in chunks), site.network)
        return take(site.network, norm_parts(site.network))


def norm_parts(network: nn.Module) -> tuple[str, ...]:
    """The names of the batch norm layers: what a client keeps to itself."""
    return tuple(name for name, module in network.named_modules() if isinstance(module, _BatchNorm))
