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
from torch.optim.swa_utils import update_bn

from calibre.local.batches import balanced_batches
from calibre.local.site import Site
from calibre.methods.method import ServerState
from calibre.methods.supervised import OneModel
from calibre.tensors import Tensors, belongs, take

BATCH = 256  # images whose statistics a newcomer averages
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FedBN(OneModel):
    title: ClassVar[str] = "FedBN"
    paper: ClassVar[str] = "Li et al., ICLR 2021, arXiv:2102.07623"

    name: str = "fedbn"

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        kept = self.kept_parts(network)
        return tuple(name for name in network.state_dict() if not belongs(name, kept))

    def kept_parts(self, network: nn.Module) -> tuple[str, ...]:
        return tuple(name for name, module in network.named_modules() if isinstance(module, NORMS))

    def newcomer(self, server: ServerState, site: Site) -> Tensors:
        """The batch norm of a client that never trained: statistics of its own images."""
        if len(site.images) > 1:  # a single image has no statistics
            chunks = site.images.split(balanced_batches(len(site.images), BATCH))
            update_bn((site.plain(chunk) for chunk in chunks), site.network)
        return take(site.network, self.kept_parts(site.network))
