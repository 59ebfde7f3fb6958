"""A client's images as a solved head sees them: by encoders, by patches, and by pixels.

Three experts look at every image: a head on the encoding, one on the patterns of patches
(:mod:`calibre.models.patches`), and one on the pixels' principal components; a fourth, where the
method trains a second network. They err on different images: a small encoder's pooling loses where
in a picture things are, and what the encoder learned from all clients is not what a client's own
images look like. So their logits are added, each with its share; being linear, they are one head on
all parts side by side.

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
from calibre.models.patches import Patches
from calibre.personal.heads import Samples
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.pooling import Features
from calibre.personal.predictor import SideBySide
from calibre.personal.solve import Scaling, fold, scaling, standardise, unfold
from calibre.sections import PersonalSettings
from calibre.tensors import put, take

# Of the other experts' logits beside the encoder's. On training images, as folders of 30 labels,
# pixels gave 1 point and patches 2 more, from shares of a half on, and alike of CIFAR-10 and of
# Fashion-MNIST; 64 or 100 patterns gave no more than 32. Shares of 1 to 2 for a second encoder came
# to the same, give or take half a point.
SHARES: dict[Features, float] = {"encoder": 1.0, "second": 1.5, "patches": 1.0, "pixels": 0.75}
# C of a head near the one that was trained together with the encoder. An encoder that has met a
# label answers it better than others, also where it is held out; so cross-validation would choose
# too weak a penalty. It cost 0.3 to 2 points on training images of Fashion-MNIST and CIFAR-10.
NEAR = 0.01
# beside such a head, whose logits are smaller
NEAR_SHARES: dict[Features, float] = {**SHARES, "pixels": 0.5}
ENCODERS: tuple[Features, ...] = ("encoder", "second")  # what the experts on them are called


Fitted = Components | Patches  # to a client's own images, without labels


class Trained(NamedTuple):
    """An encoder, and the head that was trained together with it, if there is one."""

    encoder: nn.Module
    head: Head | None = None


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


def fitted_parts(
    settings: PersonalSettings,
    images: Tensor,
    normalization: Normalization,
    memory: Memory = FORGETFUL,
) -> list[Fitted]:
    """What the settings ask for beside encoders, fitted to these images."""
    kinds: list[tuple[type[Fitted], int]] = []
    if settings.features == "patches":
        kinds.append((Patches, settings.patterns))
    if settings.features != "encoder":
        kinds.append((Components, settings.components))
    parts = [_unfitted(kind, images, count) for kind, count in kinds]
    for part, (kind, count) in zip(parts, kinds, strict=True):
        (tensors,) = memory.recall(_fitted, [(images, normalization)], kind, count)
        put(part, dict(zip(sorted(take(part)), tensors, strict=True)))
    return parts


def _unfitted(kind: type[Fitted], images: Tensor, count: int) -> Fitted:
    height, channels = images.shape[1], images.shape[3]
    return kind(channels, min(height, LARGEST_SIDE), count).to(images.device)


def _fitted(
    asked: list[tuple[Tensor, Normalization]], kind: type[Fitted], count: int
) -> list[tuple[Tensor, ...]]:
    """The tensors, by name, of a part that is fitted to some images."""
    fitted = []
    for images, normalization in asked:
        part = _unfitted(kind, images, count)
        part.fit(plain(images, normalization))
        tensors = take(part)
        fitted.append(tuple(tensors[name] for name in sorted(tensors)))
    return fitted


def encode_client(
    trained: Sequence[Trained],
    fitted: Sequence[Fitted],
    images: Tensor,
    labels: Tensor,
    normalization: Normalization,
    classes: int,
    generator: torch.Generator,
    met_labels: bool = False,
    memory: Memory = FORGETFUL,
) -> Encoded:
    """All of a client's images, the ``labels`` [n] being those of the first n.

    Features are standardised by all of them. With ``met_labels`` what is trained has met these
    labels. ``generator`` deals the labels into folds. ``memory`` is for what only the images and
    labels decide.
    """
    near = NEAR if met_labels and trained[0].head is not None else None
    shares = SHARES if near is None else NEAR_SHARES

    def expert(name: Features, part: nn.Module) -> Expert:
        raw = encode(part, images, normalization)
        by = common_scaling(raw) if isinstance(part, Pixels | Components) else scaling(raw)
        samples = Samples(standardise(raw[: len(labels)], by), labels)
        return Expert(name, part, shares[name], by, samples, None)

    experts: list[Expert] = []
    for name, (encoder, head) in zip(ENCODERS, trained, strict=False):
        seen = expert(name, encoder)
        prior = unfold(head, seen.scaling) if head is not None else None
        experts.append(seen._replace(prior=prior, strength=near))
    for part in fitted:
        seen = expert("patches" if isinstance(part, Patches) else "pixels", part)
        experts.append(seen._replace(memory=memory))
    return Encoded(experts, classes, stratified(labels.cpu(), FOLDS, generator))


def common_scaling(features: Tensor) -> Scaling:
    """All features divided by one number: a pixel or component that hardly varies stays small."""
    x = features.double()
    centre = x.mean(0)
    spread = (x - centre).square().mean().sqrt().clamp(min=1e-6)
    return Scaling(centre, spread.expand(len(centre)))
