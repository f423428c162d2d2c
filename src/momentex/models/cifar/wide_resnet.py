"""Wide ResNet (Zagoruyko and Komodakis 2016), as in bearpaw/pytorch-classification."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from momentex.errors import check_fraction
from momentex.models.cifar.stages import (
    Branch,
    blocks_per_stage,
    branches,
    check_counts,
    conv,
    initialise_convolutions_,
    nothing_on_the_branch,
    pooled,
    stage,
)

STEM = 16  # channels


class PreActivationBlock(nn.Module):
    """x + conv(dropout(relu(bn(conv(relu(bn(x))))))).

    Where the number of channels changes, the shortcut is a bare 1×1 convolution of relu(bn(x)) in place of x.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, branch: nn.Module, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.shortcut = None if in_channels == out_channels else conv(in_channels, out_channels, 1, stride)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        h = self.dropout(F.relu(self.bn2(self.conv1(activated))))
        return self.branch(self.conv2(h)) + (x if self.shortcut is None else self.shortcut(activated))


class WideResNet(nn.Module):
    """Stem: a bare convolution; stages `layer1` to `layer3` of `widen` · (16, 32, 64) channels; BN, ReLU, linear."""

    def __init__(
        self, blocks: int, widen: int, dropout: float, num_classes: int, in_channels: int, branch: Branch
    ) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, in_channels=in_channels, widen=widen)
        block = partial(PreActivationBlock, dropout=check_fraction("dropout", dropout))
        width = STEM * widen
        self.conv1 = conv(in_channels, STEM, 3)
        on_branches = branches(branch, 3 * blocks)
        self.layer1 = stage(block, STEM, width, blocks, 1, on_branches)
        self.layer2 = stage(block, width, 2 * width, blocks, 2, on_branches)
        self.layer3 = stage(block, 2 * width, 4 * width, blocks, 2, on_branches)
        self.bn = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(4 * width, num_classes)
        initialise_convolutions_(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(pooled(F.relu(self.bn(h))))


def wide_resnet(
    depth: int,
    widen: int,
    dropout: float = 0.0,
    num_classes: int = 10,
    in_channels: int = 3,
    branch: Branch = nothing_on_the_branch,
) -> WideResNet:
    """The Wide ResNet of `depth` = 6n + 4 layers, `widen` times as wide as a ResNet.

    `branch(block, blocks)` makes what the residual branch of each block goes through before it is added.

    >>> import torch
    >>> wide_resnet(10, widen=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    blocks = blocks_per_stage("wide_resnet", depth, layers=6, outside=4)
    return WideResNet(blocks, widen, dropout, num_classes, in_channels, branch)


def wrn_28_10(
    num_classes: int = 10, in_channels: int = 3, dropout: float = 0.0, branch: Branch = nothing_on_the_branch
) -> WideResNet:
    """WRN-28-10 of the paper's CIFAR table, which does not say whether dropout was on; its source trains with 0.3."""
    return wide_resnet(28, 10, dropout, num_classes, in_channels, branch)
