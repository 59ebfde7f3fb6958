"""q-FFL: Fair Resource Allocation in Federated Learning.

T. Li, M. Sanjabi, A. Beirami, V. Smith, ICLR 2020, arXiv:1905.10497, Algorithm 2 (q-FedAvg). The
objective sum_k F_k^(q+1) / (q+1) gives more weight to clients of a higher loss F_k:

    client:  F_k = F_k(w^t);  w_k = E epochs of SGD from w^t;  Delta w_k = L (w^t - w_k)
             Delta_k = F_k^q Delta w_k,   h_k = q F_k^(q-1) ||Delta w_k||^2 + L F_k^q
    server:  w^(t+1) = w^t - sum_k Delta_k / sum_k h_k

The server's step is L sum_k F_k^q / sum_k h_k of the way to the mean of the w_k weighted by F_k^q,
and it is computed as that: a client sends w_k and F_k, of which the server makes h_k. With q = 0 it
is FedAvg's plain mean. Clients are sampled uniformly, not by their size. L = 1/eta; momentum m
lengthens a step by 1/(1 - m), so eta = lr / (1 - m). F_k is measured on the client's labelled
images as they are, in evaluation mode. Batch norm's statistics are nobody's to descend on: they
count in no norm, and take the mean itself. With steps of a few percent they would stay near their
start for the whole run.

q-FFL is scored with the global model, q-FFL-FT with the global head tuned by each client.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field, field_validator

from calibre.local.features import encode
from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Number, ServerState, Update
from calibre.methods.supervised import OneModel, refuse_adamw
from calibre.tensors import BATCH_NORM, Tensors, WeightedMean, step_towards

SMALLEST_RISK = 1e-10  # of a client that is always right: F_k^(q-1) has no value at 0
LARGEST_RISK = 1e10  # of one that training has long lost; F_k^q stays a number


class QFFL(OneModel):
    title: ClassVar[str] = "q-FFL"
    paper: ClassVar[str] = "Li et al., ICLR 2020, arXiv:1905.10497"

    name: str = "qffl"
    q: Annotated[float, Field(ge=0, le=20)] = (
        1.0  # 0: the mean loss counts; large: the worst client's
    )

    @field_validator("sgd")
    @classmethod
    def _known_length(cls, sgd: SGD) -> SGD:
        refuse_adamw(sgd, "q-FFL reads the gradient's Lipschitz constant off the learning rate")
        return sgd

    @property
    def one_mean(self) -> bool:
        return False

    @property
    def L(self) -> float:
        """The Lipschitz constant of the gradient that the learning rate stands for, 1/eta."""
        return (1 - self.sgd.momentum) / self.sgd.lr

    @property
    def numbers(self) -> Mapping[str, Number]:
        return {"risk": Number(SMALLEST_RISK, LARGEST_RISK)}  # F_k

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        F_k = max(risk(site), SMALLEST_RISK)
        update = self.reply(site, self.train(server, site))
        return replace(update, numbers={"risk": F_k}, report={**update.report, "risk": F_k})

    def weight(self, update: Update) -> float:
        return float(update.numbers["risk"] ** self.q)

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        mean, h = WeightedMean(), 0.0
        for update in updates:
            mean.add(update.shared["model"], self.weight(update))
            h += self._h(server.model, update)
        goal = mean.result()
        model = step_towards(server.model, goal, self.L * mean.weight / h)
        return server.next(model={**model, **{n: goal[n] for n in goal if n.endswith(BATCH_NORM)}})

    def _h(self, w: Tensors, update: Update) -> float:
        """h_k; the distance is over parameters alone."""
        w_k, F_k = update.shared["model"], update.numbers["risk"]
        names = [name for name in w if not name.endswith(BATCH_NORM)]
        distance = sum((w[n].double() - w_k[n].double()).square().sum().item() for n in names)
        return float(self.q * F_k ** (self.q - 1) * self.L**2 * distance + self.L * F_k**self.q)


def risk(site: Site) -> float:
    """F_k: the mean cross entropy of the network as it is over the client's labelled images."""
    logits = encode(site.network, site.images[: site.labelled], site.normalization)
    return F.cross_entropy(logits, site.labels[: site.labelled]).item()
