"""Personal heads by regularised regression, solved instead of trained.

A client's features are standardised by all its images, labelled or not; its head is the
multinomial logistic regression with L2 of its labelled ones, to convergence. The scaling is then
folded into the head: a linear layer of raw features remains.

Shapes: m images of a client, n of them with a label, d features, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from calibre.errors import UserError
from calibre.models.network import Head
from calibre.personal.blocks import ABSENT, Block, blocks
from calibre.personal.heads import Samples
from calibre.personal.regression import Tasks, minimise

FLOOR = 0.01  # of the usual spread: a feature that hardly varies is not blown up beyond it
GAP = 1e-4  # of the objective from its least, in parts of it
DISTANCE = 5e-7  # of the coefficients from the best: two solutions are within twice as much
TO_COMPARE = 1e-7  # the gap of heads whose losses are compared: mean losses are right to 1e-3
STRONGEST, WEAKEST = 1e-9, 1e9  # the penalties that float64 can do justice to


class Scaling(NamedTuple):
    """Takes a client's features to mean 0 and standard deviation 1; float64."""

    centre: Tensor  # [d]
    spread: Tensor  # [d]


def scaling(features: Tensor) -> Scaling:
    """By all of a client's images [m, d], with a label or without.

    No spread is below a hundredth of the median of those that vary. A feature that is constant
    here may still differ on an image to come, and must not drown the others then.
    """
    x = features.double()
    spread = x.std(0, correction=0)
    varying = spread[spread > 0]
    floor = FLOOR * varying.median().item() if len(varying) else 1.0
    return Scaling(x.mean(0), spread.clamp(min=floor))


def standardise(features: Tensor, by: Scaling) -> Tensor:
    """Float64 [m, d]."""
    return (features.double() - by.centre) / by.spread


def fold(head: Head, by: Scaling) -> Head:
    """The head of raw features that answers as ``head`` does on standardised ones; float64.

    Round to float32 after it, not before: where a feature's mean is large against its spread, the
    bias is a small difference of large numbers.
    """
    weight = head.weight.double() / by.spread
    return Head(weight, head.bias.double() - weight @ by.centre)


def unfold(head: Head, by: Scaling) -> Head:
    """The inverse of :func:`fold`: how a head of raw features becomes a client's prior."""
    weight = head.weight.double()
    return Head(weight * by.spread, head.bias.double() + weight @ by.centre)


class HeadProblem(NamedTuple):
    """One client's regression: minimise Σ cross-entropy + 1/(2C) |W - W0|² over W and b."""

    features: Tensor  # [n, d], standardised
    labels: Tensor  # int64 [n], in 0..K-1
    strength: float  # C, as in scikit-learn: the larger, the weaker the penalty
    prior: Head | None = None  # W0 [K, d] and the bias to start from, in the same coordinates


def solve_heads(problems: Sequence[HeadProblem], classes: int) -> list[Head]:
    """The optimum of every problem, float64 [K, d] and [K], in the coordinates of its features.

    Only classes of which a client has a label take part in its softmax; the others get weights of
    zero and the bias ``blocks.ABSENT``, and are never answered. The weights and the biases of those
    that take part add up to zero, those of a prior too: that changes no answer. With one class
    there is nothing to learn, and it always wins.

    Two classes are the same multinomial form. Their rows are ±w/2, where w is the difference that
    decides, with a penalty of |w|²/(4C). scikit-learn solves the binomial form, which penalises w
    by |w|²/(2C): its C for the same head is twice ours.

    A client's head does not depend on the others of the call (see ``blocks``). The same problems,
    with the same number of threads, give the same bits.
    """
    samples = [Samples(problem.features, problem.labels) for problem in problems]
    priors = [problem.prior for problem in problems]
    strengths = [problem.strength for problem in problems]
    check([f"problem {i}" for i in range(len(problems))], samples, priors, strengths, classes)
    heads: dict[int, Head] = {}
    for block in blocks(samples, priors, tasks=1):
        solved = solve_block(block, [strengths[i] for i in block.members], classes)
        heads |= zip(block.members, solved, strict=True)
    return [heads[i] for i in range(len(problems))]


def solve_block(
    block: Block, strengths: Sequence[float], classes: int, start: Tensor | None = None
) -> list[Head]:
    """The heads of a block's clients, each with its own C, from coefficients [B, K, r + 1]."""
    if start is None:
        start = block.design.new_zeros(*block.present.shape, block.design.shape[2])
    tasks = Tasks.of(
        block.design, block.offset, block.labels, block.real[:, None], block.present[:, None]
    )
    ridge = 1 / torch.tensor(strengths, dtype=torch.float64).unsqueeze(1)
    found = minimise(tasks, ridge, start.double().unsqueeze(1), GAP, DISTANCE)
    return block.heads(found.squeeze(1), classes)


