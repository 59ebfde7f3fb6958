"""Clients of about the same size, side by side in tensors of one shape.

A client's weights lie in the span of its own samples (and its prior), so that its regression has
as many unknowns as samples, however many features there are. The rotation to the samples'
principal axes is exact, and makes the Hessian nearly diagonal (see ``regression``).

Shapes: B clients, n samples, d features, r = min(n, d) axes, K classes of a client.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre.models.network import Head
from calibre.personal.heads import Samples

ELEMENTS = 2**17  # logits in a block: enough to hide the cost of a call, few enough for the cache
STEP = 1.25  # from the smallest to the largest client of a block, in samples and in classes,
# and how much at most padding adds to either
LINE = 8  # numbers in a cache line. Libraries round by where in a line a matrix begins, so samples,
# features and coordinates are padded to whole lines: every client's matrices begin with one
UNLIKELY = -30.0  # the least bias to start from: a class that the prior rules out can be learnt

# The bias of a class of which the client has no label; its weights are zero. The other logits
# have mean 0 for every image (see ``Block.heads``), so that one of them is always above it, and a
# softmax at any temperature in use gives the class exactly 0. Being finite it makes nothing NaN,
# and it is exact in float32 and float16.
ABSENT = -1e4


@dataclass(frozen=True)
class Block:
    """Padded float64 tensors of some clients; padding weighs nothing."""

    members: list[int]  # [B]: places in the caller's list
    classes: list[Tensor]  # [B] of int64 [K]: the classes of which the client has a label
    labels: Tensor  # int64 [B, n]: places in the client's classes
    real: Tensor  # bool [B, n]
    present: Tensor  # bool [B, K]
    design: Tensor  # [B, n, r + 1]: the samples along their principal axes, and 1 for the bias
    axes: Tensor  # [B, d, r]
    mean: Tensor  # [B, d]: of the samples; where the axes cross
    prior: Head  # [B, K, d] and [B, K]
    features: int  # that the clients' heads have: d without its padding
    offset: Tensor  # [B, K, n]: logits of the prior

    def heads(self, coefficients: Tensor, classes: int) -> list[Head]:
        """From coefficients [B, K, r + 1] to each client's head over all classes.

        Adding the same to the weights of all classes changes no answer. Here they add up to zero
        over the client's classes, as they would by themselves without a prior.
        """
        added = coefficients[..., :-1] @ self.axes.mT  # [B, K, d]
        weights = (self.prior.weight + added)[..., : self.features]
        # a sum: a product with one vector is rounded in one way for one client, and else in another
        at_the_mean = (added * self.mean[:, None]).sum(2)
        biases = self.prior.bias + coefficients[..., -1] - at_the_mean
        heads = []
        for held, weight, bias in zip(self.classes, weights, biases, strict=True):
            head = Head(
                weight.new_zeros(classes, weight.shape[1]), bias.new_full((classes,), ABSENT)
            )
            head.weight[held] = weight[: len(held)] - weight[: len(held)].mean(0)
            head.bias[held] = bias[: len(held)] - bias[: len(held)].mean()
            heads.append(head)
        return heads


def blocks(
    samples: Sequence[Samples], priors: Sequence[Head | None], tasks: int
) -> Iterator[Block]:
    """All clients, like with like, as many in a block as fit with ``tasks`` regressions of each.

    How far a client is padded follows from its own size alone. So its sums are rounded in the same
    way whoever else is in the block, and its bits do not depend on who is solved with whom.
    """
    held = [client.labels.unique() for client in samples]
    sizes = [(len(client.labels), len(k)) for client, k in zip(samples, held, strict=True)]
    kinds = [tuple(_kind(count) for count in size) for size in sizes]
    order = sorted(range(len(samples)), key=lambda i: (kinds[i], i))
    for kind, alike in itertools.groupby(order, key=kinds.__getitem__):
        members = list(alike)
        n, K = _whole_lines(_largest(kind[0])), _largest(kind[1])
        many = max(1, ELEMENTS // (tasks * n * K))
        for start in range(0, len(members), many):
            group = members[start : start + many]
            yield _block(
                group,
                n,
                K,
                [samples[i] for i in group],
                [priors[i] for i in group],
                [held[i] for i in group],
            )


def _kind(count: int) -> int:
    """Counts of one kind differ by less than ``STEP``."""
    return math.ceil(math.log(count, STEP) - 1e-9)


def _largest(kind: int) -> int:
    """The largest count of a kind."""
    return math.floor(STEP**kind + 1e-6)


def _whole_lines(count: int) -> int:
    return -(-count // LINE) * LINE


def _block(
    members: list[int],
    n: int,
    K: int,
    samples: list[Samples],
    priors: list[Head | None],
    held: list[Tensor],
) -> Block:
    d = samples[0].features.shape[1]
    wide = (0, _whole_lines(d) - d)
    features = _padded([F.pad(client.features.double(), wide) for client in samples], n)
    counts = torch.tensor([len(client.labels) for client in samples], device=features.device)
    real = torch.arange(n, device=features.device) < counts[:, None]
    mean = features.sum(1) / counts[:, None]
    coordinates, axes = _principal((features - mean[:, None]) * real[..., None])
    r = coordinates.shape[2]
    beyond = (0, _whole_lines(r + 1) - (r + 1))  # axes along which nothing lies
    starts = [_start(prior, k, d, features) for prior, k in zip(priors, held, strict=True)]
    starts = [Head(F.pad(start.weight, wide), start.bias) for start in starts]
    prior = Head(*(_padded(list(part), K) for part in zip(*starts, strict=True)))
    places = [torch.searchsorted(k, c.labels) for k, c in zip(held, samples, strict=True)]
    return Block(
        members=members,
        classes=held,
        labels=_padded(places, n),
        real=real,
        present=_padded([torch.ones_like(k, dtype=torch.bool) for k in held], K),
        design=F.pad(F.pad(coordinates, beyond), (0, 1), value=1.0),
        axes=F.pad(axes, beyond),
        mean=mean,
        prior=prior,
        offset=torch.baddbmm(prior.bias[..., None], prior.weight, features.mT),
        features=d,
    )


def _start(prior: Head | None, held: Tensor, d: int, like: Tensor) -> Head:
    """The prior's rows of a client's classes, centred as in ``Block.heads``; zero without one."""
    if prior is None:
        return Head(like.new_zeros(len(held), d), like.new_zeros(len(held)))
    weight, bias = (part.to(like)[held] for part in prior)
    return Head(weight - weight.mean(0), (bias - bias.max()).clamp(min=UNLIKELY))


def _principal(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Samples [B, n, d] along their principal axes, [B, n, r], and the axes, [B, d, r]."""
    if centred.shape[2] > centred.shape[1]:
        span, triangle = torch.linalg.qr(centred.mT)  # [B, d, n], [B, n, n]
        _, turn = torch.linalg.eigh(triangle @ triangle.mT)
        return triangle.mT @ turn, span @ turn
    _, turn = torch.linalg.eigh(centred.mT @ centred)
    return centred @ turn, turn


def _padded(tensors: list[Tensor], length: int) -> Tensor:
    """Stacked, each with zeros after its own."""
    stacked = tensors[0].new_zeros(len(tensors), length, *tensors[0].shape[1:])
    for row, tensor in zip(stacked, tensors, strict=True):
        row[: len(tensor)] = tensor
    return stacked
