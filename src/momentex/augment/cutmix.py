"""CutMix: a box of the partner is pasted, and targets are mixed by its area (Yun et al., ICCV 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from momentex.augment.drawing import (
    At,
    Boxes,
    around,
    around_one,
    as_targets,
    centres,
    check_boxes,
    check_images,
    check_partners,
    inside,
    partners,
    planned,
)
from momentex.augment.values import CutMix
from momentex.pairing import CPU, Beta
from momentex.targets import Targets


def cutmix(
    x: Tensor, targets: Tensor | Targets, *, index: Tensor, box: Boxes, inplace: bool = False
) -> tuple[Tensor, Targets]:
    """x_i ← x_index[i] inside of the box, x_i outside; t_i ← λ t_i + (1 − λ) t_index[i], 1 − λ being the box's share of
    the image. `box` is one for all images, or (batch, 4). x is written to if `inplace`, and is copied
    otherwise.

    >>> from momentex.augment.drawing import Box
    >>> x = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    >>> x, targets = cutmix(x, torch.tensor([0, 1]), index=torch.tensor([1, 0]), box=Box(0, 1, 0, 2))
    >>> x[0], targets.terms[0].weight
    (tensor([[[1., 1.],
             [0., 0.]]]), 0.5)
    """
    targets = as_targets(targets, x)
    check_partners(index, len(x))
    check_boxes(box, x)
    height, width = check_images(x)
    index = index.to(x.device, non_blocking=True)  # once: images and labels are usually on one device
    if isinstance(box, Tensor):
        area = (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2])
        pasted = torch.where(inside(box, x), partners(x, index), x)
        return pasted, targets.mixed_with(index, 1 - area.float() / (height * width))
    if box.area == 0:
        return x, targets
    window = (..., slice(box.top, box.bottom), slice(box.left, box.right))
    patch = partners(x[window], index)
    pasted = x if inplace else x.clone()
    pasted[window] = patch
    return pasted, targets.mixed_with(index, 1 - box.area / (height * width))


def drawn(
    how: CutMix, x: Tensor, targets: Tensor | Targets, at: At, index: Tensor | None, inplace: bool
) -> tuple[Tensor, Targets]:
    """`cutmix` with what is drawn for this step."""
    targets = as_targets(targets, x)
    height, width = check_images(x)
    plan = planned(Beta(how.alpha, per=how.per), how.p, how.per, how.pairs, at, targets, index)
    if not plan.on:
        return x, targets
    centre = centres(height, width, how.per, len(x), at)
    if isinstance(plan.lam, Tensor):
        box: Boxes = around(centre, sides(plan.lam, height, width), height, width)
    else:
        ratio = (1 - plan.lam) ** 0.5
        box = around_one(centre, (int(height * ratio), int(width * ratio)), height, width)
    return cutmix(x, targets, index=plan.index, box=box, inplace=inplace)


def sides(lam: Tensor, height: int, width: int) -> Tensor:
    """Height and width of boxes with the share 1 − λ of an image, rounded down as published: (batch, 2)."""
    ratio = (1 - lam.double().view(-1, 1)).sqrt()
    return (ratio * torch.tensor([height, width], device=CPU)).long()
