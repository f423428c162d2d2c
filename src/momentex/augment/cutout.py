"""Cutout: a square of every image is set to zero, and its target stays (DeVries and Taylor, 2017)."""

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
    inside,
    one_by_one,
)
from momentex.augment.values import Cutout
from momentex.errors import ShapeError
from momentex.pairing import CPU, looks_are_free, rank_here, stream
from momentex.targets import Targets


def cutout(x: Tensor, targets: Tensor | Targets, *, box: Boxes, inplace: bool = False) -> tuple[Tensor, Targets]:
    """x_i ← 0 inside of the box: the mean, of images that are normalised. `box` is one for all images, or (batch, 4).
    x is written to if `inplace`, and is copied otherwise.

    >>> from momentex import Box
    >>> cutout(torch.ones(1, 1, 2, 2), torch.tensor([3]), box=Box(0, 1, 0, 2))[0]
    tensor([[[[0., 0.],
              [1., 1.]]]])
    """
    targets = as_targets(targets, x)
    check_boxes(box, x)
    left = x if inplace else x.clone()
    if isinstance(box, Tensor) and one_by_one(x) and looks_are_free(box):
        for image, (top, bottom, first, last) in zip(left.unbind(), box.tolist(), strict=True):
            image[..., top:bottom, first:last] = 0
        return left, targets
    if isinstance(box, Tensor):
        return left.masked_fill_(inside(box, x), 0), targets
    left[..., box.top : box.bottom, box.left : box.right] = 0
    return left, targets


def drawn(how: Cutout, x: Tensor, targets: Tensor | Targets, at: At, inplace: bool) -> tuple[Tensor, Targets]:
    """`cutout` with what is drawn for this step."""
    targets = as_targets(targets, x)
    height, width = check_images(x)
    size = side(how, height, width)
    seed, step, name, rank = at
    common = how.per == "batch"
    rank = 0 if common else rank_here() if rank is None else rank
    yes = torch.rand(1 if common else len(x), generator=stream(seed, step, f"{name}.coin", rank), device=CPU) < how.p
    if not bool(yes.any()):
        return x, targets
    if common:
        box = around_one(centre(height, width, at), (size, size), height, width)
        return cutout(x, targets, box=box, inplace=inplace)
    boxes = around(centres(height, width, len(x), at), torch.full((1, 2), size, device=CPU), height, width)
    return cutout(x, targets, box=boxes * yes[:, None], inplace=inplace)  # (0, 0, 0, 0) has no pixel


def side(how: Cutout, height: int, width: int) -> int:
    """Of the square, in pixels, for images of this size."""
    size = min(height, width) // 2 if how.size is None else how.size
    if size < 2:
        raise ShapeError(
            f"cutout.size is not given, and half of images of {height}×{width} pixels is {size}: nothing would be cut "
            "out. It needs images of 4×4 pixels or more."
        )
    if size // 2 >= max(height, width):
        raise ShapeError(
            f"cutout.size is {size} for images of {height}×{width} pixels: wherever the centre, nothing would be left "
            f"of any of them. Half of the image is usual: {min(height, width) // 2}."
        )
    return size
