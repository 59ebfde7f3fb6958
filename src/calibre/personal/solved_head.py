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
from calibre.personal.holdout import FOLDS, HeldOut, held_out_of
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
            site.client: {features: curve_of(encoded(site, features)) for features in options(site)}
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
        seen = encoded(site, features_of(site, choice))
        strength = strength_for(seen, choice)
        head = seen.raw(solved(seen, strength))
        tested = seen.more(test.images, test.labels, site.normalization)
        shown = standardise(tested.features, seen.scaling)
        x, labels = seen.labelled
        all_labels = Samples(torch.cat([x, shown]), torch.cat([labels, test.labels]))
        return Personal(
            site.client,
            count_right_by_head(head, tested),
            len(test.labels),
            {**own_encoder(kept), **part_tensors(seen.parts[1:]), **head_tensors(head)},
            final=seen.raw(solved(replace(seen, labelled=all_labels), strength)),
        )

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: Choice | None
    ) -> tuple[HeldOut, str]:
        site = client.site
        seen = encoded(site, features_of(site, choice))
        how = HOW + (CAUTION if method.met_labels(site.trains) else "")
        return held_out(seen, strength_for(seen, choice)), how


def options(site: Site) -> list[Features]:
    """What a head may see here."""
    if isinstance(site.network.get_submodule("encoder"), Pixels | Nothing):
        return ["encoder"]  # a floor that is what it is
    asked = site.personal.features
    return ["encoder", "pixels"] if asked == "auto" else [asked]


def features_of(site: Site, choice: Choice | None) -> Features:
    return choice.features if choice else options(site)[0]


def encoded(site: Site, features: Features) -> Encoded:
    """A client's images by its site's network."""
    encoder = site.network.get_submodule("encoder")
    parts = parts_for(features, encoder, site.images, site.normalization, site.personal.components)
    return encode_client(
        parts,
        site.images,
        site.labels[: site.labelled],
        site.normalization,
        site.classes,
        rng.stream(site.seed, "folds", site.client),
        prior_of(site),
    )


def prior_of(site: Site) -> Head | None:
    """The network's own head, which many clients or the client itself have trained; or None."""
    linear = getattr(site.network, "head", None)
    if not isinstance(linear, nn.Linear):
        return None
    head = Head.of(linear)
    untouched = torch.equal(head.weight.cpu(), site.initial["head.weight"])
    return None if untouched and site.round == 0 else head


def solved(seen: Encoded, strength: float) -> Head:
    """The head of standardised features."""
    (head,) = solve_heads([Problem(*seen.labelled, strength, seen.prior)], seen.classes)
    return head


def curve_of(seen: Encoded) -> Curve:
    """How well each strength would have done on the client's own labels, held out."""
    held = seen.fold >= 0
    images = int(held.sum())
    losses = [0.0] * len(STRENGTHS)
    if images:
        labels = seen.labelled.labels[held]
        for i, logits in enumerate(without(seen, STRENGTHS)):
            loss = float(F.cross_entropy(logits[held], labels, reduction="sum"))
            losses[i] = min(loss, WORST * images)
    return Curve(losses=tuple(losses), images=images)


def strength_for(seen: Encoded, choice: Choice | None) -> float:
    """The client's C: by its own labels, and by what all clients found."""
    own = curve_of(seen)
    common = choice or pooled([{"encoder": own}])
    return own.choose(common.common) if common else STRENGTHS[len(STRENGTHS) // 2]


def held_out(seen: Encoded, strength: float) -> HeldOut:
    """Every labelled image answered by a head of the other folds."""
    x, labels = seen.labelled
    (logits,) = without(seen, [strength])
    answers = iter([(x.float(), logits.float())] * FOLDS)
    return held_out_of(labels, seen.fold, lambda rows: next(answers))


def without(seen: Encoded, strengths: Sequence[float]) -> list[Tensor]:
    """For each strength, logits [n, K] of the labelled images by heads that did not see them."""
    x, labels = seen.labelled
    fold = seen.fold
    used = [f for f in range(FOLDS) if (fold == f).any()]
    tasks = [(f, s) for s in range(len(strengths)) for f in used]
    problems = [
        Problem(x[fold != f], labels[fold != f], strengths[s], seen.prior) for f, s in tasks
    ]
    answers = [x.new_zeros(len(x), seen.classes) for _ in strengths]
    for (f, s), head in zip(tasks, solve_heads(problems, seen.classes), strict=True):
        answers[s][fold == f] = F.linear(x[fold == f], *head)
    return answers
