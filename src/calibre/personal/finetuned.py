"""Encoder and head trained on together, from a solved head: small steps on weakly augmented images.

Batch norm keeps the statistics that all clients' images gave it: those of thirty would mislead.
What comes out is a client's model only where cross-validation says that it is better.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.features import encode
from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.fixed import Components
from calibre.models.network import Classifier, Head
from calibre.models.patches import Patches
from calibre.personal.cross_validation import strengths_for
from calibre.personal.frozen_head import CAUTION
from calibre.personal.holdout import HeldOut, cross_validate
from calibre.personal.model import (
    SECOND,
    Personal,
    Prepared,
    count_right,
    head_tensors,
    part_tensors,
)
from calibre.personal.pooling import Curves, HeadChoice
from calibre.personal.predictor import SideBySide
from calibre.personal.solved_head import SolvedHead, encoded, solved
from calibre.tensors import Tensors, put, take

FOLDS = 3  # each means to train a whole network
HOW = "each answered by a model that was fitted without it"
RATE = 0.2  # of personal.lr: these steps start from a head that fits already


class FineTuned:
    head_alone = False
    solver = SolvedHead()

    def group(self, clients: int) -> int:
        return 1

    def assess(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> dict[int, Curves]:
        return self.solver.assess(method, state, clients)

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        return [self._model(method, state, client, choice) for client in clients]

    def _model(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> Personal:
        site = client.site
        received = take(site.network)
        frozen = self.solver.held_out(method, state, client, choice)
        moved = self._cross_validated(client, choice)
        put(site.network, received)
        (model,) = self.solver.make(method, state, [client], choice)
        if moved is None or not _less_surprised(moved, frozen):
            return replace(model, held=frozen)
        try:
            network = finetune(site, choice, client.curves)
        except FloatingPointError:
            return replace(model, held=frozen)
        right = count_right(network, site, client.test)
        return Personal(site.client, right, model.images, _own_tensors(network), held=moved)

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        return self.solver.held_out(method, state, client, choice)

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        return HOW + (CAUTION if method.met_labels(client.site.trains) else "")

    def _cross_validated(self, client: Prepared, choice: HeadChoice | None) -> HeldOut | None:
        """None: training diverged, which is no better than not to train."""
        site = client.site
        received = take(site.network)
        images, labels = site.images[: site.labelled], site.labels[: site.labelled]

        def refit(trained: Iterable[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
            for rows in trained:
                others = [site.images[site.labelled :], site.labels[site.labelled :]]
                part = replace(
                    site,
                    images=torch.cat([images[rows], others[0]]),
                    labels=torch.cat([labels[rows], others[1]]),
                    labelled=len(rows),
                )
                put(site.network, received)
                network = finetune(part, choice)
                z = encode(network.encoder, images, site.normalization)
                if not z.isfinite().all():
                    raise FloatingPointError("a fine-tuned encoder gives no numbers")
                yield z, F.linear(z, network.head.weight, network.head.bias).detach()

        folds = rng.stream(site.seed, "folds", site.client)
        try:
            return cross_validate(labels, refit, folds, FOLDS)
        except FloatingPointError:
            return None


def finetune(site: Site, choice: HeadChoice | None, curves: Curves | None = None) -> Classifier:
    """The site's encoder, in place, and a head that starts as the solved one."""
    seen = encoded(site)
    (start,) = solved([seen], strengths_for([seen], choice, [curves]))
    head = nn.Linear(start.weight.shape[1], site.classes, device=site.device)
    put(head, {"weight": start.weight, "bias": start.bias})
    network = Classifier(SideBySide(seen.parts), head).eval()  # batch norm stays as it is
    settings = site.personal

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = network(site.weak_view(batch.rows, batch.generator))
        return {"loss": F.cross_entropy(logits.float(), site.labels[batch.rows])}

    with rng.isolated(site.seed, "personal", site.round, site.client):
        train(
            site,
            loss,
            examples=site.labelled,
            epochs=settings.epochs,
            sgd=SGD(
                lr=RATE * settings.lr,
                momentum=0.9,
                weight_decay=0,
                batch=max(2, settings.batch),
                schedule="constant",
            ),
            parameters=network.parameters(),
        )
    if not all(parameter.isfinite().all() for parameter in network.parameters()):
        raise FloatingPointError("the last step of fine-tuning diverged")
    return network


def _own_tensors(network: Classifier) -> Tensors:
    assert isinstance(network.encoder, SideBySide)
    parts = list(network.encoder.encoders)
    own = {**part_tensors(parts[1:]), **head_tensors(Head.of(network.head))}
    encoders = [part for part in parts if not isinstance(part, Components | Patches)]
    for part, name in zip(encoders, ("encoder", f"{SECOND}.encoder"), strict=False):
        own |= {f"{name}.{tensor}": value for tensor, value in take(part).items()}
    return own


def _less_surprised(one: HeldOut, other: HeldOut) -> bool:
    """Whether the mean log loss of held-out labels is lower."""
    if not (len(one.labels) and len(other.labels)):
        return False
    losses = [float(F.cross_entropy(held.logits, held.labels)) for held in (one, other)]
    return losses[0] < losses[1]