class FoldedProblem(NamedTuple):
    """One client's regressions, each of which leaves one fold of its samples out."""

    features: Tensor  # [n, d], standardised
    labels: Tensor  # int64 [n], in 0..K-1
    fold: Tensor  # int64 [n], in 0..F-1; -1: in no fold, and learnt from by all
    strengths: Sequence[float]  # C, rising by the same factor: each starts from those before
    prior: Head | None = None


def answer_folds(
    problems: Sequence[FoldedProblem],
    classes: int,
    folds: int,
    gap: float = GAP,
    distance: float = DISTANCE,
) -> list[Tensor]:
    """For every strength, logits of the samples by the head that did not see them, [S, n, K].

    They are those of :func:`solve_heads` on the other folds, and zero for samples in no fold. All
    problems have the same number of strengths. Every class must have a sample outside each fold.
    A client's folds share its samples and their axes: as tasks of one block they cost little more
    than their arithmetic.
    """
    samples = [Samples(problem.features, problem.labels) for problem in problems]
    priors = [problem.prior for problem in problems]
    strengths = [strength for problem in problems for strength in problem.strengths]
    check([f"problem {i}" for i in range(len(problems))], samples, priors, strengths, classes)
    answers: dict[int, Tensor] = {}
    for block in blocks(samples, priors, tasks=folds):
        group = [problems[i] for i in block.members]
        found = _answer_block(block, group, classes, folds, gap, distance)
        answers |= zip(block.members, found, strict=True)
    return [answers[i] for i in range(len(problems))]


def _answer_block(
    block: Block,
    problems: Sequence[FoldedProblem],
    classes: int,
    folds: int,
    gap: float,
    distance: float,
) -> list[Tensor]:
    device = block.design.device
    fold = torch.full_like(block.labels, -1)  # [B, n]
    for row, problem in zip(fold, problems, strict=True):
        row[: len(problem.fold)] = problem.fold
    number = torch.arange(folds, device=device)[:, None]  # [F, 1]
    outside = fold[:, None] != number  # [B, F, n]
    used = ~outside.all(2, keepdim=True)  # a fold without samples has nothing to answer
    tasks = Tasks.of(
        block.design,
        block.offset,
        block.labels,
        outside & used & block.real[:, None],
        block.present[:, None].expand(-1, folds, -1),
    )
    here = block.design.new_zeros(*tasks.known.shape[:3], block.design.shape[2])
    before = here
    own = fold.clamp(min=0)[:, None, None].expand(-1, -1, block.present.shape[1], -1)
    answers: list[Tensor] = []
    for strengths in zip(*(problem.strengths for problem in problems), strict=True):
        ridge = 1 / torch.tensor(strengths, dtype=torch.float64, device=device)
        start = 2 * here - before  # as far again as from the strength before the last
        found = minimise(tasks, ridge[:, None].repeat(1, folds), start, gap, distance)
        before, here = (here if answers else found), found
        answers.append(tasks.logits(found).gather(1, own).squeeze(1))  # [B, K, n]
    logits = torch.stack(answers, dim=1)  # [B, S, K, n]
    return [
        _over_all_classes(of_client[:, : len(held), : len(p.labels)].mT, held, p.fold, classes)
        for of_client, held, p in zip(logits, block.classes, problems, strict=True)
    ]


def _over_all_classes(logits: Tensor, held: Tensor, fold: Tensor, classes: int) -> Tensor:
    """Logits [S, n, K] as the heads of ``Block.heads`` would give them, of a client's classes."""
    answers = logits.new_full((*logits.shape[:2], classes), ABSENT)
    answers[..., held] = logits - logits.mean(2, keepdim=True)
    answers[:, fold < 0] = 0
    return answers


def check(
    names: Sequence[str],
    samples: Sequence[Samples],
    priors: Sequence[Head | None],
    strengths: Sequence[float],
    classes: int,
) -> None:
    """Raise UserError where a client's samples, its prior or a strength cannot be solved with."""
    for strength in strengths:
        if not STRONGEST <= strength <= WEAKEST:
            raise UserError(
                f"a strength C of {strength:g} cannot be solved with: give {STRONGEST:g} to "
                f"{WEAKEST:g}"
            )
    for name, (features, labels), prior in zip(names, samples, priors, strict=True):
        if not len(labels):
            raise UserError(f"{name} has no label: a head needs one at least")
        if features.shape != (len(labels), samples[0].features.shape[1]):
            raise UserError(
                f"{name} has {len(labels)} labels and features {list(features.shape)}: there must "
                f"be one row for each, of {samples[0].features.shape[1]} features"
            )
        if labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{name} has labels outside of 0..{classes - 1}")
        if not features.isfinite().all():
            raise UserError(f"{name} has features that are NaN or infinite: its encoder diverged")
        if prior and (
            prior.weight.shape != (classes, features.shape[1])
            or prior.bias.shape != (classes,)
            or not all(part.isfinite().all() for part in prior)
        ):
            raise UserError(
                f"the prior of {name} must be finite, with weights [{classes}, {features.shape[1]}]"
            )
