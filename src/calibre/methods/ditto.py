"""Ditto: Fair and Robust Federated Learning Through Personalization.

T. Li, S. Hu, A. Beirami, V. Smith, ICML 2021, arXiv:2012.04221, Algorithm 1. Beside the global
model w of FedAvg every client keeps a personal model v and minimises f(v) + lambda/2 |v - w|^2:

    w: E epochs of SGD from the received w^t; sent to the server, as in FedAvg
    v: E epochs of v <- v - eta (grad f(v) + lambda (v - w^t)); never sent

The pull towards w^t acts on parameters; batch norm's buffers are those of the model that saw the
images. In the end v is trained on with the final w; a client that never trained starts it at w.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from torch import nn

from calibre.errors import UserError
from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import ServerState, Update, Way
from calibre.methods.supervised import Supervised, pull, train_classifier
from calibre.tensors import Tensors, take


class Ditto(Supervised):
    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021, arXiv:2012.04221"

    name: str = "ditto"
    lam: Annotated[float, Field(ge=0)] = 1.0  # lambda: the pull of v towards w

    @model_validator(mode="after")
    def _stable(self) -> "Ditto":
        if self.sgd.kind == "sgd" and self.sgd.lr * self.lam >= 1:
            raise UserError(
                f"method.lam = {self.lam:g} with method.sgd.lr = {self.sgd.lr:g}: a step would "
                "overshoot the global model; their product must stay below 1"
            )
        return self

    @property
    def way(self) -> Way:
        return "own"

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model)
        update = self.reply(site, self.train(server, site))  # w

        site.load(personal)  # v^0 is the common start
        report = self._train_personal(site, server.model, self.sgd, site.training.epochs)
        v = take(site.network, self.shares)
        told = {f"personal_{name}": value for name, value in report.items()}
        return replace(update, personal=v, report={**update.report, **told})

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        self._train_personal(site, server.model, self.lasting, site.personal.epochs)
        return site.network

    def _train_personal(self, site: Site, w: Tensors, sgd: SGD, epochs: int) -> dict[str, float]:
        """The solver of v, which ``site.network`` holds."""
        return train_classifier(site, sgd, epochs, before_step=pull(site.network, w, self.lam))
