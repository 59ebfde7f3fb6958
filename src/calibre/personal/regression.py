"""Many multinomial logistic regressions at once, each brought to its own optimum.

Every task minimises the cross-entropies of its samples plus ``ridge / 2 |A|²`` over the
coefficients A of the samples' coordinates. The last coordinate is 1 and meets the bias, which is
not penalised. Tasks of one client (its folds) share its samples, so that an iteration of all tasks
of many clients is two batched matrix products.

An iteration is Newton's method in a plane, spanned by the preconditioned gradient and the step
before: the two directions of conjugate gradients, with the exact curvature, which takes no matrix
product because logits are linear in A. The preconditioner is the Hessian's diagonal, simplified to
a factor of the class times a factor of the coordinate. It works best where the coordinates are the
samples' principal axes, where the Hessian is nearly diagonal. Tasks that need more go on with the
Hessian's blocks.

Shapes: B clients, M tasks of each, T = B M, n samples, r coordinates, K classes.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 64  # before better preconditioners are made; after that twice as many each time
PHASES = 4  # 960 iterations at most
NUMBERS = 2**26  # in the better preconditioners of a block, at most
REACH = 30.0  # the most that a step may change a logit by: curvature says nothing farther away
CUTS = 40  # of a step that goes too far, before its task is left where it is
FLAT = 1e-6  # the least curvature reckoned with


class Tasks(NamedTuple):
    """M regressions of each of B clients. Samples and classes that only pad weigh nothing."""

    design: Tensor  # [B, n, r]: coordinates of the samples, of which the last is 1
    squares: Tensor  # [B, n, r]: of the design
    offset: Tensor  # [B, 1, K, n]: logits where all coefficients are zero
    labels: Tensor  # int64 [B, M, 1, n]
    trained: Tensor  # [B, M, 1, n]: 1 where the task learns from the sample, else 0
    passed: Tensor  # bool [B, M, 1, n]: where it does not
    known: Tensor  # [B, M, K, 1]: 1 where the class takes part in the task's softmax, else 0
    number: Tensor  # [B, M, 1, 1]: of those classes
    push: Tensor  # [B, M, K, r]: the part of the labels in the gradient

    @staticmethod
    def of(
        design: Tensor, offset: Tensor, labels: Tensor, trained: Tensor, known: Tensor
    ) -> "Tasks":
        """From [B, n, r], [B, K, n], [B, n], and [B, M, n] and [B, M, K] that are true or false."""
        learnt = trained.to(design).unsqueeze(2)
        taking_part = known.to(design).unsqueeze(3)
        truth = torch.zeros_like(offset).scatter_(1, labels.unsqueeze(1), -1)
        return Tasks(
            design=design,
            squares=design.square(),
            offset=offset.unsqueeze(1),
            labels=labels[:, None, None].expand(-1, trained.shape[1], -1, -1),
            trained=learnt,
            passed=learnt == 0,
            known=taking_part,
            number=taking_part.sum(2, keepdim=True),
            push=_product(truth.unsqueeze(1) * learnt, design),
        )

    def logits(self, place: Tensor) -> Tensor:
        """Of all samples, learnt from or not, [B, M, K, n]; -inf for classes that take no part."""
        moved = _product(place, self.design.mT) + self.offset
        return moved.masked_fill_(self.known == 0, -math.inf)

    def only(self, clients: Tensor) -> "Tasks":
        return Tasks(*(tensor[clients] for tensor in self))


def minimise(
    tasks: Tasks, ridge: Tensor, start: Tensor, gap: float, distance: float = math.inf
) -> Tensor:
    """The coefficients [B, M, K, r], from ``start`` to the optimum for ``ridge`` [B, M].

    The ridge makes the objective strongly convex, so the gradient bounds what is left. A task ends
    where its objective is within ``gap * max(1, objective)`` of the least, and its coefficients
    are within ``distance`` of the best. Tasks do not touch each other. The sum of the coefficients
    over classes changes no answer; it is zero at the optimum, and from the start.
    """
    found = _centred(start, tasks)
    rows = torch.arange(len(start), device=start.device)
    blocks = None
    for phase in range(PHASES):
        part, busy = _descend(tasks, ridge, found[rows], blocks, ITERATIONS << phase, gap, distance)
        found[rows] = part
        if not busy.any():
            break
        rows, ridge, tasks = rows[busy], ridge[busy], tasks.only(busy)
        blocks = _blocks(tasks, ridge, part[busy])
    return found


class _Point(NamedTuple):
    """Where the tasks are."""

    place: Tensor  # [B, M, K, r]
    logits: Tensor  # [B, M, K, n]
    chances: Tensor  # [B, M, K, n]: softmax of the logits; 0 where not learnt from
    objective: Tensor  # [B, M]

    @staticmethod
    def at(tasks: Tasks, penalty: Tensor, place: Tensor, logits: Tensor) -> "_Point":
        chances = logits.log_softmax(2)
        likely = chances.gather(2, tasks.labels).masked_fill_(tasks.passed, 0).sum((2, 3))
        chances = chances.exp_().mul_(tasks.trained)
        return _Point(place, logits, chances, _dot(penalty * place, place) / 2 - likely)

    def only(self, clients: Tensor) -> "_Point":
        return _Point(*(tensor[clients] for tensor in self))


def _descend(
    tasks: Tasks,
    ridge: Tensor,
    start: Tensor,
    blocks: Tensor | None,
    iterations: int,
    gap: float,
    distance: float,
) -> tuple[Tensor, Tensor]:
    """As far as some iterations go, and which clients [B] have a task that is not finished."""
    found = start.clone()
    rows = torch.arange(len(start), device=start.device)
    penalty = ridge[..., None, None].repeat(1, 1, 1, start.shape[3])  # [B, M, 1, r]
    penalty[..., -1] = 0
    point = _Point.at(tasks, penalty, start, tasks.logits(start))
    steps, changes = (t.new_zeros(2, *t.shape) for t in (start, point.logits))
    moving = torch.ones_like(ridge, dtype=torch.bool)
    least, near = _rounding(tasks, ridge), distance**2 * ridge.clamp(max=1)
    for _ in range(iterations):
        gradient = _gradient(tasks, penalty, point)
        diagonal = _diagonal(tasks, penalty, point)
        moving &= _unfinished(ridge, point, gradient, diagonal, gap, near, least)
        busy = moving.any(1)
        if int(busy.sum()) <= 0.75 * len(rows):
            found[rows] = point.place
            tasks, point = tasks.only(busy), point.only(busy)
            steps, changes = steps[:, busy], changes[:, busy]
            rows, ridge, penalty, moving, least, near, gradient, diagonal = (
                t[busy] for t in (rows, ridge, penalty, moving, least, near, gradient, diagonal)
            )
            blocks = None if blocks is None else blocks[busy]
        if not len(rows):
            break
        if blocks is None:
            uphill = gradient / diagonal
        else:
            uphill = torch.cholesky_solve(gradient.unsqueeze(4), blocks).squeeze(4)
        uphill = _centred(uphill, tasks)
        steps[0], changes[0] = uphill, _product(uphill, tasks.design.mT)
        flat = _flat(steps)
        slopes = _gram(flat, _row(gradient))  # [T, 2, 1]
        share = _newton(_curvature(penalty, point, steps, changes), slopes)  # [T, 1, 2]
        step = torch.bmm(share, flat).view_as(point.place)
        change = torch.bmm(share, _flat(changes)).view_as(point.logits)
        slope = torch.bmm(share, slopes).view_as(ridge)
        length, point = _walk(tasks, penalty, point, step, change, slope, moving)
        steps[1], changes[1] = step * length, change * length
        moving &= length.view_as(moving) > 0
    found[rows] = point.place
    return found, torch.zeros(len(start), dtype=torch.bool).index_fill_(
        0, rows[moving.any(1)], True
    )


def _gradient(tasks: Tasks, penalty: Tensor, point: _Point) -> Tensor:
    """[B, M, K, r]"""
    rest = torch.addcmul(tasks.push, penalty, point.place)
    return rest.flatten(1, 2).baddbmm_(point.chances.flatten(1, 2), tasks.design).view_as(rest)


def _diagonal(tasks: Tasks, penalty: Tensor, point: _Point) -> Tensor:
    """Of the Hessian, roughly, [B, M, K, r]: a factor of the class and one of the coordinate."""
    weight = torch.addcmul(point.chances, point.chances, point.chances, value=-1)
    of_class = weight.sum(3, keepdim=True)  # [B, M, K, 1]
    of_coordinate = torch.bmm(weight.sum(2), tasks.squares).unsqueeze(2)  # [B, M, 1, r]
    share = of_class / of_class.sum(2, keepdim=True).clamp(min=FLAT)
    return torch.addcmul(penalty, share, of_coordinate).clamp_(min=FLAT)


def _rounding(tasks: Tasks, ridge: Tensor) -> Tensor:
    """What rounding alone may leave of a task's gain, [B, M]."""
    error = 8 * torch.finfo(ridge.dtype).eps * _size(tasks.push).sqrt()
    return error.square() / ridge


