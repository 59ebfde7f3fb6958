"""The method's own way: whatever its ``personalize`` makes of the network."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.personal.holdout import HeldOut, Refit, cross_validate
from calibre.personal.model import Personal, Prepared, as_classifier, count_right
from calibre.personal.pooling import HeadChoice
from calibre.personal.predictor import SideBySide
from calibre.tensors import Tensors, belongs, take

FOLDS = 3  # each means to train a whole network
HOW = "each answered by a network that was personalised, as a newcomer's, without it"
ALONE = (
    "left at 1, for this client's network met all of its labels in many rounds of its own, and no "
    "image is left that it has not seen"
)


class Train(Protocol):
    """How a client's whole network is made its own, in place."""

    def __call__(
        self, method: Method, state: ServerState, kept: Tensors | None, site: Site
    ) -> nn.Module: ...


def _own_way(method: Method, state: ServerState, kept: Tensors | None, site: Site) -> nn.Module:
    return method.personalize(state, kept, site)


class Own:
    """Whole networks, one by one."""

    head_alone = False
    train: Train = staticmethod(_own_way)

    def group(self, clients: int) -> int:
        return 1

    def assess(self, method: Method, state: ServerState, clients: Iterable[Prepared]) -> None:
        return None

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        models = []
        for site, kept, test, _ in clients:
            with rng.isolated(site.seed, "personal", site.round, site.client):
                network = self.train(method, state, kept, site)
            right = count_right(network, site, test)
            models.append(Personal(site.client, right, len(test.labels), take(network)))
        return models

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        site = client.site
        labels = site.labels[: site.labelled]
        generator = rng.stream(site.seed, "folds", site.client)
        return cross_validate(labels, self._refit(method, state, site), generator, FOLDS)

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        return ALONE if _grew_alone(state, client.kept) else HOW

    def _refit(self, method: Method, state: ServerState, site: Site) -> Refit:
        """Whole personal models, made from the server's state and a part of the images alone."""

        def refit(trained: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
            images = site.images[: site.labelled]
            for rows in trained:
                part = replace(
                    site, images=images[rows], labels=site.labels[rows], labelled=len(rows)
                )
                kept = start_anew(method, state, part)
                with rng.isolated(site.seed, "personal", site.round, site.client):
                    own = take(self.train(method, state, kept, part))
                part.load(state.groups.get("model"), kept)
                encoders, head = as_classifier(method, part.network, own)
                z = encode(SideBySide(encoders), images, site.normalization)
                yield z, F.linear(z, *head)

        return refit


def start_anew(method: Method, state: ServerState, site: Site) -> Tensors | None:
    """Load what a client that never trained starts from; what it has in place of what it kept."""
    model = state.groups.get("model")
    site.load(model)
    with rng.isolated(site.seed, "newcomer", site.round, site.client):
        kept = method.newcomer(state, site)
    site.load(model, kept)
    return kept


def _grew_alone(state: ServerState, kept: Tensors | None) -> bool:
    """Whether the client's encoder is its own work of many rounds, which no refit repeats."""
    shared = state.groups.get("model", {})
    return kept is not None and not any(belongs(name, ("encoder",)) for name in shared)
