"""Many multinomial logistic regressions at once, each brought to its own optimum.

Every task minimises the cross-entropies of its samples plus ``ridge / 2 |A|²`` over the
coefficients A of the samples' coordinates. The last coordinate is 1 and meets the bias, which is
not penalised. Tasks of one client (its folds) share its samples, so that an iteration of all tasks
of many clients is two batched matrix products.

An iteration is Newton's method in a plane, spanned by the preconditioned gradient and the step
before: the two directions of conjugate gradients, with the exact curvature, which takes no matrix
product because logits are linear in A. The preconditioner is the Hessian's diagonal, simplified to
a factor of the class times a factor of the coordinate. It works best where the coordinates are the
samples' principal axes, because there the Hessian is nearly diagonal.

Shapes: B clients, M tasks of each, T = B M, n samples, r coordinates, K classes.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 2000  # at most; a hundred are many
REACH = 30.0  # the most that a step may change a logit by: curvature says nothing farther away
CUTS = 40  # of a step that goes too far, before its task is left where it is
PATIENCE = 30  # iterations that bring a task no nearer: rounding is all that is left
FLAT = 1e-6  # the least curvature reckoned with


class Tasks(NamedTuple):
    """M regressions of each of B clients. Samples and classes that only pad weigh nothing."""

    design: Tensor  # [B, n, r]: coordinates of the samples, of which the last is 1
    offset: Tensor  # [B, K, n]: logits where all coefficients are zero
    labels: Tensor  # int64 [B, n]
    trained: Tensor  # [B, M, n]: 1 where the task learns from the sample, else 0
    known: Tensor  # [B, M, K]: 1 where the class takes part in the task's softmax, else 0
    ridge: Tensor  # [B, M]: 1 / C


def logits(tasks: Tasks, place: Tensor) -> Tensor:
    """Of all samples, learnt from or not, [B, M, K, n]; -inf for classes that take no part."""
    moved = _product(place, tasks.design.mT) + tasks.offset.unsqueeze(1)
    return moved.masked_fill_(tasks.known.unsqueeze(3) == 0, -math.inf)


def minimise(tasks: Tasks, start: Tensor, gap: float, distance: float = math.inf) -> Tensor:
    """The coefficients [B, M, K, r], from ``start`` to the optimum.

    The ridge makes the objective strongly convex, so the gradient bounds what is left. A task ends
    where its objective is within ``gap * max(1, objective)`` of the least, and its coefficients
    are within ``distance`` of the best. Tasks do not touch each other.
    """
    found = start.clone()
    rows = torch.arange(len(start), device=start.device)
    fixed = _Fixed.of(tasks)
    point = _Point.at(fixed, start, logits(tasks, start))
    steps, changes = (t.new_zeros(2, *t.shape) for t in (start, point.logits))
    moving = torch.ones_like(tasks.ridge, dtype=torch.bool)
    least, stale = torch.full_like(tasks.ridge, math.inf), torch.zeros_like(tasks.ridge)
    for _ in range(ITERATIONS):
        gradient = fixed.gradient(point)
        diagonal = fixed.diagonal(point)
        left = fixed.left(gradient, diagonal)
        nearer = left < 0.5 * least
        least, stale = torch.where(nearer, left, least), torch.where(nearer, 0, stale + 1)
        moving &= stale < PATIENCE
        moving &= (left > 2 * gap * point.objective.clamp(min=1)) | (
            left > distance**2 * fixed.ridge.clamp(max=1)
        )
        busy = moving.any(1)
        if not busy.any():
            break
        if busy.sum() <= 0.75 * len(rows):
            found[rows] = point.place
            fixed, point = _Fixed(*(t[busy] for t in fixed)), _Point(*(t[busy] for t in point))
            steps, changes = steps[:, busy], changes[:, busy]
            rows, moving, gradient, diagonal = (t[busy] for t in (rows, moving, gradient, diagonal))
            least, stale = least[busy], stale[busy]

        downhill = gradient / diagonal
        mean = downhill.sum(2, keepdim=True) / fixed.known.sum(2, keepdim=True)
        torch.addcmul(-downhill, fixed.known, mean, out=steps[0])
        changes[0] = _product(steps[0], fixed.design.mT)
        slopes = _gram(steps, gradient.unsqueeze(0))  # [T, 2, 1]
        share = _newton(fixed.curvature(point, steps, changes), slopes)  # [T, 1, 2]
        step = torch.bmm(share, _flat(steps)).view_as(point.place)
        change = torch.bmm(share, _flat(changes)).view_as(point.logits)
        slope = torch.bmm(share, slopes).view_as(moving)
        length, point = _walk(fixed, point, step, change, slope, moving)
        steps[1], changes[1] = step * length, change * length
        moving &= length.flatten(1) > 0
    found[rows] = point.place
    return found


class _Point(NamedTuple):
    """Where the tasks are."""

    place: Tensor  # [B, M, K, r]
    logits: Tensor  # [B, M, K, n]
    chances: Tensor  # [B, M, K, n]: softmax of the logits; 0 where not learnt from
    objective: Tensor  # [B, M]

    @staticmethod
    def at(fixed: "_Fixed", place: Tensor, logits: Tensor) -> "_Point":
        chances = logits.log_softmax(2)
        surprise = -chances.gather(2, fixed.labels)[:, :, 0].where(fixed.trained[:, :, 0] > 0, 0)
        chances = chances.exp_().mul_(fixed.trained)
        size = _dot(place, place) - place[..., -1].square().sum(2)
        return _Point(place, logits, chances, surprise.sum(2) + size * fixed.ridge / 2)


class _Fixed(NamedTuple):
    """What does not change on the way."""

    design: Tensor  # [B, n, r]
    squares: Tensor  # [B, n, r]: of the design
    labels: Tensor  # int64 [B, M, 1, n]
    trained: Tensor  # [B, M, 1, n]
    known: Tensor  # [B, M, K, 1]
    ridge: Tensor  # [B, M]
    penalty: Tensor  # [B, M, 1, r]: the ridge, and 0 for the bias
    push: Tensor  # [B, M, K, r]: the part of the labels in the gradient

    @staticmethod
    def of(tasks: Tasks) -> "_Fixed":
        design, offset, labels, trained, known, ridge = tasks
        penalty = ridge[..., None, None].repeat(1, 1, 1, design.shape[2])
        penalty[..., -1] = 0
        truth = torch.zeros_like(offset).scatter_(1, labels.unsqueeze(1), -1)  # [B, K, n]
        return _Fixed(
            design=design,
            squares=design.square(),
            labels=labels[:, None, None].expand(-1, trained.shape[1], -1, -1),
            trained=trained.unsqueeze(2),
            known=known.unsqueeze(3),
            ridge=ridge,
            penalty=penalty,
            push=_product(truth.unsqueeze(1) * trained.unsqueeze(2), design),
        )

    def gradient(self, point: _Point) -> Tensor:
        """[B, M, K, r]"""
        known = torch.addcmul(self.push, self.penalty, point.place)
        chances = point.chances.flatten(1, 2)
        return known.flatten(1, 2).baddbmm_(chances, self.design).view_as(known)

    def diagonal(self, point: _Point) -> Tensor:
        """Of the Hessian, about [B, M, K, r]: its class's and its coordinate's factor."""
        weight = torch.addcmul(point.chances, point.chances, point.chances, value=-1)
        of_class = weight.sum(3, keepdim=True)  # [B, M, K, 1]
        of_coordinate = torch.bmm(weight.sum(2), self.squares).unsqueeze(2)  # [B, M, 1, r]
        share = of_class / of_class.sum(2, keepdim=True).clamp(min=FLAT)
        return torch.addcmul(self.penalty, share, of_coordinate).clamp_(min=FLAT)

    def left(self, gradient: Tensor, diagonal: Tensor) -> Tensor:
        """Twice a bound of what the objective can still fall by, [B, M].

        The ridge alone bounds the Hessian of the weights from below. The bias has no ridge; its
        own curvature stands in.
        """
        bias = gradient[..., -1].square()
        weights = (_dot(gradient, gradient) - bias.sum(2)) / self.ridge
        return weights + (bias / diagonal[..., -1]).sum(2)

    def curvature(self, point: _Point, steps: Tensor, changes: Tensor) -> Tensor:
        """The Hessian in the plane of two steps, which change the logits by ``changes``."""
        weighted = point.chances * changes
        mean = weighted.sum(3)  # [2, B, M, n]
        return _gram(weighted, changes) - _gram(mean, mean) + _gram(steps * self.penalty, steps)


def _newton(curvature: Tensor, slopes: Tensor) -> Tensor:
    """How far to go along each of two directions, [T, 1, 2]; along the first where they agree."""
    (a, b), (_, c) = ((row.unbind(-1)) for row in curvature.unbind(-2))
    first, second = slopes[..., 0].unbind(-1)
    determinant = a * c - b * b
    plane = determinant > 1e-10 * a * c
    inverse = plane / determinant.where(plane, 1)
    alone = ~plane / a.clamp(min=FLAT**2)
    return -torch.stack(
        [(c * first - b * second) * inverse + first * alone, (a * second - b * first) * inverse],
        dim=-1,
    ).unsqueeze(1)


def _walk(
    fixed: _Fixed, point: _Point, step: Tensor, change: Tensor, slope: Tensor, moving: Tensor
) -> tuple[Tensor, _Point]:
    """The step, or as much of it [B, M, 1, 1] as goes downhill; 0 for tasks that rest.

    Too far is where the objective is higher, or rises at more than half the slope it fell by. Near
    the optimum the first says nothing but rounding, and the second decides.
    """
    allowed = point.objective + point.objective.abs() * (8 * torch.finfo(step.dtype).eps)
    constant = slope - _dot(point.chances, change)
    bend = (_dot(step, step) - step[..., -1].square().sum(2)) * fixed.ridge
    length = (REACH / change.abs().amax((2, 3)).clamp(min=REACH)) * moving
    for _ in range(CUTS):
        part = length[..., None, None]
        there = _Point.at(
            fixed,
            torch.addcmul(point.place, part, step),
            torch.addcmul(point.logits, part, change),
        )
        rise = constant + _dot(there.chances, change) + length * bend
        far = moving & ~((there.objective <= allowed) & (rise <= slope.abs() / 2))
        if not far.any():
            return part, there
        shorter = (slope / (slope - rise)).clamp(0.1, 0.5)
        length = torch.where(far, length * shorter, length)
    part = torch.where(far, 0, length)[..., None, None]
    return part, _Point.at(fixed, point.place + part * step, point.logits + part * change)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """[B, M, K, x] times [B, x, y]."""
    return torch.bmm(left.flatten(1, 2), right).view(*left.shape[:3], -1)


def _flat(vectors: Tensor) -> Tensor:
    """p vectors of each task, [p, B, M, ...], as rows [T, p, ...]; a view."""
    return vectors.flatten(3).flatten(1, 2).transpose(0, 1)


def _gram(left: Tensor, right: Tensor) -> Tensor:
    """All products of p and q vectors of each task, [T, p, q]."""
    return torch.bmm(_flat(left), _flat(right).mT)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """[B, M]"""
    return _gram(left.unsqueeze(0), right.unsqueeze(0)).view(left.shape[:2])
