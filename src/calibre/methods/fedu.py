"""FedU: Collaborative Unsupervised Visual Representation Learning from Decentralized Data.

W. Zhuang, X. Gan, Y. Wen, S. Zhang, S. Yi, ICCV 2021, arXiv:2108.06492, Algorithm 1. Federated
BYOL with memory: a client goes on with its own momentum copy, and with its own predictor as well
where it has drifted far from the others.

    client:  encoder, projector <- global;  target <- own, the first time global
             predictor <- global if ||theta_g - theta_k|| < mu else own
             E epochs of BYOL;  sends encoder, projector, predictor
    server:  their mean, weighted by samples

theta_k is the encoder as client k last left it. The threshold has a meaning only in the metric of
the authors' code (EasyFL), which is used: the L2 distance of a layer's weights, on average over the
convolutions. That code measures how far the client went in its last round; here, as in the paper,
it is how far the client is from the global encoder. Heads stand on the global encoder.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch import nn

from calibre.errors import UserError
from calibre.local.site import Site
from calibre.methods.method import ServerState, Update
from calibre.methods.self_supervised import SelfSupervised, build_objective
from calibre.models.network import Problem
from calibre.registry import OBJECTIVES
from calibre.settings import look_up
from calibre.ssl.byol import BYOL
from calibre.tensors import Tensors, belongs, put, take

LOCAL_BYOL = BYOL(target_init="local")


def _by_name(value: Any) -> Any:
    return {**LOCAL_BYOL.model_dump(), "name": value} if isinstance(value, str) else value


def _keeps_its_target(objective: BYOL) -> BYOL:
    if look_up("method.objective", objective.name, OBJECTIVES) is not BYOL:
        raise UserError(f"method.objective = '{objective.name}': this method is made for 'byol'")
    if objective.target_init != "local":
        raise UserError(
            f"method.objective.target_init = '{objective.target_init}': in this method clients "
            "keep their momentum copies: leave it 'local'"
        )
    return objective


KeptBYOL = Annotated[BYOL, BeforeValidator(_by_name), AfterValidator(_keeps_its_target)]


class FedU(SelfSupervised):
    title: ClassVar[str] = "FedU"
    paper: ClassVar[str] = "Zhuang et al., ICCV 2021, arXiv:2108.06492"

    name: str = "fedu"
    objective: KeptBYOL = LOCAL_BYOL
    mu_th: Annotated[float, Field(ge=0)] = 0.4  # mu: a predictor this far from home stays local
    # SGD as pFL-BYOL has it; the authors: lr .032, batch 128

    def build(self, problem: Problem) -> nn.Module:
        network = build_objective(self.objective, problem)
        return with_memory(network, ("encoder", "predictor"))

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        moved = {}
        if personal is not None:
            own = recall(personal)
            moved["distance"] = layer_distance(server.model, own)
            if moved["distance"] >= self.mu_th:
                put(site.network, {n: t for n, t in own.items() if belongs(n, ("predictor",))})
        update = self.reply(site, self.train(server, site))
        kept = remember(site.network, ("encoder", "predictor"))
        return replace(update, personal=kept, report={**update.report, **moved})


def layer_distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Of two encoders: the L2 distance of each layer's weights, on average over the layers.

    Layers are told by the shape of their weights: batch norm has vectors only.
    """
    layers = [n for n, t in sorted(one.items()) if belongs(n, ("encoder",)) and t.dim() > 1]
    return sum(torch.dist(one[n].double(), other[n].double()).item() for n in layers) / len(layers)


def with_memory(network: nn.Module, parts: Iterable[str]) -> nn.Module:
    """The network with a place, its part ``own``, for the named parts as the client left them.

    Beside the parts themselves, so that personal heads stand on the global encoder.
    """
    own = nn.Module()
    for part in parts:
        own.add_module(part, copy.deepcopy(network.get_submodule(part)))
    network.add_module("own", own.requires_grad_(False))
    return network


def remember(network: nn.Module, parts: Iterable[str]) -> Tensors:
    """What a client keeps: its momentum copy, and the named parts under ``own``."""
    own = {f"own.{name}": tensor for name, tensor in take(network, parts).items()}
    return {**take(network, ("target",)), **own}


def recall(personal: Tensors) -> Tensors:
    """The parts that :func:`remember` kept, by their own names again."""
    kept = {name: tensor for name, tensor in personal.items() if belongs(name, ("own",))}
    return {name.removeprefix("own."): tensor for name, tensor in kept.items()}
