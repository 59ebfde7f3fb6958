"""A client's head while its labels come in: solved anew for every label, on encodings made once.

Shapes: m images, d features, K classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre import rng
from calibre.calibration.typical import Suggestion, suggest
from calibre.finished.newcomer import check_encoder, trained_for
from calibre.finished.run import FinishedRun
from calibre.finished.suggesting import site_of, stream
from calibre.models.network import Head
from calibre.personal.cross_validation import logits_without, strengths_for
from calibre.personal.encoded import Encoded, encode_client, fitted_parts
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.pooling import HeadChoice
from calibre.personal.solve import HeadProblem, solve_heads, unfold
from calibre.personal.solved_head import trained_parts
from calibre.personal.trust import wilson

MORE = 1.2  # times as many labels, and how strong the penalty should be is asked again

GivenLabels = Mapping[int, str]  # image to class


@dataclass(frozen=True)
class LearningEstimate:
    """How often the model of so many labels is right, each asked of a model that did not see it."""

    labels: int
    correct: int
    images: int  # that could be held out: a class with one image has none to spare

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.correct, self.images)


class Learner:
    """Images by what experts make of them; labels are told with every question."""

    def __init__(
        self,
        images: Encoded,  # all of them, as if each had a label
        choice: HeadChoice | None = None,
        # the first experts' heads for some classes, as they were trained
        priors: Callable[[Sequence[str]], Sequence[Head | None]] = lambda classes: (),
    ) -> None:
        self._images, self._choice, self._priors = images, choice, priors
        # how many labels of which classes the strengths are for
        self._strengths: tuple[int, tuple[str, ...], list[float]] = (0, (), [])

    def suggest(self, seen: Sequence[int], count: int) -> list[Suggestion]:
        encodings = self._images.experts[0].samples.features.float()
        return suggest(encodings, seen, count, stream())

    def estimate(self, labels: GivenLabels) -> LearningEstimate | None:
        """None where no class has two labels."""
        classes = tuple(sorted(set(labels.values())))
        seen = self._seen(labels, classes)
        held = seen.fold >= 0
        if not held.any():
            return None
        (logits,) = logits_without([seen], [self._for(seen, classes)])
        right = logits.argmax(1) == seen.labels
        return LearningEstimate(len(labels), int(right[held].sum()), int(held.sum()))

    def guess(self, labels: GivenLabels, image: int) -> list[tuple[str, float]]:
        """The classes of one image by a model of all labels, most probable first."""
        classes = tuple(sorted(set(labels.values())))
        if not classes:
            return []
        seen = self._seen(labels, classes)
        logits = torch.zeros(len(classes), dtype=torch.float64)
        strengths = self._for(seen, classes)
        for all_, own, strength in zip(self._images.experts, seen.experts, strengths, strict=True):
            (head,) = solve_heads([HeadProblem(*own.samples, strength, own.prior)], len(classes))
            logits += own.share * F.linear(all_.samples.features[image], *head)
        shares = logits.softmax(0).tolist()
        return sorted(zip(classes, shares, strict=True), key=lambda pair: -pair[1])

    def _seen(self, labels: GivenLabels, classes: Sequence[str]) -> Encoded:
        rows = sorted(labels)
        number = {name: i for i, name in enumerate(classes)}
        given = torch.tensor([number[labels[row]] for row in rows], dtype=torch.int64)
        experts = [
            expert._replace(
                samples=Samples(expert.samples.features[rows], given),
                prior=unfold(prior, expert.scaling) if prior else None,
            )
            for expert, prior in zip_longest(self._images.experts, self._priors(classes))
        ]
        folds = stratified(given, FOLDS, rng.stream(0, "folds of labels"))
        return Encoded(experts, len(classes), folds)

    def _for(self, seen: Encoded, classes: tuple[str, ...]) -> list[float]:
        count, known, strengths = self._strengths
        n = len(seen.labels)
        if known != classes or not count <= n < MORE * count:
            (strengths,) = strengths_for([seen], self._choice)
            self._strengths = n, classes, strengths
        return strengths


def learner_of(finished: FinishedRun, pixels: Tensor) -> Learner:
    """By a run's encoder, with what its clients found best."""
    check_encoder(finished)
    site = site_of(finished, pixels)
    norm, unknown = site.normalization, torch.zeros(len(site.images), dtype=torch.int64)
    fitted = fitted_parts(site.personal, site.images, norm)
    folds = rng.stream(0, "folds of labels")
    trained = trained_parts(site)
    images = encode_client(trained, fitted, site.images, unknown, norm, 1, folds)

    def priors(classes: Sequence[str]) -> list[Head | None]:
        return [head for _, head in trained_for(finished, site, classes)]

    return Learner(images, finished.choice, priors)
