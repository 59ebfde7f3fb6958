"""A linear head on the frozen encoder, solved: regularised logistic regression to convergence.

The features are standardised by all of a client's images, labelled or not. Where the server has a
head, a client's is shrunk towards it instead of towards zero. How strongly, and whether the pixels'
principal components stand beside the encoding, is chosen by cross-validation
(:mod:`calibre.personal.choosing`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Head
from calibre.models.pixels import Nothing, Pixels
from calibre.personal.choosing import STRENGTHS, WORST, Choice, Curve, Features, pooled
from calibre.personal.encoded import Encoded, encode_client, parts_for
from calibre.personal.frozen_head import CAUTION, HOW, LARGEST_GROUP
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, HeldOut, cross_validate, stratified
from calibre.personal.model import (
    Personal,
    Prepared,
    count_right_by_head,
    head_tensors,
    own_encoder,
    part_tensors,
)
from calibre.personal.solve import Problem, solve_heads, standardise


class SolvedHead:
    def group(self, clients: int) -> int:
        return max(4, min(LARGEST_GROUP, -(-clients // 8)))

    def assess(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> dict[int, dict[Features, Curve]]:
        return {
            site.client: {
                features: curve_of(encoded(site, features), site) for features in options(site)
            }
            for site, _, _ in clients
        }

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: Choice | None,
    ) -> list[Personal]:
        return [self._model(client, choice) for client in clients]

    def _model(self, client: Prepared, choice: Choice | None) -> Personal:
        site, kept, test = client
        seen = encoded(site, choice.features if choice else options(site)[0])
        strength = strength_for(seen, site, choice)
        head = seen.raw(solved(seen, site, strength))
        tested = seen.more(test.images, test.labels, site.normalization)
        standard = Samples(standardise(tested.features, seen.scaling), test.labels)
        both = replace(
            seen, labelled=Samples(*map(torch.cat, zip(seen.labelled, standard, strict=True)))
        )
        return Personal(
            site.client,
            count_right_by_head(head, tested),
            len(test.labels),
            {**own_encoder(kept), **part_tensors(seen.parts[1:]), **head_tensors(head)},
            final=seen.raw(solved(both, site, strength)),
        )

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: Choice | None
    ) -> tuple[HeldOut, str]:
        site = client.site
        seen = encoded(site, choice.features if choice else options(site)[0])
        how = HOW + (CAUTION if method.met_labels(site.trains) else "")
        return held_out(seen, site, strength_for(seen, site, choice)), how


def options(site: Site) -> list[Features]:
    """What a head may see here."""
    asked = site.personal.features
    plain_encoder = isinstance(site.network.get_submodule("encoder"), Pixels | Nothing)
    if plain_encoder:
        return ["encoder"]  # a floor that is what it is
    return ["encoder", "pixels"] if asked == "auto" else [asked]


def encoded(site: Site, features: Features) -> Encoded:
    """A client's images by its site's network."""
    encoder = site.network.get_submodule("encoder")
    parts = parts_for(features, encoder, site.images, site.normalization, site.personal.components)
    head = getattr(site.network, "head", None)
    prior = Head.of(head) if isinstance(head, nn.Linear) else None
    labels = site.labels[: site.labelled]
    return encode_client(parts, site.images, labels, site.normalization, prior)


def solved(seen: Encoded, site: Site, strength: float) -> Head:
    """The head of standardised features."""
    (head,) = solve_heads([Problem(*seen.labelled, strength, seen.prior)], site.classes)
    return head


def curve_of(seen: Encoded, site: Site) -> Curve:
    """How well each strength would have done on the client's own labels, held out."""
    fold = folds(site)
    held = fold >= 0
    losses = [
        float(F.cross_entropy(logits[held], seen.labelled.labels[held], reduction="sum"))
        if held.any()
        else 0.0
        for logits in without(seen, site, fold, STRENGTHS)
    ]
    images = int(held.sum())
    return Curve(losses=tuple(min(loss, WORST * images) for loss in losses), images=images)


def strength_for(seen: Encoded, site: Site, choice: Choice | None) -> float:
    """The client's C: by its own labels, and by what all clients found."""
    own = curve_of(seen, site)
    alone = pooled([{"encoder": own}]) if choice is None else choice
    return own.choose(alone.common) if alone else STRENGTHS[len(STRENGTHS) // 2]


def held_out(seen: Encoded, site: Site, strength: float) -> HeldOut:
    """Every labelled image answered by a head of the other folds."""

    def refit(trained: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
        x, labels = seen.labelled
        problems = [Problem(x[rows], labels[rows], strength, seen.prior) for rows in trained]
        for head in solve_heads(problems, site.classes):
            yield x.float(), F.linear(x, *head).float()

    return cross_validate(seen.labelled.labels, refit, fold_stream(site))


def without(seen: Encoded, site: Site, fold: Tensor, strengths: Sequence[float]) -> list[Tensor]:
    """For each strength, logits [n, K] of the labelled images by heads that did not see them."""
    x, labels = seen.labelled
    used = [f for f in range(FOLDS) if (fold == f).any()]
    tasks = [(f, s) for s in range(len(strengths)) for f in used]
    problems = [
        Problem(x[fold != f], labels[fold != f], strengths[s], seen.prior) for f, s in tasks
    ]
    answers = [x.new_zeros(len(x), site.classes) for _ in strengths]
    for (f, s), head in zip(tasks, solve_heads(problems, site.classes), strict=True):
        answers[s][fold == f] = F.linear(x[fold == f], *head)
    return answers


def folds(site: Site) -> Tensor:
    """Which fold a labelled image is held out in; -1 for the only one of its class."""
    return stratified(site.labels[: site.labelled].cpu(), FOLDS, fold_stream(site))


def fold_stream(site: Site) -> torch.Generator:
    return rng.stream(site.seed, "folds", site.client)
