"""ResNet-50 in plain torch, the "v1.5" that everybody trains: the stride of a bottleneck sits in its 3x3 convolution.

Names and order of the parameters are torchvision's (``torchvision/models/resnet.py``), so weights fit both
ways. 25,557,032 parameters with 1,000 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARAMETERS = 25_557_032

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first
_EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut.

    Args:
        channels: Of the input.
        width: Of the middle; the output is four times as wide.
        stride: Of the middle.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * _EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block.

        Args:
            x: Feature maps.

        Returns:
            Feature maps, four times ``width`` channels.
        """
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += shortcut
        activated: Tensor = self.relu(y)
        return activated


class ResNet50(nn.Module):
    """The network.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, layers = 64, []
        for width, blocks, stride in _STAGES:
            layers.append(_stage(channels, width, blocks, stride))
            channels = width * _EXPANSION
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: ``(batch, 3, height, width)``.

        Returns:
            ``(batch, classes)``, not normalised.
        """
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(width * _EXPANSION, width, 1) for _ in range(blocks - 1)))
