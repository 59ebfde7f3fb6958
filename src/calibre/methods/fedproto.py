"""FedProto: Federated Prototype Learning across Heterogeneous Clients.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang, AAAI 2022, arXiv:2105.00243,
Algorithm 1. No model travels. Client i keeps its own, f_i with a head, and sends for every class j
its prototype C_i^j, the mean of f_i over its images D_ij of that class:

    client: minimises cross entropy + lambda mean (f_i(x) - C^y)^2, then sends C_i^j and |D_ij|
    server: C^j <- sum_i |D_ij| C_i^j / sum_i |D_ij|

The mean square over images and features is that of the authors' code; a class without a global
prototype adds nothing. Deviations: the further factor 1/|N_j| of equation 6 is left out, as in
that code, for it would shrink every prototype; a class that nobody holds in a round keeps its last
one; clients predict with their own heads. One that never trained does so once, from the common
start, by the same loss.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from calibre.local.features import encode
from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import ServerState, Update, Way
from calibre.methods.supervised import Supervised
from calibre.models.network import Classifier
from calibre.tensors import Tensors, WeightedMean


class FedProto(Supervised):
    title: ClassVar[str] = "FedProto"
    paper: ClassVar[str] = "Tan et al., AAAI 2022, arXiv:2105.00243"
    shares: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ("encoder", "head")

    name: str = "fedproto"
    lam: Annotated[float, Field(ge=0)] = 1.0  # lambda: the pull of features to their prototype

    @property
    def one_mean(self) -> bool:
        return False

    @property
    def way(self) -> Way:
        return "own"

    def init(self, network: nn.Module) -> ServerState:
        weight = cast(Classifier, network).head.weight  # [classes, features], as the prototypes
        none = {
            "mean": torch.zeros(weight.shape),
            "count": torch.zeros(len(weight), dtype=torch.int64),
        }
        return ServerState(0, {"prototypes": none})

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        report = self._train(site, server, self.sgd, site.training.epochs)
        return replace(self.reply(site, report), shared={"prototypes": prototypes(site)})

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        old = server.groups["prototypes"]
        means = [WeightedMean() for _ in old["count"]]  # one per class
        for update in updates:
            sent = update.shared["prototypes"]
            counts = sent["count"].clamp(
                0, update.samples
            )  # no class has more images than a client
            for mean, prototype, count in zip(means, sent["mean"], counts, strict=True):
                mean.add({"mean": prototype}, count.item())
        new = {name: tensor.clone() for name, tensor in old.items()}
        for j, mean in enumerate(means):
            if mean.weight > 0:
                new["mean"][j] = mean.result()["mean"]
                new["count"][j] = int(mean.weight)
        return server.next(prototypes=new)

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        if personal is None:
            self._train(site, server, self.lasting, site.personal.epochs)
        return site.network

    def _train(self, site: Site, server: ServerState, sgd: SGD, epochs: int) -> dict[str, float]:
        network = cast(Classifier, site.network)
        network.train(site.labelled > 1)  # batch norm has no statistics of one image
        held = server.groups["prototypes"]
        prototype = held["mean"].to(site.device)
        known = (held["count"] > 0).to(site.device)

        def loss(batch: Batch) -> dict[str, Tensor]:
            labels = site.labels[batch.rows]
            z = network.encoder(site.weak_view(batch.rows, batch.generator))  # [N, d]
            l_s = F.cross_entropy(network.head(z).float(), labels)
            distance = (z.float() - prototype[labels]).square()
            l_r = (distance * known[labels, None]).mean()
            return {"loss": l_s + self.lam * l_r, "l_s": l_s, "l_r": l_r}

        return train(
            site,
            loss,
            examples=site.labelled,
            epochs=epochs,
            sgd=sgd,
            parameters=network.parameters(),
        )


def prototypes(site: Site) -> Tensors:
    """The mean feature of each class [K, d] and how many images it stands for [K]."""
    network = cast(Classifier, site.network)
    features = encode(network.encoder, site.images[: site.labelled], site.normalization)
    member = F.one_hot(site.labels[: site.labelled], network.head.out_features)  # [n, K]
    count = member.sum(dim=0)
    total = member.T.to(features.dtype) @ features
    mean = total / count.clamp(min=1)[:, None]
    return {"mean": mean.cpu(), "count": count.cpu()}
