"""Solved heads of a group of clients, cross-validated: which strength suits each, and how well.

All clients, folds and strengths are solved together (:func:`calibre.personal.solve.answer_folds`).

Shapes: n labelled images, K classes, S strengths.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from calibre.local.memory import FORGETFUL
from calibre.personal.encoded import Encoded, Expert
from calibre.personal.holdout import FOLDS, HeldOut, held_out_of
from calibre.personal.pooling import STRENGTHS, WORST, Curve, Curves, HeadChoice, pooled
from calibre.personal.solve import DISTANCE, GAP, TO_COMPARE, FoldedProblem, answer_folds

MIDDLE = STRENGTHS[len(STRENGTHS) // 2]  # where no image can be held out to choose by


def curves_of(group: Sequence[Encoded]) -> list[Curves]:
    """How well each strength would have done on a client's own labels, held out.

    Experts whose strength is given have no curve.
    """
    found: list[Curves] = [{} for _ in group]
    for e in _experts(group):
        open_ = [i for i, seen in enumerate(group) if seen.experts[e].strength is None]
        clients = [group[i] for i in open_]
        answers = _without(clients, e, [STRENGTHS] * len(clients), TO_COMPARE, math.inf)
        for i, seen, logits in zip(open_, clients, answers, strict=True):
            found[i][seen.experts[e].name] = _curve(seen, logits)
    return found


def _curve(seen: Encoded, logits: Tensor) -> Curve:
    """From logits [S, n, K]."""
    held = seen.fold >= 0
    images = int(held.sum())
    surprise = -logits[:, held].log_softmax(2)  # [S, m, K]
    truth = seen.labels[held].expand(len(logits), -1).unsqueeze(2)
    losses = surprise.gather(2, truth).sum((1, 2)).tolist()
    return Curve(losses=tuple(min(loss, WORST * images) for loss in losses), images=images)


def strengths_for(
    group: Sequence[Encoded], choice: HeadChoice | None, known: Sequence[Curves | None] = ()
) -> list[list[float]]:
    """Each expert's C for each client: by its own labels, and by what all clients found.

    Curves that are known are not computed again.
    """
    curves = list(known) or [None] * len(group)
    missing = [i for i, own in enumerate(curves) if own is None]
    for i, own in zip(missing, curves_of([group[i] for i in missing]), strict=True):
        curves[i] = own
    return [_strengths(seen, own or {}, choice) for seen, own in zip(group, curves, strict=True)]


def _strengths(seen: Encoded, own: Curves, choice: HeadChoice | None) -> list[float]:
    common = (choice or pooled([own]) or HeadChoice(common={})).common

    def strength(expert: Expert) -> float:
        if expert.strength is not None:
            return expert.strength
        known = expert.name in own and expert.name in common
        return own[expert.name].choose(common[expert.name]) if known else MIDDLE

    return [strength(expert) for expert in seen.experts]


def held_out(group: Sequence[Encoded], strengths: Sequence[Sequence[float]]) -> list[HeldOut]:
    """Every labelled image answered by heads of the other folds."""
    return [
        held_out_of(seen.labels, seen.fold, partial(_same_for_all_folds, seen, logits.float()))
        for seen, logits in zip(group, logits_without(group, strengths), strict=True)
    ]


def _same_for_all_folds(seen: Encoded, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    features = [expert.samples.features for expert in seen.experts]
    return torch.cat(features, dim=1).float(), logits


def logits_without(group: Sequence[Encoded], strengths: Sequence[Sequence[float]]) -> list[Tensor]:
    """Logits [n, K] of labelled images, by all experts' heads that did not see them; float64."""
    total = [torch.zeros(())] * len(group)
    for e in _experts(group):
        answers = _without(group, e, [[own[e]] for own in strengths], GAP, DISTANCE)
        shares = [seen.experts[e].share for seen in group]
        total = [t + s * a[0] for t, s, a in zip(total, shares, answers, strict=True)]
    return total


def _experts(group: Sequence[Encoded]) -> range:
    """Clients of one run have the same experts."""
    return range(len(group[0].experts) if group else 0)


def _without(
    group: Sequence[Encoded],
    e: int,
    strengths: Sequence[Sequence[float]],
    gap: float,
    distance: float,
) -> list[Tensor]:
    """For each client, logits [S, n, K] by one expert's heads that did not see the image."""
    answers = [
        seen.experts[e].samples.features.new_zeros(len(own), len(seen.labels), seen.classes)
        for seen, own in zip(group, strengths, strict=True)
    ]
    able = [i for i, seen in enumerate(group) if bool((seen.fold >= 0).any())]
    problems = [
        FoldedProblem(
            *group[i].experts[e].samples, group[i].fold, strengths[i], group[i].experts[e].prior
        )
        for i in able
    ]
    classes = max((seen.classes for seen in group), default=0)
    memory = group[0].experts[e].memory if group else FORGETFUL
    found = memory.recall(answer_folds, problems, classes, FOLDS, gap, distance)
    for i, logits in zip(able, found, strict=True):
        answers[i] = logits
    return answers