def _unfinished(
    ridge: Tensor,
    point: _Point,
    gradient: Tensor,
    diagonal: Tensor,
    gap: float,
    near: Tensor,
    least: Tensor,
) -> Tensor:
    """Which tasks can still gain something that matters, and more than the ``least``, [B, M].

    It matters beyond the gap, in parts of the objective, or beyond what is ``near`` the best.

    What the objective can still fall by is at most half of g H⁻¹ g. The ridge bounds the Hessian of
    the weights from below; the bias has none, and its own curvature stands in.
    """
    bias = gradient[..., -1].square()
    size = _dot(gradient, gradient) - bias.sum(2)  # of the weights alone
    left = size / ridge + (bias / diagonal[..., -1]).sum(2)
    matters = torch.fmin(2 * gap * point.objective.clamp(min=1), near)
    return left > torch.maximum(matters, least)


def _curvature(penalty: Tensor, point: _Point, steps: Tensor, changes: Tensor) -> Tensor:
    """The Hessian [T, 2, 2] in the plane of two steps that change the logits by ``changes``."""
    weighted = point.chances * changes
    mean = _flat(weighted.sum(3))  # [T, 2, n]
    of_losses = _gram(_flat(weighted), _flat(changes)) - _gram(mean, mean)
    return of_losses + _gram(_flat(steps * penalty), _flat(steps))


