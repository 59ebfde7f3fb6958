"""Per-FedAvg: Personalized Federated Learning with Theoretical Guarantees.

A. Fallah, A. Mokhtari, A. Ozdaglar, NeurIPS 2020, arXiv:2002.07948, Algorithm 1. The global model
is to be good after one step of each client's own: it minimises the mean of
f_i(w - alpha grad f_i(w)). Every local step takes independent batches B1, B2 and, for HF, B3:

    w~ = w - alpha grad f(w; B1)
    u  = grad f(w~; B2)
    FO:  w <- w - beta u
    HF:  w <- w - beta (u - alpha [grad f(w + delta u; B3) - grad f(w - delta u; B3)] / (2 delta))

and the server takes the plain mean of the clients. FO is the first-order variant, HF
the Hessian-free one. Both levels are plain SGD, without momentum. B2 runs
through the data in epochs; B1 and B3 are drawn at random. Batch norm's buffers are those of w:
what w~ and w +- delta u see leaves no trace in them.

A client's personal model is the global one after SGD with rate alpha on all of the network, for
some epochs rather than the single step of the paper, so that every method may train for as long.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState, Update, Way
from calibre.methods.supervised import train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.settings import Settings
from calibre.tensors import Tensors

Point = Mapping[str, Tensor]  # parameters by name
Risk = Callable[[Point], Tensor]  # f(.; B) of one batch


class PlainSGD(Settings):
    """The rates are alpha and beta, and there is no momentum: one choice is left."""

    batch: Annotated[int, Field(ge=2)] = 32

    def at(self, lr: float) -> SGD:
        return SGD(lr=lr, momentum=0, weight_decay=0, batch=self.batch, schedule="constant")


class PerFedAvg(Method):
    title: ClassVar[str] = "Per-FedAvg"
    paper: ClassVar[str] = "Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, arXiv:2002.07948"

    name: str = "perfedavg"
    alpha: Annotated[float, Field(ge=0)] = 0.01  # rate of the inner step and of personalisation
    beta: Annotated[float, Field(gt=0)] = 0.001  # rate of the meta step; .01 trains faster
    delta: Annotated[float, Field(gt=0)] = 1e-3  # of the difference that stands for the Hessian
    hessian_free: bool = False  # HF; else FO
    sgd: PlainSGD = PlainSGD()

    @staticmethod
    def at_rate(lr: float) -> dict[str, Any]:
        return {"alpha": lr, "beta": lr}  # of the inner and the meta step

    @property
    def label(self) -> str:
        return f"Per-FedAvg ({'HF' if self.hessian_free else 'FO'})"

    @property
    def way(self) -> Way:
        return "own"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        network = site.network.train(site.labelled > 1)  # batch norm: no statistics of one image
        w = dict(network.named_parameters())
        third: Risk | None = None  # f(.; B3) of the step under way

        def risk(rows: Tensor, generator: torch.Generator, *, at_w: bool = False) -> Risk:
            images = site.weak_view(rows, generator)

            def f(point: Point) -> Tensor:
                buffers = {n: b if at_w else b.clone() for n, b in network.named_buffers()}
                logits = functional_call(network, {**buffers, **point}, (images,))
                return F.cross_entropy(logits.float(), site.labels[rows])

            return f

        def loss(batch: Batch) -> dict[str, Tensor]:
            nonlocal third
            generator = site.generator("meta-batches", batch.step)
            first = risk(_draw(site, batch, generator), generator, at_w=True)
            if self.hessian_free:
                third = risk(_draw(site, batch, generator), generator)
            adapted = moved(w, gradient(first, w), -self.alpha)  # w~
            # the inner gradient being a constant, d f(w~) / d w is grad f(w~; B2) = u
            return {"loss": risk(batch.rows, batch.generator)(adapted)}

        def complete(batch: Batch) -> None:
            if third is None:
                return
            u = {
                name: parameter.grad for name, parameter in w.items() if parameter.grad is not None
            }
            for name, product in hessian_times(u, third, w, self.delta).items():
                u[name].sub_(product, alpha=self.alpha)

        return train(
            site,
            loss,
            examples=site.labelled,
            epochs=site.training.epochs,
            sgd=self.sgd.at(self.beta),
            parameters=w.values(),
            before_step=complete,
        )

    def weight(self, update: Update) -> float:
        return 1

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        if self.alpha > 0:
            train_classifier(site, self.sgd.at(self.alpha), site.personal.epochs)
        return site.network


def _draw(site: Site, batch: Batch, generator: torch.Generator) -> Tensor:
    """As many labelled images as ``batch`` has, chosen independently of it."""
    order = torch.randperm(site.labelled, generator=generator, device=generator.device)
    return order[: len(batch.rows)]


def moved(w: Point, direction: Point, step: float) -> dict[str, Tensor]:
    """``w + step * direction``."""
    return {name: w[name] + step * direction[name] for name in w}


def gradient(f: Risk, at: Point) -> dict[str, Tensor]:
    point = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
    return dict(zip(point, torch.autograd.grad(f(point), tuple(point.values())), strict=True))


def hessian_times(u: Point, f: Risk, w: Point, delta: float) -> dict[str, Tensor]:
    """The Hessian of ``f`` at ``w`` times ``u``, by a central difference of gradients."""
    ahead, behind = gradient(f, moved(w, u, delta)), gradient(f, moved(w, u, -delta))
    return {name: (ahead[name] - behind[name]) / (2 * delta) for name in w}
