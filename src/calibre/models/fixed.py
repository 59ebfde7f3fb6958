"""Encoders that learn nothing by gradients: pixels, their principal components, nothing at all."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST_SIDE = 32  # of the picture that is looked at pixel by pixel: larger ones are averaged
MOST_IMAGES = 1000  # that components are made from; of more, every so many-th


class Pixels(nn.Module):
    """Images [N, C, H, W] to their pixels [N, C * side * side]."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.features = channels * side * side

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.side, self.side):
            x = F.adaptive_avg_pool2d(x, self.side)
        return x.flatten(1)


class Components(nn.Module):
    """Images [N, C, H, W] to their first principal components [N, count].

    They keep where in a picture things are, which a small encoder's pooling loses.
    """

    centre: Tensor  # [P], P pixels
    directions: Tensor  # [P, count]

    def __init__(self, channels: int, side: int, count: int) -> None:
        super().__init__()
        self.side = side
        self.pixels = Pixels(channels, side)
        self.features = count
        self.register_buffer("centre", torch.zeros(self.pixels.features))
        self.register_buffer("directions", torch.zeros(self.pixels.features, count))

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.pixels(x)
        return (pixels - self.centre) @ self.directions

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """To images [n, C, H, W]. Divided by one number for all, so that large ones stay large.

        Directions beyond those that the images span are zero. The sign of a direction is free: its
        largest entry is made positive, so that the same images always give the same bits.
        """
        step = -(-len(x) // MOST_IMAGES)
        pixels = self.pixels(x[::step]).double()
        centre = pixels.mean(0)
        _, values, directions = torch.linalg.svd(pixels - centre, full_matrices=False)
        found = min(self.features, int((values > 1e-6 * values[:1].clamp(min=1e-12)).sum()))
        chosen = directions[:found]
        largest = chosen.abs().argmax(1, keepdim=True)
        chosen = chosen * chosen.gather(1, largest).sign()
        scale = (values[:found].square().sum() / (len(pixels) * max(found, 1))).sqrt()
        self.centre.copy_(centre)
        self.directions.zero_()
        self.directions[:, :found] = (chosen / scale.clamp(min=1e-12)).T


class Nothing(nn.Module):
    """Every image alike, so that a head on it can only know how frequent classes are."""

    features = 1

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 1)
