"""APFL: Adaptive Personalized Federated Learning.

Y. Deng, M. M. Kamani, M. Mahdavi, 2020, arXiv:2003.13461, Algorithm 1. Beside the global model w
of FedAvg every client keeps a model v and a share alpha, and predicts with the mixture of both:

    w <- w - eta grad f(w)                              sent to the server, as in FedAvg
    v <- v - eta grad_v f(alpha v + (1 - alpha) w)      never sent
    alpha <- clip(alpha - eta df/dalpha, 0, 1)          at the first batch of a round; never sent

All three step from the same point. Deviation: logits are mixed instead of parameters (for linear
models it is the same), since mixed parameters would leave batch norm without statistics of its own.

In the end v is trained on with w and alpha fixed; a client that never trained starts it at w.
"""

import copy
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from calibre.local.sgd import Batch, train
from calibre.local.site import Site
from calibre.methods.method import ServerState, Way
from calibre.methods.supervised import Supervised, cross_entropy
from calibre.models.network import Classifier, Head, Problem, build_classifier
from calibre.tensors import Tensors, put


class Mixture(nn.Module):
    """w (``encoder`` and ``head``), v (``own``) and alpha; images in, mixed logits out."""

    def __init__(self, w: Classifier, alpha: float) -> None:
        super().__init__()
        self.encoder = w.encoder
        self.head = w.head
        self.own = copy.deepcopy(w)
        self.alpha = nn.Parameter(torch.tensor(alpha), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x)[1]

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of w, and of the mixture; the mixture sends no gradient to w."""
        w: Tensor = self.head(self.encoder(x))
        return w, self.alpha * self.own(x) + (1 - self.alpha) * w.detach()


class APFL(Supervised):
    title: ClassVar[str] = "APFL"
    paper: ClassVar[str] = "Deng et al., 2020, arXiv:2003.13461"
    keeps: ClassVar[tuple[str, ...]] = ("own", "alpha")

    name: str = "apfl"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.75  # share of v in the mixture, at first
    adaptive: bool = True  # each client learns its alpha

    @property
    def way(self) -> Way:
        return "own"

    def build(self, problem: Problem) -> nn.Module:
        return Mixture(build_classifier(problem), self.alpha)

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        network = cast(Mixture, site.network)  # v^0 is the common start
        network.train(site.labelled > 1)  # batch norm has no statistics of one image
        alpha = network.alpha.requires_grad_(self.adaptive)
        eta = self.sgd.rate(site.round, site.training.rounds)

        def loss(batch: Batch) -> dict[str, Tensor]:
            labels = site.labels[batch.rows]
            w, mixed = network.both(site.weak_view(batch.rows, batch.generator))
            f_w = F.cross_entropy(w.float(), labels)
            f_mixed = F.cross_entropy(mixed.float(), labels)
            # each term reaches only its own model: one step on the sum is a step on each
            return {"loss": f_w + f_mixed, "global_loss": f_w, "personal_loss": f_mixed}

        @torch.no_grad()
        def adapt(batch: Batch) -> None:
            if alpha.grad is not None:
                alpha.sub_(eta * alpha.grad).clamp_(0, 1)
                alpha.grad = None
                alpha.requires_grad_(False)  # once a round

        report = train(
            site,
            loss,
            examples=site.labelled,
            epochs=site.training.epochs,
            sgd=self.sgd,
            parameters=(p for p in network.parameters() if p is not alpha),
            before_step=adapt,
        )
        return {**report, "alpha": alpha.item()}

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        network = cast(Mixture, site.network)
        if personal is None:
            put(network.own, server.model)
        network.eval()
        network.own.train(site.labelled > 1)
        train(
            site,
            cross_entropy(site),
            examples=site.labelled,
            epochs=site.personal.epochs,
            sgd=self.lasting,
            parameters=network.own.parameters(),
        )
        return network

    def classifier(self, network: nn.Module) -> tuple[list[nn.Module], Head]:
        """alpha v + (1 - alpha) w of logits is one linear head on the features of both."""
        both = cast(Mixture, network)
        alpha, w, v = both.alpha.detach(), Head.of(both.head), Head.of(both.own.head)
        weight = torch.cat([(1 - alpha) * w.weight, alpha * v.weight], dim=1)
        return [both.encoder, both.own.encoder], Head(weight, (1 - alpha) * w.bias + alpha * v.bias)
