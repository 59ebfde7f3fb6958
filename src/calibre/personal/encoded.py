"""A client's images as a solved head sees them: by the encoder, and by their pixels.

Two experts look at every image: a head on the encoding, and one on the pixels' principal
components. They err on different images, because a small encoder's pooling loses where in a
picture things are. So their logits are added, the pixels' with a lower share; being linear, both
are one head on both parts side by side.

Shapes: n labelled images, d features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calibre.data.augment import Normalization, plain
from calibre.local.features import encode
from calibre.local.memory import FORGETFUL, Memory
from calibre.models.fixed import LARGEST_SIDE, Components, Pixels
from calibre.models.network import Head
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.pooling import Features
from calibre.personal.predictor import SideBySide
from calibre.personal.solve import Scaling, fold, scaling, standardise, unfold

# Of the pixels' logits beside the encoder's. From a half to one made no difference on training
# images of Fashion-MNIST (1.3 points above the encoder alone) and CIFAR-10 (0.8 points).
PIXELS = 0.75
# C of a head near the one that was trained together with the encoder. An encoder that has met a
# label answers it better than others, also where it is held out; so cross-validation would choose
# too weak a penalty. It cost 0.3 to 2 points on training images of Fashion-MNIST and CIFAR-10.
NEAR = 0.01
NEAR_PIXELS = 0.5  # beside such a head, whose logits are smaller; a third to one made no difference


class Expert(NamedTuple):
    """One part, and what it makes of the labelled images."""

    name: Features
    part: nn.Module
    share: float  # of its logits in the sum
    scaling: Scaling
    samples: Samples  # standardised [n, d], and their labels
    prior: Head | None  # of standardised features: what to shrink towards
    strength: float | None = None  # C, where cross-validation must not choose it
    memory: Memory = FORGETFUL  # where other encoders will ask the same of it again


@dataclass(frozen=True)
class Encoded:
    experts: list[Expert]
    classes: int  # K
    fold: Tensor  # int64 [n]: where a labelled image is held out; -1: the only one of its class

    @property
    def labels(self) -> Tensor:
        return self.experts[0].samples.labels

    @property
    def parts(self) -> list[nn.Module]:
        """Whose features follow each other."""
        return [expert.part for expert in self.experts]

    def shown(self, images: Tensor, normalization: Normalization) -> Tensor:
        """Other images by the same parts, side by side: for :meth:`joined` heads."""
        return encode(SideBySide(self.parts), images, normalization)

    def joined(self, heads: Sequence[Head]) -> Head:
        """Heads of the experts' standardised features as one, of the parts' own."""
        weights, bias = [], torch.zeros(self.classes, dtype=torch.float64)
        for expert, head in zip(self.experts, heads, strict=True):
            raw = fold(head, expert.scaling)
            weights.append(expert.share * raw.weight)
            bias = bias + expert.share * raw.bias
        return Head(torch.cat(weights, dim=1).float(), bias.float())

    def with_more(self, shown: Samples) -> "Encoded":
        """The same with further labelled images, as :meth:`shown`; nothing else changes."""
        widths = [expert.samples.features.shape[1] for expert in self.experts]
        experts = []
        for expert, raw in zip(self.experts, shown.features.split(widths, dim=1), strict=True):
            more = standardise(raw, expert.scaling), shown.labels
            both = zip(expert.samples, more, strict=True)
            experts.append(expert._replace(samples=Samples(*(torch.cat(pair) for pair in both))))
        return Encoded(experts, self.classes, self.fold)

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return sum(expert.samples.features.numel() for expert in self.experts)


def parts_for(
    features: Features,
    encoder: nn.Module,
    images: Tensor,
    normalization: Normalization,
    count: int,
    memory: Memory = FORGETFUL,
) -> list[nn.Module]:
    """The encoder, and where asked for the components of these images' pixels beside it."""
    if features == "encoder":
        return [encoder]
    components = _unfitted(images, count)
    (fitted,) = memory.recall(_fitted, [(images, normalization, count)])
    components.centre, components.directions = fitted
    return [encoder, components]


def _unfitted(images: Tensor, count: int) -> Components:
    height, channels = images.shape[1], images.shape[3]
    return Components(channels, min(height, LARGEST_SIDE), count).to(images.device)


def _fitted(asked: list[tuple[Tensor, Normalization, int]]) -> list[tuple[Tensor, Tensor]]:
    """The centre and the directions of the components of some images' pixels."""
    fitted = []
    for images, normalization, count in asked:
        components = _unfitted(images, count)
        components.fit(plain(images, normalization))
        fitted.append((components.centre, components.directions))
    return fitted


def encode_client(
    parts: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    normalization: Normalization,
    classes: int,
    generator: torch.Generator,
    prior: Head | None = None,
    met_labels: bool = False,
    memory: Memory = FORGETFUL,
) -> Encoded:
    """All of a client's images, the ``labels`` [n] being those of the first n.

    Features are standardised by all of them. ``prior`` is a head of the first part's features;
    with ``met_labels`` it was trained on these labels, and so was that part. ``generator`` deals
    the labels into folds. ``memory`` is for what only the images and labels decide.
    """
    experts: list[Expert] = []
    near = NEAR if met_labels and prior is not None else None
    for i, part in enumerate(parts):
        raw = encode(part, images, normalization)
        by = common_scaling(raw) if isinstance(part, Pixels | Components) else scaling(raw)
        samples = Samples(standardise(raw[: len(labels)], by), labels)
        if i == 0:
            towards = unfold(prior, by) if prior is not None else None
            experts.append(Expert("encoder", part, 1.0, by, samples, towards, near))
        else:
            share = PIXELS if near is None else NEAR_PIXELS
            experts.append(Expert("pixels", part, share, by, samples, None, None, memory))
    return Encoded(experts, classes, stratified(labels.cpu(), FOLDS, generator))


def common_scaling(features: Tensor) -> Scaling:
    """All features divided by one number: a pixel or component that hardly varies stays small."""
    x = features.double()
    centre = x.mean(0)
    spread = (x - centre).square().mean().sqrt().clamp(min=1e-6)
    return Scaling(centre, spread.expand(len(centre)))
