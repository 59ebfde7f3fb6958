"""LG-FedAvg: Think Locally, Act Globally: Federated Learning with Local and Global Representations.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov,
L.-P. Morency, 2020, arXiv:2001.01523, Algorithm 1. The mirror of FedPer: every client keeps an
encoder of its own, batch norm included, and trains it jointly with the head; the server averages
the heads alone.

In the end each client tunes the global head on its own frozen encoder. A client that never trained
has no such encoder and trains the whole network by itself. The authors' code starts from a model
of FedAvg: ``warmup`` gives that many rounds to it, and from then on whoever has no encoder of its
own uses that of the warm-up.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, cast

from pydantic import Field
from torch import nn

from calibre.experiment import PersonalSettings
from calibre.local.features import encode
from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Classifier, Problem, build_classifier
from calibre.personal.heads import Head, Samples, train_heads
from calibre.tensors import Tensors, WeightedMean, belongs, put, take

Count = Annotated[int, Field(ge=0)]


class LGFedAvg(Method):
    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al., 2020, arXiv:2001.01523"

    name: str = "lg-fedavg"
    warmup: Count = 0  # W: rounds of FedAvg before encoders go their own ways
    sgd: SGD = SUPERVISED_SGD

    def personalization(self) -> Personalization:
        return "head" if self.warmup else "native"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder", "head") if self.warmup else ("head",)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model, personal)
        report = train_classifier(site, self.sgd, site.training.epochs)
        warming_up = server.round < self.warmup
        return Update(
            site.client,
            samples=site.labelled,
            weight=site.labelled,
            shared={"model": take(site.network, self._travelling(server))},
            personal=None if warming_up else take(site.network, ("encoder",)),
            report=report,
        )

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        parts = self._travelling(server)
        return {"model": {name: t for name, t in server.model.items() if belongs(name, parts)}}

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """FedAvg of what travels; an encoder from the warm-up stays as the warm-up left it."""
        mean = WeightedMean()
        for update in updates:
            mean.add(update.shared["model"], update.weight)
        return server.next(model={**server.model, **mean.result()})

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        if personal is None:
            lasting = self.sgd.model_copy(update={"schedule": "constant"})  # the rounds are over
            train_classifier(site, lasting, site.personal.epochs)
        else:
            tune_head(site, site.personal)
        return site.network

    def _travelling(self, server: ServerState) -> tuple[str, ...]:
        return ("encoder", "head") if server.round < self.warmup else ("head",)


def tune_head(site: Site, settings: PersonalSettings) -> None:
    """The network's own head trained on its frozen encoder, in place."""
    network = cast(Classifier, site.network)
    images, labels = site.images[: site.labelled], site.labels[: site.labelled]
    samples = Samples(encode(network.encoder, images, site.normalization), labels)
    start = Head(network.head.weight.detach(), network.head.bias.detach())
    tuned = train_heads([site.client], [samples], [start], settings, site.seed)
    put(network.head, {"weight": tuned.weight[0], "bias": tuned.bias[0]})
