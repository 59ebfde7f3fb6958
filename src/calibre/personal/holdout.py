"""What a client's model says of images that it has not seen, by cross-validation.

Shapes: n labelled images, d features, K classes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre.models.network import Head
from calibre.personal.heads import Samples, train_heads
from calibre.personal.outside import fit_prototypes
from calibre.personal.trust import fit_temperature
from calibre.sections import PersonalSettings

FOLDS = 5

# From the training rows of each fold to features [n, d] and logits [n, K] of all labelled images,
# by a model that was fitted to those rows alone.
Refit = Callable[[Sequence[Tensor]], Iterable[tuple[Tensor, Tensor]]]


class HeldOut(NamedTuple):
    """Answers to images by models that have not seen them: m of n, where a class has but one."""

    logits: Tensor  # float32 [m, K]
    labels: Tensor  # int64 [m]
    distances: Tensor  # float32 [m]: to the nearest class mean; empty where there is no spread
    folds: Tensor  # int64 [m]: which model answered
    rows: Tensor  # int64 [m]: which of the labelled images

    @property
    def correct(self) -> int:
        return int((self.logits.argmax(1) == self.labels).sum())

    def calibrated(self) -> Tensor:
        """Probabilities [m, K], each by the temperature that the other folds suggest."""
        parts = torch.empty_like(self.logits)
        for fold in self.folds.unique():
            here = self.folds == fold
            others = ~here if not here.all() else here
            t = fit_temperature(self.logits[others], self.labels[others])
            parts[here] = (self.logits[here] / t).softmax(1)
        return parts


def stratified(labels: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """A fold for every image: of even size, every class spread over as many as it can be.

    The single image of a class is in no fold (-1): without it, nothing could know its class.
    """
    chosen = torch.full_like(labels, -1)
    dealt = 0
    for label in labels.unique():
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) < 2:
            continue
        order = torch.randperm(len(rows), generator=generator)
        chosen[rows[order]] = torch.arange(dealt, dealt + len(rows)) % folds
        dealt += len(rows)
    return chosen


def cross_validate(
    labels: Tensor, refit: Refit, generator: torch.Generator, folds: int = FOLDS
) -> HeldOut:
    """Every labelled image answered by a model of the other folds."""
    fold = stratified(labels, folds, generator)
    used = [f for f in range(folds) if (fold == f).any()]
    answers = iter(refit([torch.nonzero(fold != f)[:, 0] for f in used]))
    return held_out_of(labels, fold, lambda rows: next(answers))


def held_out_of(
    labels: Tensor, fold: Tensor, answer: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> HeldOut:
    """What models say of images that are held out of their folds.

    ``answer`` gives features and logits of all labelled images by the model of some rows; it is
    called for one fold after another.
    """
    parts = []
    for f in sorted(set(fold.tolist()) - {-1}):
        held, rows = fold == f, torch.nonzero(fold != f)[:, 0]
        features, logits = answer(rows)
        prototypes = fit_prototypes(features[rows], labels[rows])
        distances = prototypes.distance(features[held]) if prototypes else features.new_empty(0)
        out = torch.nonzero(held)[:, 0]
        parts.append(HeldOut(logits[out], labels[out], distances, fold[out], out))
    if not parts:
        none = labels.new_empty(0)
        return HeldOut(torch.empty(0, 1), none, torch.empty(0), none, none)
    return HeldOut(*(torch.cat(column) for column in zip(*parts, strict=True)))


def refit_heads(samples: Samples, starts: Head, settings: PersonalSettings, seed: int) -> Refit:
    """Heads on a frozen encoder, all folds' in one optimisation."""

    def refit(trained: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
        parts = [Samples(samples.features[rows], samples.labels[rows]) for rows in trained]
        if not parts:
            return
        heads = train_heads(range(len(parts)), parts, [starts] * len(parts), settings, seed)
        for weight, bias in zip(*heads, strict=True):
            yield samples.features, F.linear(samples.features, weight, bias)

    return refit


def as_it_is(features: Tensor, logits: Tensor) -> Refit:
    """A model that was never fitted to the client's labels needs no folds of its own."""
    return lambda trained: [(features, logits)] * len(trained)