def _newton(curvature: Tensor, slopes: Tensor) -> Tensor:
    """How far to go along each of two directions, [T, 1, 2]; along the first where they agree."""
    (a, b), (_, c) = (row.unbind(-1) for row in curvature.unbind(-2))
    first, second = slopes[..., 0].unbind(-1)
    limits = torch.finfo(a.dtype)
    determinant = a * c - b * b
    plane = determinant > 1e3 * limits.eps * a * c
    inverse = plane / determinant.where(plane, 1)
    alone = ~plane / a.clamp(min=FLAT * first.abs() + limits.tiny)
    along_first = (c * first - b * second) * inverse + first * alone
    along_second = (a * second - b * first) * inverse
    return -torch.stack([along_first, along_second], dim=-1).unsqueeze(1)


def _walk(
    tasks: Tasks,
    penalty: Tensor,
    point: _Point,
    step: Tensor,
    change: Tensor,
    slope: Tensor,
    moving: Tensor,
) -> tuple[Tensor, _Point]:
    """As much of the step [B, M, 1, 1] as goes downhill, and where it leads; 0 for tasks at rest.

    Too far is where the objective is higher, or rises by more than half the slope it fell by. Near
    the optimum rounding hides the first, and the second decides.
    """
    allowed = point.objective + (1 + point.objective) * (1e3 * torch.finfo(step.dtype).eps)
    rest = slope - _dot(point.chances, change)
    bend = _dot(penalty * step, step)
    length = REACH / change.abs().amax((2, 3)).clamp(min=REACH) * moving
    for cut in range(CUTS):
        part = length[..., None, None]
        place = torch.addcmul(point.place, part, step)
        there = _Point.at(tasks, penalty, place, torch.addcmul(point.logits, part, change))
        rise = rest + _dot(there.chances, change) + length * bend
        far = moving & ~((there.objective <= allowed) & (rise <= slope.abs() / 2))
        if not far.any():
            break
        shorter = (slope / (slope - rise)).nan_to_num(0).clamp(0.1, 0.5)
        length = torch.where(far, length * shorter * (cut < CUTS - 2), length)
    return part, there


def _blocks(tasks: Tasks, ridge: Tensor, place: Tensor) -> Tensor | None:
    """Cholesky factors [B, M, K, r, r] of each class's block of the Hessian, if they fit.

    A much better preconditioner than the diagonal where the penalty is weak and some samples are
    certain while others contradict each other.
    """
    if place.numel() * place.shape[3] > NUMBERS:
        return None
    chances = tasks.logits(place).softmax(2) * tasks.trained
    weight = (chances - chances.square()).unsqueeze(4)  # [B, M, K, n, 1]
    x = tasks.design[:, None, None]
    hessian = (weight * x).mT @ x
    penalty = ridge[..., None, None].expand_as(place).clone()
    penalty[..., -1] = FLAT
    hessian.diagonal(dim1=3, dim2=4).add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(hessian)
    diagonal = hessian.diagonal(dim1=3, dim2=4).sqrt().diag_embed()
    return torch.where(failed[..., None, None] > 0, diagonal, factor)


def _centred(place: Tensor, tasks: Tasks) -> Tensor:
    """Less the mean over the classes that take part."""
    mean = place.sum(2, keepdim=True) / tasks.number
    return torch.addcmul(place, tasks.known, mean, value=-1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """[B, M, K, x] times [B, x, y]."""
    return torch.bmm(left.flatten(1, 2), right).view(*left.shape[:3], right.shape[2])


def _flat(vectors: Tensor) -> Tensor:
    """p vectors of each task, [p, B, M, ...], as rows [T, p, ...]; a view."""
    p, B, M = vectors.shape[:3]
    return vectors.view(p, B * M, -1).transpose(0, 1)


def _row(vector: Tensor) -> Tensor:
    """One vector of each task, [B, M, ...], as a row [T, 1, ...]; a view."""
    B, M = vector.shape[:2]
    return vector.view(B * M, 1, -1)


def _gram(left: Tensor, right: Tensor) -> Tensor:
    """All products of p and q vectors of each task, [T, p, x] and [T, q, x], as [T, p, q].

    A single task is computed twice: one product of small matrices is rounded in another way than
    many are, and a client's bits must not depend on who is solved with it.
    """
    if len(left) > 1:
        return torch.bmm(left, right.mT)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1).mT)[:1]


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """Of one vector of each task with one, [B, M]."""
    return _gram(_row(left), _row(right)).view(left.shape[:2])


def _size(place: Tensor) -> Tensor:
    """The squared length of the weights, bias aside, [B, M]."""
    return _dot(place, place) - place[..., -1].square().sum(2)
