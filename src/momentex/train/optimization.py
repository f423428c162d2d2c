"""Optimizer and learning rate of a recipe, in torch.optim's terms."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as lr

from momentex.train import recipe as parts


def make_optimizer(model: nn.Module, optimizer: parts.Optimizer) -> torch.optim.Optimizer:
    """torch's optimizer for all parameters that learn."""
    learning = [p for p in model.parameters() if p.requires_grad]
    if isinstance(optimizer, parts.SGD):
        return torch.optim.SGD(
            learning,
            optimizer.lr,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            weight_decay=optimizer.weight_decay,
        )
    kind = torch.optim.AdamW if optimizer.decoupled else torch.optim.Adam
    return kind(learning, optimizer.lr, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay)


class LearningRate:
    """The schedule of a recipe: one part moves after every step, and a plateau after every evaluation.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> rate = LearningRate(optimizer, parts.Steps(milestones=(2,), gamma=0.5), epochs=3, steps=2)
    >>> [(optimizer.step(), rate.after_step())[1] for _ in range(6)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: parts.Schedule, *, epochs: int, steps: int) -> None:
        self._optimizer = optimizer
        self._warmup = _warmup(schedule, steps)
        self._moving = _moving(optimizer, schedule, epochs * steps, steps, self._warmup)
        self._plateau = (
            lr.ReduceLROnPlateau(optimizer, factor=schedule.gamma, patience=schedule.patience)
            if isinstance(schedule, parts.Plateau)
            else None
        )

    @property
    def now(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> float:
        """To be called after every step: the rate of the next one."""
        if getattr(self._optimizer, "_opt_called", False):
            self._moving.step()
        else:  # in float16 the scaler leaves out first steps, and torch thinks that somebody forgot them
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self._moving.step()
        return self.now

    def after_evaluation(self, nll: float) -> None:
        """To be called after every evaluation. A plateau is not looked for while the rate still rises."""
        if self._plateau is not None and self._moving.last_epoch >= self._warmup:
            self._plateau.step(nll)

    def state_dict(self) -> dict[str, Any]:
        return {"moving": self._moving.state_dict(), "plateau": self._plateau and self._plateau.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._moving.load_state_dict(state["moving"])
        for part in (self._moving, *getattr(self._moving, "_schedulers", ())):
            if isinstance(part, lr.MultiStepLR):
                part.milestones = Counter(part.milestones)
        if self._plateau is not None:
            self._plateau.load_state_dict(state["plateau"])


def _warmup(schedule: parts.Schedule, steps: int) -> int:
    """How many steps the rate rises; one step has nothing to rise over."""
    rising = 0 if isinstance(schedule, parts.InverseSqrt) else round(schedule.warmup_epochs * steps)
    return rising if rising > 1 else 0


def _moving(
    optimizer: torch.optim.Optimizer, schedule: parts.Schedule, total: int, steps: int, warmup: int
) -> lr.LRScheduler:
    """What moves after each of `total` steps, of which an epoch has `steps`."""
    if isinstance(schedule, parts.InverseSqrt):
        rising = schedule.warmup_steps
        return lr.LambdaLR(optimizer, lambda step: min((step + 1) / rising, (rising / (step + 1)) ** 0.5))
    if not warmup:
        return _main(optimizer, schedule, total, steps, 0)
    rise = lr.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    main = _main(optimizer, schedule, total - warmup, steps, warmup)
    return lr.SequentialLR(optimizer, [rise, main], milestones=[warmup])


def _main(
    optimizer: torch.optim.Optimizer, schedule: parts.Schedule, total: int, steps: int, warmup: int
) -> lr.LRScheduler:
    """What follows the warm-up, for `total` steps."""
    if isinstance(schedule, parts.Steps):
        return lr.MultiStepLR(optimizer, [m * steps - warmup for m in schedule.milestones], schedule.gamma)
    if isinstance(schedule, parts.Cosine):
        # the last step, number total − 1, is taken at final_lr
        return lr.CosineAnnealingLR(optimizer, max(1, total - 1), schedule.final_lr)
    return lr.ConstantLR(optimizer, factor=1.0, total_iters=0)
