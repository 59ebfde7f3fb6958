"""The network as the client received it: nothing is fitted to the client."""

from collections.abc import Iterable

import torch.nn.functional as F

from calibre import rng
from calibre.local.features import encode
from calibre.methods.method import Method, ServerState
from calibre.personal.holdout import HeldOut, as_it_is, cross_validate
from calibre.personal.model import Personal, Prepared, count_right
from calibre.personal.pooling import HeadChoice
from calibre.personal.predictor import SideBySide
from calibre.tensors import belongs

HOW = "the client's labelled images, which its model was not tuned to"
CAUTION = "; but the encoder met these labels in training, so that it may be too sure of them"


class AsReceived:
    head_alone = False

    def group(self, clients: int) -> int:
        return max(4, min(32, -(-clients // 8)))

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
            own = {n: t for n, t in (kept or {}).items() if belongs(n, ("encoder", "head"))}
            right = count_right(site.network, site, test)
            models.append(Personal(site.client, right, len(test.labels), own))
        return models

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        site = client.site
        encoders, head = method.classifier(site.network)
        images, labels = site.images[: site.labelled], site.labels[: site.labelled]
        features = encode(SideBySide(encoders), images, site.normalization)
        refit = as_it_is(features, F.linear(features, *head))
        generator = rng.stream(site.seed, "folds", site.client)
        return cross_validate(labels, refit, generator)

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        return HOW + (CAUTION if method.met_labels(client.site.trains) else "")
