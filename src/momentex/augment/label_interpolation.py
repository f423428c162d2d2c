"""Label interpolation only: targets are mixed as by Moment Exchange, and nothing else is (the paper's control)."""

from __future__ import annotations

from torch import Tensor

from momentex.augment.drawing import At, as_targets, planned
from momentex.augment.values import LabelInterpolation
from momentex.targets import Targets


def drawn(
    how: LabelInterpolation, x: Tensor, targets: Tensor | Targets, at: At, index: Tensor | None
) -> tuple[Tensor, Targets]:
    """x as it is, and targets mixed with what is drawn for this step."""
    targets = as_targets(targets, x)
    plan = planned(how, at, targets, index)
    return x, targets.mixed_as_checked(plan.index, plan.lam) if plan.on else targets
