"""What the self-supervised methods share: an objective on two views of every image, no labels."""

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Problem, build_encoder, feature_count
from calibre.ssl.objective import (
    LabelledBatch,
    Objective,
    ObjectiveSettings,
    Pair,
    Sample,
    Step,
)


class SelfSupervised(Method):
    """Clients train an objective's network on all their images; online networks travel."""

    supervised: ClassVar[bool] = False

    sgd: SGD = SGD()

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return cast(Objective, network).shared

    def kept_parts(self, network: nn.Module) -> tuple[str, ...]:
        return cast(Objective, network).kept

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        return train_objective(site, self.sgd)


def build_objective(objective: ObjectiveSettings, problem: Problem) -> Objective:
    encoder = build_encoder(problem)
    with rng.isolated(problem.seed, "init-objective"):
        return objective.build(encoder, feature_count(encoder))


def train_objective(site: Site, sgd: SGD) -> dict[str, float]:
    """E epochs of the objective over all images, labelled or not."""
    network = cast(Objective, site.network.train())
    network.begin_round(lambda count: first_views(site, count))
    epochs = max(1, site.training.rounds * site.training.epochs)

    def step_of(batch: Batch) -> Step:
        return Step(
            rows=batch.rows,
            labels=site.labels[batch.rows],
            progress=(site.round * site.training.epochs + batch.epoch) / epochs,
            random=lambda purpose: site.generator(purpose, batch.step),
            labelled=lambda count: labelled_batch(site, batch.step, count),
        )

    def loss(batch: Batch) -> dict[str, Tensor]:
        views = site.two_views(batch.rows, batch.generator)
        small = None
        if site.views.extra:
            small = site.small_views(batch.rows, site.generator("small-views", batch.step))
        pair: Pair = network(*views, step_of(batch)._replace(small=small))
        return {"loss": pair.loss, "l_s": pair.loss, **collapse_monitors(pair), **pair.terms}

    return train(
        site,
        loss,
        examples=len(site.images),
        epochs=site.training.epochs,
        sgd=sgd,
        parameters=network.parameters(),
        before_step=lambda batch: network.before_step(step_of(batch)),
        after_step=lambda batch: network.after_step(step_of(batch)),
    )


def first_views(site: Site, count: int) -> Sample:
    """One view each of at most ``count`` of the client's images, chosen at random."""
    generator = site.generator("first-views")
    order = torch.randperm(len(site.images), generator=generator, device=site.device)[:count]
    return Sample(order, site.two_views(order, generator)[0])


def labelled_batch(site: Site, step: int, count: int) -> LabelledBatch | None:
    """The labelled images of a step: dealt in random order, and anew when they are used up.

    So every label is seen equally often, however many unlabelled images there are.
    """
    n = site.labelled
    if n < 2:
        return None  # batch norm has no statistics of one image
    places = torch.arange(count).add(step * count) if count < n else torch.arange(n)
    passes = range(int(places[0]) // n, int(places[-1]) // n + 1)
    orders = [site.generator("labelled-order", number) for number in passes]
    dealt = torch.cat([torch.randperm(n, generator=g, device=site.device) for g in orders])
    rows = dealt[places - passes[0] * n]
    views = site.weak_view(rows, site.generator("labelled-views", step))
    return LabelledBatch(views, site.labels[rows], held_classes(site))


def held_classes(site: Site) -> Tensor:
    """Bool [K]: the classes of which the client has a label."""
    held = torch.zeros(site.classes, dtype=torch.bool, device=site.device)
    held[site.labels[: site.labelled]] = True
    return held


@torch.no_grad()
def collapse_monitors(pair: Pair) -> dict[str, Tensor]:
    """Signs of collapse, from one view.

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
