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
    centre,
    centres,
    check_boxes,
    check_images,
    check_partners,
    inside,
    one_by_one,
    partners,
    planned,
)
from momentex.augment.values import CutMix
from momentex.pairing import CPU, looks_are_free
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
    return _mixed(x, targets, index, box, inplace)


def _mixed(x: Tensor, targets: Targets, index: Tensor, box: Boxes, inplace: bool) -> tuple[Tensor, Targets]:
    """`cutmix` with partners and boxes that were looked at, or drawn here."""
    height, width = x.shape[-2:]
    index = index.to(x.device, non_blocking=True)  # once: images and labels are usually on one device
    if isinstance(box, Tensor):
        area = (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2])
        mixed = targets.mixed_as_checked(index, 1 - area.float() / (height * width))
        if one_by_one(x) and looks_are_free(box):
            return _pasted(x, index, box, inplace), mixed
        pasted = torch.where(inside(box, x), partners(x, index), x)
        return x.copy_(pasted) if inplace else pasted, mixed
    if box.area == 0:
        return x, targets
    window = (..., slice(box.top, box.bottom), slice(box.left, box.right))
    hole = x[window]
    patch = partners(hole, index)
    pasted = x if inplace else x.clone()
    (hole if inplace else pasted[window]).copy_(patch)
    return pasted, targets.mixed_as_checked(index, 1 - box.area / (height * width))


def _pasted(x: Tensor, index: Tensor, boxes: Tensor, inplace: bool) -> Tensor:
    """One image after the other: no pixel outside of the boxes is touched, but for the copy if it is not `inplace`."""
    windows = [(..., slice(top, bottom), slice(left, right)) for top, bottom, left, right in boxes.tolist()]
    images, pairs = x.unbind(), zip(index.tolist(), windows, strict=True)
    patches = [images[partner][window] for partner, window in pairs]
    if inplace:
        patches = [patch.clone() for patch in patches]  # all of them, before the first image is written to
    pasted = x if inplace else x.clone()
    for image, window, patch in zip(pasted.unbind(), windows, patches, strict=True):
        image[window].copy_(patch)
    return pasted


def drawn(
    how: CutMix, x: Tensor, targets: Tensor | Targets, at: At, index: Tensor | None, inplace: bool
) -> tuple[Tensor, Targets]:
    """`cutmix` with what is drawn for this step."""
    targets = as_targets(targets, x)
    height, width = check_images(x)
    plan = planned(how, at, targets, index)
    if not plan.on:
        return x, targets
    if isinstance(plan.lam, Tensor):
        box: Boxes = around(centres(height, width, len(x), at), sides(plan.lam, height, width), height, width)
    else:
        ratio = (1 - plan.lam) ** 0.5
        box = around_one(centre(height, width, at), (int(height * ratio), int(width * ratio)), height, width)
    return _mixed(x, targets, plan.index, box, inplace)


def sides(lam: Tensor, height: int, width: int) -> Tensor:
    """Height and width of boxes with the share 1 − λ of an image, rounded down as published: (batch, 2)."""
    ratio = (1 - lam.double().view(-1, 1)).sqrt()
    return (ratio * torch.tensor([height, width], device=CPU)).long()
