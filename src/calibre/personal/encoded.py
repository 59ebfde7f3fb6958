"""A client's images as a solved head sees them: parts side by side, standardised.

Shapes: m images to train on, n of them labelled, d features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibre.data.augment import Normalization, plain
from calibre.local.features import encode
from calibre.models.network import Head, feature_count
from calibre.models.pixels import LARGEST_SIDE, Components, Pixels
from calibre.personal.choosing import Features
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.predictor import SideBySide
from calibre.personal.solve import Scaling, fold, scaling, standardise, unfold


@dataclass(frozen=True)
class Encoded:
    parts: list[nn.Module]  # whose features follow each other
    scaling: Scaling
    labelled: Samples  # standardised [n, d]
    unlabelled: Tensor  # likewise [m - n, d]
    prior: Head | None  # of standardised features
    classes: int  # K
    fold: Tensor  # int64 [n]: where a labelled image is held out; -1: the only one of its class

    def more(self, images: Tensor, labels: Tensor, normalization: Normalization) -> Samples:
        """Other images by the same parts, as they come: for :meth:`raw` heads."""
        return Samples(encode(SideBySide(self.parts), images, normalization), labels)

    def raw(self, head: Head) -> Head:
        """A head of standardised features, as one of the parts' own."""
        folded = fold(head, self.scaling)
        return Head(folded.weight.float(), folded.bias.float())


def parts_for(
    features: Features, encoder: nn.Module, images: Tensor, normalization: Normalization, count: int
) -> list[nn.Module]:
    """The encoder, and where asked for the components of these images' pixels beside it."""
    if features == "encoder" or isinstance(encoder, Pixels):
        return [encoder]
    height, channels = images.shape[1], images.shape[3]
    components = Components(channels, min(height, LARGEST_SIDE), count).to(images.device)
    components.fit(plain(images, normalization))
    return [encoder, components]


def encode_client(
    parts: list[nn.Module],
    images: Tensor,
    labels: Tensor,
    normalization: Normalization,
    classes: int,
    generator: torch.Generator,
    prior: Head | None = None,
) -> Encoded:
    """All of a client's images, the ``labels`` [n] being those of the first n.

    ``prior`` is a head of the first part's features; ``generator`` deals the labels into folds.
    """
    raw = encode(SideBySide(parts), images, normalization)
    by = scaled_by(parts, raw)
    x = standardise(raw, by)
    n = len(labels)
    padded = None if prior is None else unfold(_padded(prior, raw.shape[1]), by)
    fold = stratified(labels.cpu(), FOLDS, generator)
    return Encoded(parts, by, Samples(x[:n], labels), x[n:], padded, classes, fold)


def scaled_by(parts: Sequence[nn.Module], features: Tensor) -> Scaling:
    """Each feature to unit spread; pixels and their components all by one number.

    A component that hardly varies is noise, and should stay small.
    """
    by = scaling(features)
    spread, start = by.spread.clone(), 0
    for part in parts:
        end = start + feature_count(part)
        if isinstance(part, Pixels | Components):
            own = features[:, start:end].double()
            common = (own - own.mean(0)).square().mean().sqrt()
            spread[start:end] = common.clamp(min=1e-6)
        start = end
    return Scaling(by.centre, spread)


def _padded(head: Head, d: int) -> Head:
    more = torch.zeros(len(head.bias), d - head.weight.shape[1], device=head.weight.device)
    return Head(torch.cat([head.weight, more], dim=1), head.bias)
