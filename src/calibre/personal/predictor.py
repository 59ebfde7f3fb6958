"""The whole of a personal model as one module: what a bundle stores, and what ONNX gets.

Shapes: N images of H x W pixels in C channels, d features, K classes, P of them held.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibre.data.augment import Normalization, plain
from calibre.local.features import CHUNK
from calibre.models.network import Classifier, Head, feature_count
from calibre.personal.outside import Prototypes, nearest


class SideBySide(nn.Module):
    """Several encoders as one: their features follow each other.

    A weighted sum of classifiers' logits, as APFL's, is one linear head on all their features.
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.features = sum(feature_count(encoder) for encoder in encoders)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([encoder(x) for encoder in self.encoders], dim=1)


class Predictor(nn.Module):
    """uint8 images [N, H, W, C] in; calibrated probabilities [N, K] and distances [N] out."""

    means: Tensor
    whitening: Tensor
    temperature: Tensor

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        classes: int,
        held: int,
        normalization: Normalization,
    ) -> None:
        super().__init__()
        encoder = SideBySide(encoders)
        d = encoder.features
        self.network = Classifier(encoder, nn.Linear(d, classes))
        self.normalization = normalization
        self.register_buffer("means", torch.zeros(held, d))
        self.register_buffer("whitening", torch.zeros(d if held else 0, d))
        self.register_buffer("temperature", torch.ones(()))

    @staticmethod
    def of(
        encoders: Sequence[nn.Module],
        head: Head,
        temperature: float,
        prototypes: Prototypes | None,
        normalization: Normalization,
    ) -> "Predictor":
        held = len(prototypes.means) if prototypes else 0
        predictor = Predictor(encoders, len(head.bias), held, normalization)
        with torch.no_grad():
            predictor.network.head.weight.copy_(head.weight)
            predictor.network.head.bias.copy_(head.bias)
            predictor.temperature.fill_(temperature)
            if prototypes:
                predictor.means.copy_(prototypes.means)
                predictor.whitening.copy_(prototypes.whitening)
        return predictor.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.encoder(plain(images, self.normalization))
        logits = self.network.head(features)
        distances = (
            nearest(features, self.means, self.whitening)
            if len(self.means)
            else torch.zeros_like(features[:, 0])
        )
        return (logits / self.temperature).softmax(1), distances

    @torch.inference_mode()
    def answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The same for any number of images, a few at a time."""
        parts = [self(chunk) for chunk in images.split(CHUNK)]
        probabilities, distances = zip(*parts, strict=True)
        return torch.cat(probabilities), torch.cat(distances)
