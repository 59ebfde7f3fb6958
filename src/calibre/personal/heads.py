"""Every client's linear head, trained at once on cached features of the frozen encoder.

Step t of all clients is two batched matrix products, so that 150 heads cost little more than their
arithmetic. Each head makes the very steps it would make in a loop over the clients with
``nn.Linear``, ``F.cross_entropy`` and ``torch.optim.SGD``.

Shapes: C clients, n samples of one and N of all, d features, K classes, T steps in an epoch,
B samples in a batch, D = d + 8.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibre.local.batches import balanced_batches
from calibre.models.network import Head
from calibre.rng import stream
from calibre.sections import PersonalSettings

GROUP = 50  # clients trained together: enough to hide the cost of a call, few enough for the cache
BIAS = 8  # columns for the bias, of which one is used: rows of whole vectors multiply faster


class Samples(NamedTuple):
    """One client's cached features and their labels."""

    features: Tensor  # float32 [n, d]
    labels: Tensor  # int64 [n]


def fresh_head(seed: int, client: int, classes: int, d: int) -> Head:
    """A head as ``nn.Linear`` initialises it: uniform within 1/√d of zero."""
    generator = stream(seed, "head", client)
    bound = d**-0.5
    weight = torch.empty(classes, d).uniform_(-bound, bound, generator=generator)
    return Head(weight, torch.empty(classes).uniform_(-bound, bound, generator=generator))


def train_heads(
    clients: Sequence[int],
    samples: Sequence[Samples],
    heads: Sequence[Head],
    settings: PersonalSettings,
    seed: int,
) -> Head:
    """The heads after ``settings.epochs`` of SGD, stacked in the order of ``clients``."""
    weight = torch.stack([head.weight for head in heads])
    bias = torch.stack([head.bias for head in heads])
    # Largest first: the clients that still have a batch at step t are then a prefix, and a view.
    order = sorted(range(len(clients)), key=lambda c: -len(samples[c].labels))
    for start in range(0, len(order), GROUP):
        group = order[start : start + GROUP]
        weight[group], bias[group] = _train_group(
            [clients[c] for c in group],
            [samples[c] for c in group],
            Head(weight[group], bias[group]),
            settings,
            seed,
        )
    return Head(weight, bias)


def accuracy(heads: Head, samples: Sequence[Samples]) -> Tensor:
    """The share of its own samples that each client's head gets right, float64 [C]."""
    shares = [
        int((F.linear(features, weight, bias).argmax(1) == labels).sum()) / len(labels)
        for weight, bias, (features, labels) in zip(*heads, samples, strict=True)
    ]
    return torch.tensor(shares, dtype=torch.float64)


def _train_group(
    clients: Sequence[int],
    samples: Sequence[Samples],
    heads: Head,
    settings: PersonalSettings,
    seed: int,
) -> Head:
    """``train_heads`` for clients that come in order of size, with the gradient written out."""
    features = torch.cat([client.features for client in samples])  # [N, d]
    labels = torch.cat([client.labels for client in samples])  # [N]
    counts = [len(client.labels) for client in samples]
    timetable = _Timetable.of(counts, settings.batch)
    _, C, B = timetable.place.shape
    d = features.shape[1]

    # The bias is column d of the weight: it meets a feature that is always 1.
    weight = F.pad(heads.weight, (0, BIAS))  # [C, K, D]
    weight[..., d] = heads.bias
    velocity = torch.zeros_like(weight)
    batch = features.new_zeros(C * B, d + BIAS)
    batch[:, d] = 1
    share = timetable.share.to(features)

    for epoch in range(settings.epochs):
        keys = [stream(seed, "head-batches", client, epoch) for client in clients]
        order = [torch.randperm(n, generator=key) for n, key in zip(counts, keys, strict=True)]
        rows = timetable.rows(order).to(labels.device)  # [T, C, B]
        targets = labels[rows].unsqueeze(2)  # [T, C, 1, B]
        for t, a in enumerate(timetable.active):
            torch.index_select(features, 0, rows[t, :a].flatten(), out=batch[: a * B, :d])
            x = batch[: a * B].view(a, B, -1)
            # d loss / d logits = (softmax - onehot) / samples in the batch, 0 where padded
            gradient = torch.bmm(weight[:a], x.mT).softmax(1).mul_(share[t, :a])  # [a, K, B]
            gradient.scatter_add_(1, targets[t, :a], -share[t, :a])
            if settings.momentum:
                velocity[:a].baddbmm_(gradient, x, beta=settings.momentum)
                weight[:a].add_(velocity[:a], alpha=-settings.lr)
            else:
                weight[:a].baddbmm_(gradient, x, alpha=-settings.lr)
    return Head(weight[..., :d], weight[..., d])


class _Timetable(NamedTuple):
    """Which sample of which client is where in an epoch, for clients in order of size."""

    place: Tensor  # int64 [T, C, B]: into the clients' shuffled samples, one client after another
    share: Tensor  # float32 [T, C, 1, B]: of the mean loss of a batch; 0 where it is padded
    first: Tensor  # int64 [N]: where the samples of the same client begin
    active: list[int]  # [T]: clients that have a batch at step t

    @staticmethod
    def of(counts: Sequence[int], batch: int) -> "_Timetable":
        deals = [torch.tensor(balanced_batches(n, batch)) for n in counts]
        sizes = pad_sequence(deals).unsqueeze(2)  # [T, C, 1]
        column = torch.arange(int(sizes.max()))  # [B]
        real = column < sizes  # [T, C, B]
        n = torch.tensor(counts)
        begin = n.cumsum(0) - n  # [C]
        within = (sizes.cumsum(0) - sizes + column) * real  # [T, C, B]; padding is its own sample 0
        return _Timetable(
            place=begin[:, None] + within,
            share=(real / sizes.clamp(min=1)).unsqueeze(2),
            first=begin.repeat_interleave(n),
            active=(sizes > 0).sum((1, 2)).tolist(),
        )

    def rows(self, order: list[Tensor]) -> Tensor:
        """The rows of all clients' features in the order of this epoch's batches, [T, C, B]."""
        return (torch.cat(order) + self.first)[self.place]
