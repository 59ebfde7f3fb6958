"""Residual networks (He et al., CVPR 2016, arXiv:1512.03385) for small images and small machines.

``resnet18`` with width 64 is the paper's encoder; ``resnet10`` has one block per stage, ``resnet8``
also one stage less. With width 64 and the ImageNet stem, ``resnet18``, ``34`` and ``50`` are those
of torchvision without their classifier, and take its weights. For images under 64 pixels the stem
is one 3x3 convolution with stride 1 and no pooling: the ImageNet stem would leave 32 x 32 images as
8 x 8 before the first block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.errors import UserError

# Below 8 channels, oneDNN's backward pass of a strided 1x1 convolution in channels_last writes
# outside its memory (torch 2.13 on AVX2): the process dies at random.
NARROWEST = 8


class BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = _shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y.add_(self.shortcut(x)), inplace=True)


class Bottleneck(nn.Module):
    """Three convolutions, the second in a quarter of the channels; it, not the first, strides."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        inner = channels // 4
        self.conv1 = nn.Conv2d(channels_in, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.shortcut = _shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y.add_(self.shortcut(x)), inplace=True)


def _shortcut(channels_in: int, channels: int, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
    )


class ResNet(nn.Module):
    """Images [N, C, H, W] to features [N, features] after average pooling; no classifier."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        channels: int,
        width: int,
        stem: str,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
    ) -> None:
        super().__init__()
        if width < NARROWEST:
            raise UserError(f"network.width = {width}: a ResNet needs {NARROWEST} or more channels")
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.pool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        stages, channels_in = [], width
        for stage, count in enumerate(blocks):
            out, stride = width * 2**stage, 1 if stage == 0 else 2
            out *= 4 if block is Bottleneck else 1
            first = block(channels_in, out, stride)
            stages.append(nn.Sequential(first, *(block(out, out, 1) for _ in range(count - 1))))
            channels_in = out
        self.stages = nn.Sequential(*stages)
        self.features = channels_in
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return torch.flatten(F.adaptive_avg_pool2d(self.stages(x), 1), 1)


def resnet50(channels: int, width: int, stem: str) -> ResNet:
    return ResNet((3, 4, 6, 3), channels, width, stem, Bottleneck)


def resnet34(channels: int, width: int, stem: str) -> ResNet:
    return ResNet((3, 4, 6, 3), channels, width, stem)


def resnet18(channels: int, width: int, stem: str) -> ResNet:
    return ResNet((2, 2, 2, 2), channels, width, stem)


def resnet10(channels: int, width: int, stem: str) -> ResNet:
    return ResNet((1, 1, 1, 1), channels, width, stem)


def resnet8(channels: int, width: int, stem: str) -> ResNet:
    return ResNet((1, 1, 1), channels, width, stem)
