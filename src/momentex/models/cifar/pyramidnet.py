"""PyramidNet (Han et al. 2017): channels grow in every block; as in clovaai/CutMix-PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from momentex.errors import OutOfRange
from momentex.models.cifar.stages import (
    Branch,
    blocks_per_stage,
    branches,
    check_counts,
    conv,
    initialise_convolutions_,
    nothing_on_the_branch,
    pooled,
)

STEM = 16  # channels
EXPANSION = 4  # of a bottleneck block


def padded(x: Tensor, channels: int, stride: int) -> Tensor:
    """The shortcut, which has no parameters: the mean of 2×2 positions at stride 2, and zeros as further channels."""
    if stride > 1:
        # An odd last row or column counts as the convolution beside counts it: by itself.
        x = F.avg_pool2d(x, stride, ceil_mode=True)
    return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))


class BasicBlock(nn.Module):
    """x + bn(conv(relu(bn(conv(bn(x)))))): BatchNorm at both ends, no ReLU there."""

    def __init__(self, in_channels: int, channels: int, stride: int, branch: nn.Module) -> None:
        super().__init__()
        self.stride, self.out_channels = stride, channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        self.bn3 = nn.BatchNorm2d(channels)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.bn1(x))
        h = self.bn3(self.conv2(F.relu(self.bn2(h))))
        return self.branch(h) + padded(x, self.out_channels, self.stride)


class Bottleneck(nn.Module):
    """x + bn(1×1(relu(bn(3×3(relu(bn(1×1(bn(x))))))))): BatchNorm at both ends, no ReLU there."""

    def __init__(self, in_channels: int, channels: int, stride: int, branch: nn.Module) -> None:
        super().__init__()
        self.stride, self.out_channels = stride, EXPANSION * channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, channels, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride)
        self.bn3 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, self.out_channels, 1)
        self.bn4 = nn.BatchNorm2d(self.out_channels)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.bn1(x))
        h = self.conv2(F.relu(self.bn2(h)))
        h = self.bn4(self.conv3(F.relu(self.bn3(h))))
        return self.branch(h) + padded(x, self.out_channels, self.stride)


def channels_of_blocks(blocks: int, alpha: float) -> list[int]:
    """Channels of each of `blocks` blocks: 16 plus equal steps that add up to alpha, each rounded.

    >>> channels_of_blocks(6, alpha=15)
    [18, 21, 24, 26, 28, 31]
    """
    channels: list[int] = []
    exact = float(STEM)
    for _ in range(blocks):
        exact += alpha / blocks
        channels.append(round(exact))
    return channels


class PyramidNet(nn.Module):
    """Stem conv and BN without ReLU; stages `layer1` to `layer3`; BN, ReLU, pooling, linear."""

    def __init__(
        self,
        blocks: int,
        alpha: float,
        bottleneck: bool,
        num_classes: int,
        in_channels: int,
        branch: Branch,
    ) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, in_channels=in_channels)
        if not alpha >= 0:
            raise OutOfRange(f"alpha is {alpha!r}; it is how many channels are added in all, 0 or more.")
        inside = channels_of_blocks(3 * blocks, alpha)
        outside = [STEM, *((EXPANSION if bottleneck else 1) * channels for channels in inside)]
        block = Bottleneck if bottleneck else BasicBlock
        all_blocks = [
            block(seen, channels, 2 if i in (blocks, 2 * blocks) else 1, on_branch)
            for i, (channels, (seen, _), on_branch) in enumerate(
                zip(inside, pairwise(outside), branches(branch, 3 * blocks), strict=True)
            )
        ]
        self.conv1 = conv(in_channels, STEM, 3)
        self.bn1 = nn.BatchNorm2d(STEM)
        self.layer1 = nn.Sequential(*all_blocks[:blocks])
        self.layer2 = nn.Sequential(*all_blocks[blocks : 2 * blocks])
        self.layer3 = nn.Sequential(*all_blocks[2 * blocks :])
        self.bn = nn.BatchNorm2d(outside[-1])
        self.fc = nn.Linear(outside[-1], num_classes)
        initialise_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)))))
        return self.fc(pooled(F.relu(self.bn(h))))


def pyramidnet(
    depth: int,
    alpha: float,
    num_classes: int = 10,
    in_channels: int = 3,
    bottleneck: bool = True,
    branch: Branch = nothing_on_the_branch,
) -> PyramidNet:
    """The PyramidNet of `depth` = 9n + 2 layers (6n + 2 without bottlenecks) that adds `alpha` channels in all.

    `branch(block, blocks)` makes what the residual branch of each block goes through before it is added.

    >>> import torch
    >>> pyramidnet(11, alpha=6)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    blocks = blocks_per_stage("pyramidnet", depth, layers=9 if bottleneck else 6, outside=2)
    return PyramidNet(blocks, alpha, bottleneck, num_classes, in_channels, branch)


def pyramidnet_200(num_classes: int = 10, in_channels: int = 3, branch: Branch = nothing_on_the_branch) -> PyramidNet:
    """PyramidNet-200 (α̃ = 240, bottlenecks) of the paper's CIFAR tables."""
    return pyramidnet(200, 240, num_classes, in_channels, branch=branch)
