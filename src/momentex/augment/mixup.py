"""mixup: images are averaged with those of a partner, and so are their targets (Zhang et al., ICLR 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from momentex.augment.drawing import At, as_targets, check_partners, one_by_one, partners, planned
from momentex.augment.values import Mixup
from momentex.errors import FeatureError
from momentex.targets import Targets, Weight, checked_lam


def mixup(x: Tensor, targets: Tensor | Targets, *, index: Tensor, lam: float | Tensor) -> tuple[Tensor, Targets]:
    """x_i ← λ x_i + (1 − λ) x_index[i], and t_i likewise. λ: a number or (batch,). x is not written to.

    >>> import torch
    >>> x, targets = mixup(torch.tensor([[0.0], [8.0]]), torch.tensor([0, 1]), index=torch.tensor([1, 0]), lam=0.75)
    >>> x.flatten(), targets
    (tensor([2., 6.]), Targets(0.75 · torch.int64 (2,) + 0.25 · torch.int64 (2,)))
    """
    targets = as_targets(targets, x)
    check_partners(index, len(x))
    return _mixed(x, targets, index, checked_lam(lam, len(x)))


def _mixed(x: Tensor, targets: Targets, index: Tensor, weight: Weight) -> tuple[Tensor, Targets]:
    """`mixup` with partners and λ that were looked at, or drawn here."""
    if not x.is_floating_point():
        raise FeatureError(f"x is {x.dtype}; averages need floating-point images: normalise them first.")
    index = index.to(x.device, non_blocking=True)  # once: images and labels are usually on one device
    mixed = targets.mixed_as_checked(index, weight)
    if isinstance(weight, float) and weight == 1.0:
        return x, mixed
    if isinstance(weight, Tensor):
        weight = weight.to(x.device, x.dtype, non_blocking=True).view(-1, *[1] * (x.ndim - 1))
    # x + (1 − λ)(x[index] − x): exact where λ is 1 or the partner oneself
    if one_by_one(x):
        return _averaged(x, index, weight), mixed
    return partners(x, index).lerp_(x, weight), mixed  # written into the partners, which are a copy


def _averaged(x: Tensor, index: Tensor, weight: Weight) -> Tensor:
    """One image after the other, without a copy of the partners."""
    mixed, images = torch.empty_like(x), x.unbind()
    weights = weight.flatten().tolist() if isinstance(weight, Tensor) else [weight] * len(x)
    for image, own, partner, lam in zip(mixed.unbind(), images, index.tolist(), weights, strict=True):
        torch.lerp(images[partner], own, lam, out=image)
    return mixed


def drawn(how: Mixup, x: Tensor, targets: Tensor | Targets, at: At, index: Tensor | None) -> tuple[Tensor, Targets]:
    """`mixup` with what is drawn for this step."""
    targets = as_targets(targets, x)
    plan = planned(how, at, targets, index)
    return _mixed(x, targets, plan.index, plan.lam) if plan.on else (x, targets)
