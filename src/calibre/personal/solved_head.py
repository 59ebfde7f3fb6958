"""A linear head on the frozen encoder, solved: regularised logistic regression to convergence.

Where the server has a head, a client's is shrunk towards it instead of towards zero. How strongly
is chosen by cross-validation (:mod:`calibre.personal.pooling`). A second head on the pixels helps
the first (:mod:`calibre.personal.encoded`).
"""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.fixed import Nothing, Pixels
from calibre.models.network import Head
from calibre.personal.class_mix import class_mix, corrected, label_mix
from calibre.personal.encoded import Encoded, Expert, encode_client, parts_for
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
from calibre.personal.pooling import STRENGTHS, WORST, Curve, Features, HeadChoice, pooled
from calibre.personal.solve import HeadProblem, solve_heads
from calibre.personal.trust import fit_temperature


class SolvedHead:
    def group(self, clients: int) -> int:
        return max(4, min(LARGEST_GROUP, -(-clients // 8)))

    def assess(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> dict[int, dict[Features, Curve]]:
        return {site.client: curves_of(encoded(site)) for site, _, _ in clients}

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        return [self._model(client, choice) for client in clients]

    def _model(self, client: Prepared, choice: HeadChoice | None) -> Personal:
        site, kept, test = client
        seen = encoded(site)
        strengths = strengths_for(seen, choice)
        mix = mix_of(seen, site, strengths)
        head = mix(solved(seen, strengths))
        tested = Samples(seen.shown(test.images, site.normalization), test.labels)
        all_labels = seen.with_more(test.images, test.labels, site.normalization)
        return Personal(
            site.client,
            count_right_by_head(head, tested),
            len(test.labels),
            {**own_encoder(kept), **part_tensors(seen.parts[1:]), **head_tensors(head)},
            final=mix(solved(all_labels, strengths)),
        )

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> tuple[HeldOut, str]:
        site = client.site
        seen = encoded(site)
        how = HOW + (CAUTION if method.met_labels(site.trains) else "")
        return held_out(seen, strengths_for(seen, choice)), how


def encoded(site: Site) -> Encoded:
    """A client's images by its site's network."""
    encoder = site.network.get_submodule("encoder")
    floor = isinstance(encoder, Pixels | Nothing)  # which is what it is
    features = "encoder" if floor else site.personal.features
    norm, count = site.normalization, site.personal.components
    return encode_client(
        parts_for(features, encoder, site.images, norm, count),
        site.images,
        site.labels[: site.labelled],
        norm,
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


def solved(seen: Encoded, strengths: Sequence[float]) -> Head:
    """The experts' heads as one."""
    heads = [
        solve_heads([HeadProblem(*expert.samples, strength, expert.prior)], seen.classes)[0]
        for expert, strength in zip(seen.experts, strengths, strict=True)
    ]
    return seen.joined(heads)


def mix_of(seen: Encoded, site: Site, strengths: Sequence[float]) -> Callable[[Head], Head]:
    """How to correct a head where labels were drawn by class, and not as classes come.

    The client's unlabelled images tell how frequent its classes are. Where labels were drawn at
    random, or there are no other images, a head stays as it is.
    """
    unlabelled = site.images[site.labelled :]
    if not site.labels_by_class or not len(unlabelled):
        return lambda head: head
    held = held_out(seen, strengths)
    temperature = fit_temperature(held.logits, held.labels) if len(held.labels) else 1.0
    head = solved(seen, strengths)
    logits = F.linear(seen.shown(unlabelled, site.normalization), *head)
    taught = label_mix(seen.labels.cpu(), seen.classes)
    mix = class_mix((logits / temperature).softmax(1).cpu(), taught)
    return lambda head: corrected(head, mix, taught, temperature)


def curves_of(seen: Encoded) -> dict[Features, Curve]:
    """How well each strength would have done on the client's own labels, held out."""
    return {expert.name: _curve(seen, expert) for expert in seen.experts}


def _curve(seen: Encoded, expert: Expert) -> Curve:
    held = seen.fold >= 0
    images = int(held.sum())
    losses = [0.0] * len(STRENGTHS)
    if images:
        for i, logits in enumerate(without(seen, expert, STRENGTHS)):
            loss = float(F.cross_entropy(logits[held], seen.labels[held], reduction="sum"))
            losses[i] = min(loss, WORST * images)
    return Curve(losses=tuple(losses), images=images)


def strengths_for(seen: Encoded, choice: HeadChoice | None) -> list[float]:
    """Each expert's C: by the client's own labels, and by what all clients found."""
    own = curves_of(seen)
    common = (choice or pooled([own]) or HeadChoice(common={})).common
    middle = STRENGTHS[len(STRENGTHS) // 2]
    return [curve.choose(common[name]) if name in common else middle for name, curve in own.items()]


def held_out(seen: Encoded, strengths: Sequence[float]) -> HeldOut:
    """Every labelled image answered by heads of the other folds."""
    both = zip(seen.experts, strengths, strict=True)
    logits = sum(e.share * without(seen, e, [strength])[0] for e, strength in both)
    assert isinstance(logits, Tensor)
    x = torch.cat([expert.samples.features for expert in seen.experts], dim=1).float()
    return held_out_of(seen.labels, seen.fold, lambda rows: (x, logits.float()))


def without(seen: Encoded, expert: Expert, strengths: Sequence[float]) -> list[Tensor]:
    """For each strength, logits [n, K] of the labelled images by heads that did not see them."""
    x, labels = expert.samples
    fold = seen.fold
    used = [f for f in range(FOLDS) if (fold == f).any()]
    tasks = [(f, s) for s in range(len(strengths)) for f in used]
    problems = [
        HeadProblem(x[fold != f], labels[fold != f], strengths[s], expert.prior) for f, s in tasks
    ]
    answers = [x.new_zeros(len(x), seen.classes) for _ in strengths]
    for (f, s), head in zip(tasks, solve_heads(problems, seen.classes), strict=True):
        answers[s][fold == f] = F.linear(x[fold == f], *head)
    return answers
