"""FedEMA: Divergence-aware Federated Self-Supervised Learning.

W. Zhuang, Y. Wen, S. Zhang, ICLR 2022, arXiv:2204.04385, Algorithm 1. Federated BYOL with memory:
a client goes on from a mixture of the global network and its own, with the more of its own the
further the two are apart.

    client:  the first time  online, target <- global;  else  target <- own,
             mu = min(lambda_k ||theta_g - theta_k||, 1),  online <- mu own + (1 - mu) global
             E epochs of BYOL;  sends its online network: encoder, projector, predictor
    server:  their mean, weighted by samples; for a client that has no lambda_k yet
             lambda_k = tau / ||theta_g - theta_k||,  theta_g the new mean, theta_k what k sent

theta is the encoder, its parameters as one vector. The same mu mixes all that travels: predictor
and batch norm's statistics too, while batch norm's counters take the larger value. tau = 0 is
federated BYOL. A client that alone made the mean (distance 0) gets its lambda in a later round;
until then it starts from the global network. Heads stand on the global encoder.

``selective`` is what the authors' code (EasyFL) does where clients are drawn at random: who did
not train in the round just before starts as if it were the first time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn

from calibre.local.site import Site
from calibre.methods.fedu import LOCAL_BYOL, KeptBYOL, recall, remember, with_memory
from calibre.methods.method import ServerState, Update
from calibre.methods.self_supervised import SelfSupervised, build_objective
from calibre.models.network import Problem
from calibre.tensors import BATCH_NORM, Tensors, WeightedMean, belongs, put


class FedEMA(SelfSupervised):
    title: ClassVar[str] = "FedEMA"
    paper: ClassVar[str] = "Zhuang, Wen and Zhang, ICLR 2022, arXiv:2204.04385"

    name: str = "fedema"
    objective: KeptBYOL = LOCAL_BYOL
    tau: Annotated[float, Field(ge=0, le=1)] = 0.7  # mu at the distance of a client's first round
    selective: bool = False  # mix only with what the client kept in the round just before
    # SGD as pFL-BYOL has it; the authors: lr .032, batch 128

    @property
    def one_mean(self) -> bool:
        return False

    def build(self, problem: Problem) -> nn.Module:
        objective = build_objective(self.objective, problem)
        network = with_memory(objective, self.shared_parts(objective))
        network.get_submodule("own").register_buffer("round", torch.tensor(0))
        return network

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        if self.selective and personal is not None and personal["own.round"] < server.round:
            personal = None
            site.load(server.model)
        mu = 0.0
        if personal is not None:
            own = recall(personal)
            mu = min(lambda_of(server, site.client) * divergence(server.model, own), 1.0)
            put(site.network, mixture(mu, own, server.model))
        update = self.reply(site, self.train(server, site))
        kept = remember(site.network, self.shared_parts(site.network))
        this_round = {"own.round": torch.tensor(server.round + 1)}
        return replace(update, personal={**kept, **this_round}, report={**update.report, "mu": mu})

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        return {"model": server.model}

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        lambdas = dict(server.groups.get("lambda", {}))
        mean, waiting = WeightedMean(), {}
        for update in updates:
            mean.add(update.shared["model"], self.weight(update))
            if str(update.client) not in lambdas:
                waiting[str(update.client)] = encoder_parameters(update.shared["model"])
        model = mean.result()
        for client, theta_k in waiting.items():
            distance = divergence(model, theta_k)
            if distance > 0:
                lambdas[client] = torch.tensor(self.tau / distance, dtype=torch.float64)
        return server.next(model=model, **{"lambda": lambdas})


def lambda_of(server: ServerState, client: int) -> float:
    """lambda_k; 0 for a client that has none yet."""
    known = server.groups.get("lambda", {}).get(str(client))
    return 0.0 if known is None else known.item()


def divergence(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The L2 distance of two encoders, all their parameters as one vector."""
    theta = encoder_parameters(one)
    squares = ((theta[n].double() - other[n].double()).square().sum().item() for n in sorted(theta))
    return math.sqrt(sum(squares))


def encoder_parameters(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Told by their names: the server knows tensors, not networks."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if belongs(name, ("encoder",)) and not name.endswith(BATCH_NORM)
    }


def mixture(
    mu: float, own: Mapping[str, torch.Tensor], received: Mapping[str, torch.Tensor]
) -> Tensors:
    """mu own + (1 - mu) received, of what was received; the ends are exact."""
    mean = WeightedMean()
    mean.add(received, 1 - mu)
    mean.add({name: own[name] for name in received}, mu)
    return mean.result()
