"""A training step of CIFAR's ResNet-20 at p = 1, with and without the exchange."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import interleaved
from benchmarks.published import algorithm_1
from momentex import MomentExchange

SETTINGS = {
    "float32 NCHW": (torch.float32, torch.contiguous_format),
    "bfloat16 autocast, channels_last": (torch.bfloat16, torch.channels_last),
}


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet20(nn.Module):
    """The 3-stage ResNet of He et al. (2015) for CIFAR, 272,474 parameters with 10 classes."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


class PublishedHook:
    """Algorithm 1 where ours acts: the comparison is of the operator and of two losses, not of where it sits."""

    def __init__(self) -> None:
        self.index: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return None if self.index is None else (algorithm_1(args[0], self.index, (1,)),)


class Trainer:
    """One model, one batch, one optimizer: `plain`, `published` and `ours` are a whole step each."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format, batch: int
    ) -> None:
        torch.manual_seed(0)
        self.device, self.dtype = device, dtype
        self.model = ResNet20().to(device).to(memory_format=memory_format)
        self.x = torch.randn(batch, 3, 32, 32, device=device).contiguous(memory_format=memory_format)
        self.y = torch.randint(10, (batch,), device=device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.published_hook = PublishedHook()
        self.model.layer1.register_forward_pre_hook(self.published_hook)
        self.moex = {c: MomentExchange(self.model, "layer1", lam=0.9, p=1.0, compiled=c) for c in (False, True)}

    def plain(self) -> None:
        self._finish(F.cross_entropy(self._logits(), self.y))

    def published(self) -> None:
        index = torch.randperm(len(self.y), device=self.device)
        self.published_hook.index = index
        logits = self._logits()
        self.published_hook.index = None
        self._finish(0.9 * F.cross_entropy(logits, self.y) + 0.1 * F.cross_entropy(logits, self.y[index]))

    def ours(self, compiled: bool) -> None:
        with self.moex[compiled](self.y) as targets:
            loss = targets.cross_entropy(self._logits())
        self._finish(loss)

    def _logits(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.model(self.x)

    def _finish(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure(device: torch.device, *, rounds: int, batch: int = 128) -> list[dict[str, Any]]:
    """Overhead over the plain step, as ratios within a round; `plain again` shows what the measurement can tell."""
    rows = []
    for name, (dtype, memory_format) in SETTINGS.items():
        torch.compiler.reset()
        trainer = Trainer(device, dtype, memory_format, batch)
        variants = {
            "plain": trainer.plain,
            "algorithm_1": trainer.published,
            "eager": partial(trainer.ours, False),
            "compiled": partial(trainer.ours, True),
            "plain again": trainer.plain,
        }
        timing = interleaved(
            variants, gate="plain", rounds=rounds, device=device, repeat=5 if device.type == "cuda" else 1
        )
        overhead = {n: {k: v - 1 for k, v in timing.ratio(n, "plain").items()} for n in variants if n != "plain"}
        rows.append(
            {
                "setting": name,
                "batch": batch,
                "counted": timing.counted,
                "idle_ratio": timing.idle_ratio,
                "milliseconds": {n: timing.median(n) * 1000 for n in variants},
                "overhead": overhead,
            }
        )
    return rows
