"""ResNet for small images: three stages of basic blocks (He et al. 2016), as in bearpaw/pytorch-classification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from momentex.models.cifar.stages import (
    Branch,
    blocks_per_stage,
    branches,
    check_counts,
    conv,
    initialise_convolutions_,
    nothing_on_the_branch,
    pooled,
    shortcut,
    stage,
)


class BasicBlock(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))); a 1×1 convolution and BatchNorm on x where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, branch: nn.Module) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = shortcut(in_channels, out_channels, stride)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.branch(self.bn2(self.conv2(h))) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem conv, BN, ReLU; stages `layer1` to `layer3` of 1, 2 and 4 times `width` channels; pooling; linear."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int, width: int, branch: Branch) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, in_channels=in_channels, width=width)
        on_branches = branches(branch, 3 * blocks)
        self.conv1 = conv(in_channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(BasicBlock, width, width, blocks, 1, on_branches)
        self.layer2 = stage(BasicBlock, width, 2 * width, blocks, 2, on_branches)
        self.layer3 = stage(BasicBlock, 2 * width, 4 * width, blocks, 2, on_branches)
        self.fc = nn.Linear(4 * width, num_classes)
        initialise_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.fc(pooled(h))


def resnet(
    depth: int,
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 16,
    branch: Branch = nothing_on_the_branch,
) -> ResNet:
    """The ResNet of `depth` = 6n + 2 layers whose first stage has `width` channels.

    `branch(block, blocks)` makes what the residual branch of each block goes through before it is added.

    >>> import torch
    >>> resnet(8, in_channels=1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    return ResNet(blocks_per_stage("resnet", depth, layers=6, outside=2), num_classes, in_channels, width, branch)


def resnet20(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, branch: Branch = nothing_on_the_branch
) -> ResNet:
    """ResNet-20.

    >>> sum(p.numel() for p in resnet20().parameters())
    272474
    """
    return resnet(20, num_classes, in_channels, width, branch)


def resnet56(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, branch: Branch = nothing_on_the_branch
) -> ResNet:
    """ResNet-56."""
    return resnet(56, num_classes, in_channels, width, branch)


def resnet110(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, branch: Branch = nothing_on_the_branch
) -> ResNet:
    """ResNet-110 (3-stage), the model of the paper's CIFAR table and of its ablations."""
    return resnet(110, num_classes, in_channels, width, branch)
