"""A linear head on the frozen encoder, trained as the paper says: all heads of a group at once."""

from collections.abc import Iterable

from torch import nn

from calibre import rng
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Head, feature_count
from calibre.personal.heads import Samples, fresh_head, train_heads
from calibre.personal.holdout import HeldOut, cross_validate, refit_heads
from calibre.personal.model import (
    Personal,
    Prepared,
    count_right_by_head,
    head_tensors,
    own_encoder,
)
from calibre.personal.pooling import HeadChoice
from calibre.tensors import Tensors

LARGEST_GROUP = 32
HOW = "each answered by a head that was trained without it"
CAUTION = "; but the encoder met these labels in training, so that it may be too sure of them"


class FrozenHead:
    head_alone = True

    def group(self, clients: int) -> int:
        return max(4, min(LARGEST_GROUP, -(-clients // 8)))

    def assess(self, method: Method, state: ServerState, clients: Iterable[Prepared]) -> None:
        return None

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        ids: list[int] = []
        starts: list[Head] = []
        train: list[Samples] = []
        tests: list[Samples] = []
        owned: list[Tensors] = []
        for site, kept, test, _ in clients:
            owned.append(own_encoder(kept))
            encoder = site.network.get_submodule("encoder")
            features = encode(encoder, site.images[: site.labelled], site.normalization)
            ids.append(site.client)
            starts.append(first_head(site))
            train.append(Samples(features, site.labels[: site.labelled]))
            tests.append(Samples(encode(encoder, test.images, site.normalization), test.labels))
        heads = train_heads(ids, train, starts, site.personal, site.seed)
        return [
            Personal(
                client,
                count_right_by_head(Head(weight, bias), test),
                len(test.labels),
                {**own, **head_tensors(Head(weight, bias))},
            )
            for client, own, test, weight, bias in zip(ids, owned, tests, *heads, strict=True)
        ]

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        site = client.site
        encoder = site.network.get_submodule("encoder")
        features = encode(encoder, site.images[: site.labelled], site.normalization)
        labelled = Samples(features, site.labels[: site.labelled])
        refit = refit_heads(labelled, first_head(site), site.personal, site.seed)
        generator = rng.stream(site.seed, "folds", site.client)
        return cross_validate(labelled.labels, refit, generator)

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        return HOW + (CAUTION if method.met_labels(client.site.trains) else "")


def first_head(site: Site) -> Head:
    """The network's own head where it has one (global or kept by the client), else a fresh one."""
    head = getattr(site.network, "head", None)
    if isinstance(head, nn.Linear):
        return Head.of(head)
    features = feature_count(site.network.get_submodule("encoder"))
    fresh = fresh_head(site.seed, site.client, site.classes, features)
    return Head(fresh.weight.to(site.device), fresh.bias.to(site.device))
