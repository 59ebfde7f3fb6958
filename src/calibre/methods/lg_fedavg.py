"""LG-FedAvg: Think Locally, Act Globally: Federated Learning with Local and Global Representations.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov,
L.-P. Morency, 2020, arXiv:2001.01523, Algorithm 1. The mirror of FedPer: every client keeps an
encoder of its own, batch norm included, and trains it jointly with the head; the server averages
the heads alone.

In the end each client gets a head on its own frozen encoder, from the global one. A client that
never trained has no such encoder, and first trains one by itself, jointly with the global head.
The authors' code starts from a model of FedAvg: ``warmup`` gives that many rounds to it, and from
then on whoever has no encoder of its own uses that of the warm-up.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from torch import nn

from calibre.local.site import Site
from calibre.methods.method import ServerState, Update
from calibre.methods.supervised import Supervised, train_classifier
from calibre.sections import Count
from calibre.tensors import Tensors, WeightedMean, belongs, take


class LGFedAvg(Supervised):
    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al., 2020, arXiv:2001.01523"
    keeps: ClassVar[tuple[str, ...]] = ("encoder",)

    name: str = "lg-fedavg"
    warmup: Count = 0  # W: rounds of FedAvg before encoders go their own ways

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ("encoder", "head") if self.warmup else ("head",)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        update = self.reply(site, self.train(server, site))
        return replace(
            update,
            shared={"model": _only(update.shared["model"], self._travelling(server))},
            personal=None if server.round < self.warmup else update.personal,
        )

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        return {"model": _only(server.model, self._travelling(server))}

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """FedAvg of what travels; an encoder from the warm-up stays as the warm-up left it."""
        mean = WeightedMean()
        for update in updates:
            mean.add(update.shared["model"], self.weight(update))
        return server.next(model={**server.model, **mean.result()})

    def newcomer(self, server: ServerState, site: Site) -> Tensors | None:
        if self.warmup:
            return None
        train_classifier(site, self.lasting, site.personal.epochs)
        return take(site.network, self.keeps)

    def _travelling(self, server: ServerState) -> tuple[str, ...]:
        return ("encoder", "head") if server.round < self.warmup else ("head",)


def _only(tensors: Tensors, parts: tuple[str, ...]) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if belongs(name, parts)}
