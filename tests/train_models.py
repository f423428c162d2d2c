"""Models as users write them, which the tests of training name by path: `MODELS:function`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from momentex.models.cifar.resnet import resnet


def dropping(num_classes: int) -> nn.Module:
    """A ResNet of depth 8 for one channel, behind dropout, which draws from torch's own generator."""
    body = resnet(8, num_classes, in_channels=1, width=4)
    return nn.Sequential(OrderedDict(drop=nn.Dropout(0.2), resnet=body))


class Small(nn.Module):
    """A stem, a stage and a head, without BatchNorm: samples do not depend on each other."""

    def __init__(self, num_classes: int, channels: int = 1, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.stage = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.Tanh())
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage(self.stem(x)).mean((2, 3)))


def small(num_classes: int, channels: int = 1) -> nn.Module:
    return Small(num_classes, channels)


class Tied(Small):
    """Two names for one parameter, and for one buffer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.again = nn.Linear(8, num_classes)
        self.again.weight = self.head.weight
        self.register_buffer("shift", torch.zeros(num_classes))
        self.register_buffer("same_shift", self.shift)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stage(self.stem(x)).mean((2, 3))
        return self.head(h) + self.again(h) + self.same_shift


def tied(num_classes: int) -> nn.Module:
    return Tied(num_classes)


class Frozen(nn.Module):
    """A ResNet for one channel whose BatchNorm never looks at a batch."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.resnet = resnet(8, num_classes, in_channels=1, width=4)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.resnet(x)


def frozen(num_classes: int) -> nn.Module:
    return Frozen(num_classes)


def always_ten(channels: int = 1) -> nn.Module:
    """Takes no num_classes."""
    return Small(10, channels)


class Unused(Small):
    """Its layer `spare` is never called."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.spare = nn.Conv2d(8, 8, 1)


def unused(num_classes: int) -> nn.Module:
    return Unused(num_classes)


class Dictionary(Small):
    """Returns a dict in train mode."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"logits": logits} if self.training else logits


def dictionary(num_classes: int) -> nn.Module:
    return Dictionary(num_classes)


class Remembering(Small):
    """Has extra state: of a kind that a checkpoint holds, or not."""

    def __init__(self, num_classes: int, kind: str) -> None:
        super().__init__(num_classes)
        self.kind, self.calls = kind, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "seen": (torch.tensor(self.calls), None)} if self.kind == "plain" else b"bytes"

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]
        assert int(state["seen"][0]) == self.calls


def remembering(num_classes: int, kind: str = "plain") -> nn.Module:
    return Remembering(num_classes, kind)


def normed(num_classes: int) -> nn.Module:
    """BatchNorm over the batch alone: a batch of one has no variance."""
    head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, num_classes))
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class Overflowing(Small):
    """Finite outputs, and gradients that are not: the root of zero."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.head.weight * 0).abs().sqrt().sum()


def overflowing(num_classes: int) -> nn.Module:
    return Overflowing(num_classes)
