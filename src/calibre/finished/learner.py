"""A client's head while its labels come in: solved anew for every label, on encodings made once.

Shapes: m images, d features, K classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre import rng
from calibre.calibration.typical import Suggestion, suggest
from calibre.finished.newcomer import check_encoder, prior_for
from calibre.finished.run import FinishedRun
from calibre.finished.suggesting import site_of, stream
from calibre.local.features import encode
from calibre.models.network import Head, feature_count
from calibre.personal.choosing import Choice
from calibre.personal.encoded import Encoded, parts_for, scaled_by
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.predictor import SideBySide
from calibre.personal.solve import Scaling, standardise, unfold
from calibre.personal.solved_head import features_of, solved, strength_for, without
from calibre.personal.trust import wilson

MORE = 1.2  # times as many labels, and how strong the penalty should be is asked again

Labels = Mapping[int, str]  # image to class


@dataclass(frozen=True)
class Estimate:
    """How often the model of so many labels is right, each asked of a model that did not see it."""

    labels: int
    correct: int
    images: int  # that could be held out: a class with one image has none to spare

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.correct, self.images)


class Learner:
    """Images by their encodings; labels are told with every question."""

    def __init__(
        self,
        features: Tensor,  # [m, d]; the first ``encoding`` of them are the encoder's
        encoding: int,
        scaling: Scaling,
        choice: Choice | None = None,
        prior: Callable[[Sequence[str]], Head | None] = lambda classes: None,
    ) -> None:
        self._encodings = features[:, :encoding]
        self._scaling, self._choice, self._prior = scaling, choice, prior
        self._x = standardise(features, scaling)
        self._strength: tuple[int, tuple[str, ...], float] = (0, (), 0.0)  # and what it is for

    def suggest(self, seen: Sequence[int], count: int) -> list[Suggestion]:
        return suggest(self._encodings, seen, count, stream())

    def estimate(self, labels: Labels) -> Estimate | None:
        """None where no class has two labels."""
        classes = tuple(sorted(set(labels.values())))
        seen = self._seen(labels, classes)
        held = seen.fold >= 0
        if not held.any():
            return None
        (logits,) = without(seen, [self._strength_for(seen, classes)])
        right = logits.argmax(1) == seen.labelled.labels
        return Estimate(len(labels), int(right[held].sum()), int(held.sum()))

    def guess(self, labels: Labels, image: int) -> list[tuple[str, float]]:
        """The classes of one image by a model of all labels, most probable first."""
        classes = tuple(sorted(set(labels.values())))
        if not classes:
            return []
        seen = self._seen(labels, classes)
        head = solved(seen, self._strength_for(seen, classes))
        shares = F.linear(self._x[image], *head).softmax(0).tolist()
        return sorted(zip(classes, shares, strict=True), key=lambda pair: -pair[1])

    def _seen(self, labels: Labels, classes: Sequence[str]) -> Encoded:
        rows = sorted(labels)
        number = {name: i for i, name in enumerate(classes)}
        given = torch.tensor([number[labels[row]] for row in rows], dtype=torch.int64)
        prior = self._prior(classes)
        return Encoded(
            parts=[],
            scaling=self._scaling,
            labelled=Samples(self._x[rows], given),
            unlabelled=self._x[:0],
            prior=None if prior is None else unfold(prior, self._scaling),
            classes=len(classes),
            fold=stratified(given, FOLDS, rng.stream(0, "folds of labels")),
        )

    def _strength_for(self, seen: Encoded, classes: tuple[str, ...]) -> float:
        count, known, strength = self._strength
        n = len(seen.labelled.labels)
        if known != classes or not count <= n < MORE * count:
            strength = strength_for(seen, self._choice)
            self._strength = n, classes, strength
        return strength


def learner_of(finished: FinishedRun, pixels: Tensor) -> Learner:
    """By a run's encoder, with what its clients found best."""
    check_encoder(finished)
    site = site_of(finished, pixels)
    encoder, norm = site.network.get_submodule("encoder"), site.normalization
    chosen = features_of(site, finished.choice)
    parts = parts_for(chosen, encoder, site.images, norm, site.personal.components)
    features = encode(SideBySide(parts), site.images, norm)
    d = features.shape[1]

    def prior(classes: Sequence[str]) -> Head | None:
        own = prior_for(finished, site, classes)
        if own is None:
            return None
        more = torch.zeros(len(own.bias), d - own.weight.shape[1])
        return Head(torch.cat([own.weight.detach(), more], dim=1), own.bias.detach())

    scaling = scaled_by(parts, features)
    return Learner(features, feature_count(encoder), scaling, finished.choice, prior)
