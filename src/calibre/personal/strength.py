"""How strongly to regularise each client's head: cross-validation for all clients at once.

Shapes: B clients of a block, M folds, S strengths, n labelled images, r axes, K classes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibre.personal.blocks import ABSENT, Block, blocks
from calibre.personal.heads import Head, Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.regression import Tasks, minimise
from calibre.personal.solve import GAP, check, solve_block
from calibre.rng import stream

STRENGTHS = tuple(10 ** (half / 2) for half in range(-8, 3))  # C from 0.0001 to 10
GROUP = 100  # images of a client's own that weigh as much as what is best for all


class Chosen(NamedTuple):
    """One client's head, and what is known of it."""

    head: Head  # [K, d] and [K], float64: fitted to all labels, in the coordinates of the features
    strength: float  # C
    held_out: Tensor  # float32 [n, K]: logits of every image by a head that did not see it
    fold: Tensor  # int64 [n]: which of the heads that was
    known: Tensor  # bool [n]: whether that head had seen the class; False for a class's only image


class Choice(NamedTuple):
    clients: list[Chosen]
    losses: Tensor  # float64 [S]: mean held-out loss of the group's images, by strength


def choose_and_solve(
    clients: Sequence[int],
    samples: Sequence[Samples],
    classes: int,
    seed: int,
    priors: Sequence[Head] | None = None,
    strengths: Sequence[float] = STRENGTHS,
    group: Tensor | None = None,
) -> Choice:
    """Every client's C by stratified cross-validation on log loss, and its head with all labels.

    Features are standardised, priors in the same coordinates (see ``solve.Problem``). Images are
    dealt into folds by ``stream(seed, "folds", client)``.

    Thirty labels cannot tell one of eleven strengths from the next: the differences of a client's
    held-out losses are mostly luck, and the least of many is luckier still. But clients of one
    encoder want much the same. So what counts for a client is the loss summed over its own images,
    plus ``GROUP`` times the mean over all images of the group: as if the group had lent it that
    many typical ones. With few labels the pooled choice decides; with a thousand, its own. Ties go
    to the stronger penalty. The only image of a class says nothing of strength, because a head that
    has not seen it cannot know its class; a client of such images takes the pooled choice.

    A client that comes later is given the ``losses`` of its group as ``group``, with the same
    strengths. The other results depend on the group through the pooled choice alone; the same
    clients in the same order give the same bits.

    Where ``known`` is False the true class has the logit ``blocks.ABSENT``: count the image as
    wrong, and leave it out when fitting a temperature.
    """
    priors = priors or [None] * len(samples)
    check([f"client {client}" for client in clients], samples, priors, classes)
    grid = sorted(strengths)
    folds = [
        _deal(client.labels, stream(seed, "folds", name))
        for name, client in zip(clients, samples, strict=True)
    ]
    measured = [
        _cross_validated(block, [folds[i] for i in block.members], grid)
        for block in blocks(samples, priors, tasks=FOLDS)
    ]
    if group is None:
        images = sum(int(part.known.sum()) for part in measured)
        group = sum(part.losses.sum(1) for part in measured) / max(1, images)
    chosen: dict[int, Chosen] = {}
    for part in measured:
        chosen |= zip(part.block.members, _solved(part, grid, group, classes), strict=True)
    return Choice([chosen[i] for i in range(len(samples))], group)


def _deal(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A fold for every image, also for the only ones of their classes."""
    fold = stratified(labels, FOLDS, generator)
    single = fold < 0
    fold[single] = torch.arange(int(single.sum())) % FOLDS
    return fold


class _Measured(NamedTuple):
    """What the heads of all folds say of a block's images, by strength."""

    block: Block
    fold: Tensor  # int64 [B, n]
    known: Tensor  # bool [B, n]
    logits: Tensor  # float32 [S, B, K, n]: by the head that did not see the image
    losses: Tensor  # float64 [S, B]: summed over the images that are known
    found: Tensor  # float32 [S, B, K, r + 1]: coefficients, the mean over folds


def _cross_validated(block: Block, folds: list[Tensor], grid: Sequence[float]) -> _Measured:
    """All folds of all clients, for one strength after the other.

    In float32, which is twice as fast and exact enough for ``GAP``. Each strength starts where a
    straight line through the last two optima leads: over log C, the path of optima is nearly one.
    """
    fold = pad_sequence(folds, batch_first=True)  # [B, n]
    trained = (fold[:, None] != torch.arange(FOLDS)[:, None]) & block.real[:, None]  # [B, M, n]
    classes = F.one_hot(block.labels, block.present.shape[1]).float()  # [B, n, K]
    seen = trained.float() @ classes > 0  # [B, M, K]
    own = fold * seen.shape[2] + block.labels  # of the seen, those that an image asks about
    known = seen.flatten(1).gather(1, own) & block.real
    nothing = ~seen.any(2, keepdim=True)  # a client's only image is away: its prior answers
    answerable = seen | nothing & block.present[:, None]
    tasks = Tasks.of(
        block.design.float(), block.offset.float(), block.labels, trained, answerable
    )
    answering = fold[:, None, None].expand(-1, 1, seen.shape[2], -1)
    here = before = torch.zeros(*seen.shape, block.design.shape[2])
    places, answers, losses = [], [], []
    for j, strength in enumerate(grid):
        ahead = math.log(strength / grid[j - 1]) / math.log(grid[j - 1] / grid[j - 2]) if j > 1 else 0
        ridge = torch.full(here.shape[:2], 1 / strength)
        here, before = minimise(tasks, ridge, here + ahead * (here - before), GAP), here
        places.append(here.mean(1))
        answers.append(tasks.logits(here).gather(1, answering)[:, 0])
        loss = F.cross_entropy(answers[-1], block.labels, reduction="none")
        losses.append(loss.where(known, 0).double().sum(1))
    return _Measured(block, fold, known, *(torch.stack(x) for x in (answers, losses, places)))


def _solved(part: _Measured, grid: Sequence[float], group: Tensor, classes: int) -> list[Chosen]:
    """Each client's choice, and its head with that strength and all labels."""
    block = part.block
    picks = (part.losses + GROUP * group[:, None]).argmin(0).tolist()
    start = torch.stack([part.found[pick, b] for b, pick in enumerate(picks)])
    heads = solve_block(block, [grid[pick] for pick in picks], classes, start)
    chosen = []
    for b, (pick, head, held) in enumerate(zip(picks, heads, block.classes, strict=True)):
        n = int(block.real[b].sum())
        answers = part.logits[pick, b, : len(held), :n].T.clamp(min=ABSENT)  # [n, K of the client]
        held_out = torch.full((n, classes), ABSENT)
        held_out[:, held] = answers
        chosen.append(Chosen(head, grid[pick], held_out, part.fold[b, :n], part.known[b, :n]))
    return chosen
