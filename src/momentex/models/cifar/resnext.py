"""ResNeXt for small images (Xie et al. 2017), as in bearpaw/pytorch-classification."""

from __future__ import annotations

from functools import partial

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

STEM, EXPANDED = 64, 256  # channels of the stem, and of the first stage's blocks


class Bottleneck(nn.Module):
    """relu(x + bn(1×1(relu(bn(3×3 in groups(relu(bn(1×1(x)))))))) with `width` channels in each of the groups.

    `width` is that of the first stage; like the channels outside, it doubles with every stage.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, branch: nn.Module, cardinality: int, width: int
    ) -> None:
        super().__init__()
        inside = cardinality * width * out_channels // EXPANDED
        self.conv1 = conv(in_channels, inside, 1)
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv2 = conv(inside, inside, 3, stride, groups=cardinality)
        self.bn2 = nn.BatchNorm2d(inside)
        self.conv3 = conv(inside, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut = shortcut(in_channels, out_channels, stride)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.branch(self.bn3(self.conv3(h))) + self.shortcut(x))


class ResNeXt(nn.Module):
    """Stem conv, BN, ReLU; stages `layer1` to `layer3` of 256, 512 and 1024 channels; pooling; linear."""

    def __init__(
        self, blocks: int, cardinality: int, width: int, num_classes: int, in_channels: int, branch: Branch
    ) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, in_channels=in_channels, cardinality=cardinality, width=width)
        block = partial(Bottleneck, cardinality=cardinality, width=width)
        self.conv1 = conv(in_channels, STEM, 3)
        self.bn1 = nn.BatchNorm2d(STEM)
        on_branches = branches(branch, 3 * blocks)
        self.layer1 = stage(block, STEM, EXPANDED, blocks, 1, on_branches)
        self.layer2 = stage(block, EXPANDED, 2 * EXPANDED, blocks, 2, on_branches)
        self.layer3 = stage(block, 2 * EXPANDED, 4 * EXPANDED, blocks, 2, on_branches)
        self.fc = nn.Linear(4 * EXPANDED, num_classes)
        # The only family whose source draws the classifier too: N(0, 2 / in), and no bias to begin with.
        nn.init.kaiming_normal_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        initialise_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.fc(pooled(h))


def resnext(
    depth: int,
    cardinality: int,
    width: int = 64,
    num_classes: int = 10,
    in_channels: int = 3,
    branch: Branch = nothing_on_the_branch,
) -> ResNeXt:
    """The ResNeXt of `depth` = 9n + 2 layers with `cardinality` groups of `width` channels in its first stage.

    `branch(block, blocks)` makes what the residual branch of each block goes through before it is added.

    >>> import torch
    >>> resnext(11, cardinality=2, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    blocks = blocks_per_stage("resnext", depth, layers=9, outside=2)
    return ResNeXt(blocks, cardinality, width, num_classes, in_channels, branch)


def resnext29_8x64d(num_classes: int = 10, in_channels: int = 3, branch: Branch = nothing_on_the_branch) -> ResNeXt:
    """ResNeXt-29 (8×64d) of the paper's CIFAR table."""
    return resnext(29, 8, 64, num_classes, in_channels, branch)
