"""DenseNet-BC for small images (Huang et al. 2017), as in bearpaw/pytorch-classification."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from momentex.models.cifar.stages import blocks_per_stage, check_counts, conv, initialise_convolutions_, pooled

BOTTLENECK = 4  # the 1×1 convolution has this many times the channels that a layer adds


def dense_layer(in_channels: int, growth_rate: int) -> nn.Sequential:
    """conv3×3(relu(bn(conv1×1(relu(bn(x)))))): the `growth_rate` channels that a layer adds to what it sees."""
    inside = BOTTLENECK * growth_rate
    steps: OrderedDict[str, nn.Module] = OrderedDict(
        bn1=nn.BatchNorm2d(in_channels),
        relu1=nn.ReLU(),
        conv1=conv(in_channels, inside, 1),
        bn2=nn.BatchNorm2d(inside),
        relu2=nn.ReLU(),
        conv2=conv(inside, growth_rate, 3),
    )
    return nn.Sequential(steps)


class DenseBlock(nn.Module):
    """Layers each of which sees the block's input and what all layers before it have added."""

    def __init__(self, in_channels: int, growth_rate: int, layers: int, use_checkpoint: bool) -> None:
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.layers = nn.ModuleList(dense_layer(in_channels + i * growth_rate, growth_rate) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            if self.use_checkpoint and torch.is_grad_enabled():
                features.append(recomputed(layer, features))
            else:
                features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def recomputed(layer: nn.Module, features: list[Tensor]) -> Tensor:
    """layer(cat(features)), bit for bit, of which only the result is kept: backward computes the rest again.

    The second run must not move BatchNorm's running statistics a second time. So what is run twice is a pure function,
    (features, statistics) to (result, statistics), and the buffers get its statistics once, after the first run.
    """
    names = [name for name, _ in layer.named_buffers()]
    seen = len(features)  # now: until backward the list grows

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        after = {name: buffer.clone() for name, buffer in zip(names, inputs[seen:], strict=True)}
        return functional_call(layer, after, (torch.cat(inputs[:seen], 1),)), *after.values()

    # Copies here too: checkpoint keeps its inputs, and finds out if they are written to before backward.
    before = [buffer.clone() for buffer in layer.buffers()]
    result, *after = checkpoint(run, *features, *before, use_reentrant=False)
    for buffer, value in zip(layer.buffers(), after, strict=True):
        buffer.copy_(value)
    return result


class Transition(nn.Module):
    """Between two blocks: BN, ReLU, a 1×1 convolution to half of the channels, and the mean of 2×2 positions."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = conv(in_channels, in_channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """A bare convolution; `dense1`, `transition1`, `dense2`, `transition2`, `dense3`; BN, ReLU, pooling, linear."""

    def __init__(self, layers: int, growth_rate: int, num_classes: int, in_channels: int, use_checkpoint: bool) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, in_channels=in_channels, growth_rate=growth_rate)
        added, width = layers * growth_rate, 2 * growth_rate
        self.conv1 = conv(in_channels, width, 3)
        self.dense1 = DenseBlock(width, growth_rate, layers, use_checkpoint)
        self.transition1 = Transition(width + added)
        width = (width + added) // 2
        self.dense2 = DenseBlock(width, growth_rate, layers, use_checkpoint)
        self.transition2 = Transition(width + added)
        width = (width + added) // 2
        self.dense3 = DenseBlock(width, growth_rate, layers, use_checkpoint)
        self.bn = nn.BatchNorm2d(width + added)
        self.fc = nn.Linear(width + added, num_classes)
        initialise_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        h = self.transition1(self.dense1(self.conv1(x)))
        h = self.transition2(self.dense2(h))
        return self.fc(pooled(F.relu(self.bn(self.dense3(h)))))


def densenet_bc(
    depth: int, growth_rate: int, num_classes: int = 10, in_channels: int = 3, use_checkpoint: bool = False
) -> DenseNet:
    """The DenseNet-BC of `depth` = 6n + 4 layers, of which each adds `growth_rate` (the paper's k) channels.

    With `use_checkpoint`, the layers inside of the blocks are computed again in backward, in place of being remembered.

    >>> import torch
    >>> densenet_bc(10, growth_rate=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers = blocks_per_stage("densenet_bc", depth, layers=6, outside=4)
    return DenseNet(layers, growth_rate, num_classes, in_channels, use_checkpoint)


def densenet_bc_100(num_classes: int = 10, in_channels: int = 3, use_checkpoint: bool = False) -> DenseNet:
    """DenseNet-BC-100 (k = 12) of the paper's CIFAR table."""
    return densenet_bc(100, 12, num_classes, in_channels, use_checkpoint)


def densenet_bc_190(num_classes: int = 10, in_channels: int = 3, use_checkpoint: bool = False) -> DenseNet:
    """DenseNet-BC-190 (k = 40) of the paper's CIFAR table."""
    return densenet_bc(190, 40, num_classes, in_channels, use_checkpoint)
