"""What the methods of input space have in common: whose partner, by which coin, with which λ, and boxes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from momentex.augment.values import CutMix, LabelInterpolation, Mixup
from momentex.errors import PairingError, ShapeError
from momentex.pairing import CPU, Beta, Plan, Policy, check_index, looks_are_free, rank_here, stream
from momentex.targets import Targets

At: TypeAlias = tuple[int, int, str, int | None]  # seed, step, name of the stream, rank (None: that of this process)


class Box(NamedTuple):
    """Rows top … bottom − 1 and columns left … right − 1, of all images.

    >>> Box(top=0, bottom=8, left=4, right=12).area
    64
    """

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)


LARGE = 2**15  # numbers in an image; with fewer, a call for each costs more than it saves

Boxes: TypeAlias = Box | Tensor  # one for all images; or (batch, 4), a Box for each


def as_targets(targets: Tensor | Targets, x: Tensor) -> Targets:
    """Labels as targets, as many as there are images."""
    targets = targets if isinstance(targets, Targets) else Targets(targets)
    if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[0] != len(targets):
        given = f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ShapeError(
            f"x is {given} for {len(targets)} labels; it must be a tensor (batch, …), a row for each label."
        )
    return targets


def check_images(x: Tensor) -> tuple[int, int]:
    """Height and width of images (batch, …, height, width)."""
    if x.ndim < 3:
        raise ShapeError(f"x is {tuple(x.shape)}; boxes need images, (batch, channels, height, width).")
    return int(x.shape[-2]), int(x.shape[-1])


def check_partners(index: Tensor, size: int) -> None:
    check_index(index)
    if len(index) != size:
        raise PairingError(f"index has {len(index)} entries for a batch of {size}; it needs one for each sample.")


def partners(x: Tensor, index: Tensor) -> Tensor:
    """A copy of x[index] that lies in memory as x does; index_select alone forgets channels_last, and is slow on it."""
    strides = x.stride()[1:]
    if strides == tuple(sorted(strides, reverse=True)):
        return x.index_select(0, index)
    order = [0, *sorted(range(1, x.ndim), key=x.stride, reverse=True)]
    there = x.permute(order).index_select(0, index)
    return there.permute([order.index(axis) for axis in range(x.ndim)])


def one_by_one(x: Tensor) -> bool:
    """Whether large images are mixed one after the other, each while it is in the cache, instead of all at once.

    On the CPU, and where no gradient is asked for: with one, every image would have a node of its own.
    """
    return x.numel() > len(x) * LARGE and looks_are_free(x) and not x.requires_grad


@lru_cache(maxsize=64)  # they are the same in every step
def policy(how: Mixup | CutMix | LabelInterpolation, name: str) -> Policy:
    """How the plans of a method are drawn, from the streams `name`."""
    if isinstance(how, LabelInterpolation):
        return Policy(how.lam, how.p, how.per, stream=name, shares_pairs=True)
    return Policy(Beta(how.alpha, per=how.per), how.p, how.per, stream=name, shares_pairs=how.pairs == "shared")


def planned(how: Mixup | CutMix | LabelInterpolation, at: At, targets: Targets, index: Tensor | None) -> Plan:
    """Whose partner, by which coin, with which λ in this step."""
    seed, step, name, rank = at
    rank = rank_here() if rank is None else rank
    return policy(how, name).draw(seed, step, len(targets), rank=rank, index=index)


def centre(height: int, width: int, at: At) -> tuple[int, int]:
    """A pixel drawn uniformly for the batch, common to all ranks. (Of squares in one call, which draws the same.)"""
    generator = stream(at[0], at[1], f"{at[2]}.box")
    if height == width:
        row, column = torch.randint(height, (2,), generator=generator, device=CPU).tolist()
        return row, column
    row, column = (torch.randint(side, (1,), generator=generator, device=CPU) for side in (height, width))
    return int(row), int(column)


def centres(height: int, width: int, size: int, at: At) -> Tensor:
    """A pixel drawn uniformly for each sample: (batch, 2)."""
    seed, step, name, rank = at
    generator = stream(seed, step, f"{name}.box", rank_here() if rank is None else rank)
    rows, columns = (torch.randint(side, (size,), generator=generator, device=CPU) for side in (height, width))
    return torch.stack([rows, columns], 1)


def around(centre: Tensor, sides: Tensor, height: int, width: int) -> Tensor:
    """Boxes (n, 4) of `sides` (n, 2) around pixels (n, 2), cut at the border, as CutMix and Cutout publish them:
    centre ± side // 2.
    """
    half = sides // 2
    low, high = (centre - half).clamp(min=0), torch.minimum(centre + half, torch.tensor([height, width], device=CPU))
    return torch.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], 1)


def around_one(centre: tuple[int, int], sides: tuple[int, int], height: int, width: int) -> Box:
    """The same of one box, without a tensor for each number."""
    (row, column), tall, wide = centre, sides[0] // 2, sides[1] // 2
    return Box(max(row - tall, 0), min(row + tall, height), max(column - wide, 0), min(column + wide, width))


def inside(boxes: Tensor, x: Tensor) -> Tensor:
    """Which pixels lie in the box of their image: (batch, 1, …, height, width), on the device of x."""
    height, width = check_images(x)
    boxes = boxes.to(x.device, non_blocking=True)
    rows, columns = (torch.arange(side, device=x.device) for side in (height, width))
    of_rows = (rows >= boxes[:, 0:1]) & (rows < boxes[:, 1:2])
    of_columns = (columns >= boxes[:, 2:3]) & (columns < boxes[:, 3:4])
    mask = of_rows[:, :, None] & of_columns[:, None, :]
    return mask.view(len(boxes), *[1] * (x.ndim - 3), height, width)


def check_boxes(boxes: Boxes, x: Tensor) -> None:
    """Raise unless every box lies in the images."""
    height, width = check_images(x)
    if not isinstance(boxes, Tensor):  # of one box, without a tensor: this is every step
        if not (0 <= boxes.top <= boxes.bottom <= height and 0 <= boxes.left <= boxes.right <= width):
            raise ShapeError(f"{boxes} does not lie in images of {height}×{width} pixels.")
        return
    if boxes.shape != (len(x), 4) or boxes.is_floating_point():
        raise ShapeError(
            f"box is {boxes.dtype} {tuple(boxes.shape)}; it is one Box(top, bottom, left, right) for all images, or a "
            f"tensor of whole numbers ({len(x)}, 4) with one for each."
        )
    if boxes.device.type == "cpu":  # elsewhere a look would wait for the device
        top, bottom, left, right = boxes.unbind(1)
        fine = (top >= 0) & (top <= bottom) & (bottom <= height) & (left >= 0) & (left <= right) & (right <= width)
        if not bool(fine.all()):
            wrong = Box(*boxes[int(fine.int().argmin())].tolist())
            raise ShapeError(f"{wrong} does not lie in images of {height}×{width} pixels.")
