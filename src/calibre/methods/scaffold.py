"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, ICML 2020,
arXiv:1910.06378, Algorithm 1 with option II. Every client keeps a control variate c_i, its guess
of its own gradient, the server their mean c; what they differ by is the client's drift:

    client:  y <- x;  K times  y <- y - eta_l (g_i(y) - c_i + c)
             c_i+ = c_i - c + (x - y) / (K eta_l)
    server:  x <- x + eta_g mean(y - x),  c <- c + |S|/N mean(c_i+ - c_i)

Control variates are of parameters only; batch norm's buffers travel as values and are averaged.
A client sends y rather than y - x, of which the server makes the same step. Where the learning
rate follows a schedule, K eta_l is the sum of the rates of the K steps.

SCAFFOLD is scored with the global model, SCAFFOLD-FT with the global head tuned by each client.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field, field_validator
from torch import nn

from calibre.errors import UserError
from calibre.local.batches import balanced_batches
from calibre.local.sgd import SGD, Batch
from calibre.local.site import Site
from calibre.methods.method import ServerState, Update
from calibre.methods.supervised import OneModel, refuse_adamw, train_classifier
from calibre.models.network import Classifier, Problem, build_classifier
from calibre.tensors import Tensors, WeightedMean, step_towards, take


class Scaffold(OneModel):
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020, arXiv:1910.06378"

    name: str = "scaffold"
    # lr .1 moves about as far in a round as the other methods' lr .02 with momentum .9
    sgd: SGD = SGD(lr=0.1, momentum=0, weight_decay=0, batch=32, schedule="constant")  # eta_l
    eta_g: Annotated[float, Field(gt=0)] = 1.0  # the server's step

    @field_validator("sgd")
    @classmethod
    def _plain_steps(cls, sgd: SGD) -> SGD:
        refuse_adamw(sgd, "SCAFFOLD reads a client's mean gradient off the distance it went")
        if sgd.momentum > 0:
            raise UserError(
                f"method.sgd.momentum = {sgd.momentum}: SCAFFOLD reads a client's mean gradient "
                "off the distance it went, which momentum stretches up to "
                f"{1 / (1 - sgd.momentum):.0f} times, and training diverges; "
                "set it to 0 and raise method.sgd.lr instead"
            )
        return sgd

    @property
    def one_mean(self) -> bool:
        return False

    def build(self, problem: Problem) -> nn.Module:
        return with_control(build_classifier(problem))

    def init(self, network: nn.Module) -> ServerState:
        model = take(network, self.shares)
        return ServerState(0, {"model": model, "control": control_of(network)})  # c = 0

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        network = site.network
        c, c_i = server.groups["control"], control_of(network)
        drift = {name: (c[name] - c_i[name]).to(site.device) for name in c}
        parameters = {name: network.get_parameter(name) for name in c}

        def correct(batch: Batch) -> None:
            for name, parameter in parameters.items():
                assert parameter.grad is not None
                parameter.grad.add_(drift[name])  # g_i(y) - c_i + c

        report = train_classifier(site, self.sgd, site.training.epochs, before_step=correct)
        update = self.reply(site, report)
        x, y = server.model, update.shared["model"]
        length = self._length(site)
        c_new = {name: c_i[name] - c[name] + (x[name] - y[name]) / length for name in c}
        return replace(
            update,
            shared={"model": y, "control": {name: c_new[name] - c_i[name] for name in c}},
            personal={f"control.{name}": tensor for name, tensor in c_new.items()},
        )

    def _length(self, site: Site) -> float:
        """K eta_l: the learning rates of all steps of this round, added up."""
        steps = len(balanced_batches(site.labelled, self.sgd.batch))
        epochs, rounds = site.training.epochs, site.training.rounds
        first = site.round * epochs
        rates = [self.sgd.rate(first + epoch, rounds * epochs) for epoch in range(epochs)]
        return steps * sum(rates)

    def weight(self, update: Update) -> float:
        return 1

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        y, change = WeightedMean(), WeightedMean()
        for update in updates:
            y.add(update.shared["model"], self.weight(update))
            change.add(update.shared["control"], self.weight(update))
        mean_y, mean_change = y.result(), change.result()
        c = server.groups["control"]
        x = {name: server.model[name] for name in c}  # the parameters; buffers have no direction
        share = change.weight / server.clients  # |S| / N
        return server.next(
            model={**mean_y, **step_towards(x, mean_y, self.eta_g)},
            control={name: c[name] + share * mean_change[name] for name in c},
        )


def with_control(network: Classifier) -> nn.Module:
    """The network with a place for c_i, of the same names as its parameters; at first c_i = 0."""
    control = copy.deepcopy(network).requires_grad_(False)
    for parameter in control.parameters():
        nn.init.zeros_(parameter)
    network.add_module("control", control)
    return network


def control_of(network: nn.Module) -> Tensors:
    """c_i by the names of the parameters it is for."""
    control = network.get_submodule("control")
    tensors = take(control)
    return {name: tensors[name] for name, _ in control.named_parameters()}
