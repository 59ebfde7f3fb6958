"""A small convolutional encoder for laptops and phones: four 3x3 convolutions."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CNN(nn.Module):
    """Widths w, 2w, 2w, 4w, halved in resolution after each of the first three convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise(widths)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            if i < 3:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))  # ceil: a 1 x 1 map stays one
        self.layers = nn.Sequential(*layers)
        self.features = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1)


def cnn(channels: int, width: int, stem: str) -> CNN:
    return CNN(channels, width)
