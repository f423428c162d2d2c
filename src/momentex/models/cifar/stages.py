"""What the five families share: three stages of equally many blocks, how they start, how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from momentex.errors import OutOfRange

Branch = Callable[[int, int], nn.Module]


def nothing_on_the_branch(block: int, blocks: int) -> nn.Module:
    """The residual branch as it is."""
    return nn.Identity()


def branches(branch: Branch, blocks: int) -> Iterator[nn.Module]:
    """What the residual branch of each block of a model goes through before it is added, in the blocks' order.

    `branch(block, blocks)` makes it, for the block of that number (from 0 on) of so many: the place of ShakeDrop and
    stochastic depth.
    """
    return (branch(block, blocks) for block in range(blocks))


def blocks_per_stage(family: str, depth: int, layers: int, outside: int) -> int:
    """n of depth = layers · n + outside, where `layers` is what one block in each of the three stages adds.

    >>> blocks_per_stage("resnet", 110, layers=6, outside=2)
    18
    """
    whole = isinstance(depth, int)
    if not whole or depth < layers + outside or (depth - outside) % layers:
        n = max(1, (depth - outside) // layers) if whole else 1
        near = f" Near it are {layers * n + outside} and {layers * (n + 1) + outside}." if whole else ""
        raise OutOfRange(
            f"depth is {depth!r}; three stages of n blocks make {layers}n + {outside} layers of a {family}, with n a "
            f"whole number from 1 on.{near}"
        )
    return (depth - outside) // layers


def check_counts(**counts: int) -> None:
    """Each is a whole number from 1 on."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise OutOfRange(f"{name} is {value!r}; it must be a whole number from 1 on.")


def conv(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps height and width at stride 1, without a bias: BatchNorm has one."""
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False)


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Around a block: nothing where the shape stays, else a 1×1 convolution and BatchNorm."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


def stage(
    block: Callable[[int, int, int, nn.Module], nn.Module],
    in_channels: int,
    out_channels: int,
    blocks: int,
    stride: int,
    on_branches: Iterator[nn.Module],
) -> nn.Sequential:
    """`blocks` blocks (in_channels, out_channels, stride, branch); the first of them changes the shape."""
    first = block(in_channels, out_channels, stride, next(on_branches))
    return nn.Sequential(first, *(block(out_channels, out_channels, 1, next(on_branches)) for _ in range(blocks - 1)))


def pooled(h: Tensor) -> Tensor:
    """(batch, channels, height, width) to (batch, channels): the mean of all positions, however many there are."""
    return F.adaptive_avg_pool2d(h, 1).flatten(1)


def initialise_convolutions_(model: nn.Module) -> None:
    """Weights of every convolution, in groups or not, from N(0, 2 / (k · k · out_channels)), as both sources do.

    BatchNorm, which they set to 1 and 0, torch has come to make so by itself.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
