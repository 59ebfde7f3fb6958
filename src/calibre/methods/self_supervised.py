"""What the self-supervised methods share: an objective on two views of every image, no labels."""

from collections.abc import Callable, Mapping
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.errors import UserError
from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.models.network import Problem, build_encoder, feature_count
from calibre.settings import Settings
from calibre.ssl.objective import Objective, ObjectiveSettings, Pair
from calibre.tensors import Tensors, take

Exchange = Literal["model", "encoder"]
Extra = Callable[[Batch, Pair], Mapping[str, Tensor]]  # terms to add, already weighted


def build_objective(objective: Settings, problem: Problem) -> Objective:
    settings = cast(ObjectiveSettings, objective)
    encoder = build_encoder(problem)
    with rng.isolated(problem.seed, "init-objective"):
        return settings.build(encoder, feature_count(encoder))


def shared_parts(network: nn.Module, exchange: Exchange) -> tuple[str, ...]:
    """Encoder and online heads, or the encoder alone."""
    shared = cast(Objective, network).shared
    if exchange == "encoder" and "target" in shared:
        raise UserError(
            'method.exchange = "encoder" sends the encoder alone, but target_init = "average" '
            'averages momentum copies: set target_init to "reset" or "local"'
        )
    return shared if exchange == "model" else ("encoder",)


def kept_parts(network: nn.Module, exchange: Exchange) -> Tensors | None:
    """What stays with the client: the objective's own memory, and heads that do not travel."""
    objective = cast(Objective, network)
    travelling = shared_parts(network, exchange)
    parts = [part for part in (*objective.shared, *objective.kept) if part not in travelling]
    return take(network, parts) if parts else None


def train_objective(site: Site, sgd: SGD, extra: Extra | None = None) -> dict[str, float]:
    """E epochs of the objective (plus ``extra`` terms) over all images, labelled or not."""
    network = cast(Objective, site.network.train())
    network.calibrated = extra is not None
    network.begin_round(lambda count: one_view(site, count))
    epochs = max(1, site.training.rounds * site.training.epochs)

    def loss(batch: Batch) -> dict[str, Tensor]:
        network.progress = (site.round * site.training.epochs + batch.epoch) / epochs
        pair: Pair = network(*site.two_views(batch.rows, batch.generator))
        terms = {"loss": pair.loss, "l_s": pair.loss, **collapse_monitors(pair)}
        if extra is not None:
            added = extra(batch, pair)
            terms["loss"] = pair.loss + added["weighted"]
            terms.update({name: term for name, term in added.items() if name != "weighted"})
        return terms

    return train(
        site,
        loss,
        examples=len(site.images),
        epochs=site.training.epochs,
        sgd=sgd,
        parameters=network.parameters(),
        before_step=network.before_step,
        after_step=network.after_step,
    )


def one_view(site: Site, count: int) -> Tensor:
    """One view each of at most ``count`` of the client's images, chosen at random."""
    generator = site.generator("first-views")
    order = torch.randperm(len(site.images), generator=generator, device=site.device)
    return site.two_views(order[:count], generator)[0]


@torch.no_grad()
def collapse_monitors(pair: Pair) -> dict[str, Tensor]:
    """Signs of collapse (ALGORITHMS B.4), from one view.

    ``spread`` is the standard deviation of unit projections per dimension times sqrt(d): 0 when all
    images project to one point, about 1 when healthy (less, a quarter or so, where the projector
    ends without batch norm). ``similarity`` is the mean cosine between encodings of unlike images:
    1 when they are all alike.
    """
    h = F.normalize(pair.h_a.float(), dim=1)
    z = F.normalize(pair.z_a.float(), dim=1)
    n = len(z)
    return {
        "spread": h.std(dim=0, correction=0).mean() * h.shape[1] ** 0.5,
        "similarity": (z.sum(dim=0).square().sum() - n) / (n * max(n - 1, 1)),
    }


def objective_title(objective: Settings) -> str:
    return cast(ObjectiveSettings, objective).title
