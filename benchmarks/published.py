"""What others do for the same step: the paper's Algorithm 1, the authors' scale-shift form, and a floor."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-5


def algorithm_1(x: Tensor, index: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The listing in the paper's appendix, in the dtype of the features as printed there."""
    mean = x.mean(dim=dims, keepdim=True)
    var = x.var(dim=dims, keepdim=True)
    std = (var + EPS).sqrt()
    x = (x - mean) / std
    return x * std[index] + mean[index]


def scale_shift(x: Tensor, index: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The form of the released ImageNet code: float32 inside, one multiplication and one addition."""
    dtype = x.dtype
    x = x.float()
    mean = x.mean(dim=dims, keepdim=True)
    std = x.var(dim=dims, keepdim=True).add(EPS).sqrt()
    scale = std[index] / std
    return (x * scale + (mean[index] - mean * scale)).to(dtype)


def floor(x: Tensor, grad: Tensor) -> None:
    """One read and one write forward, two reads and one write backward: what no exchange can go below."""
    x.mul(2)
    grad.add(x)


def group_norm_view(x: Tensor, groups: int) -> Tensor:
    """(batch, groups, channels of a group, *space): Algorithm 1 has no GN, which is its LN on this view."""
    return x.unflatten(1, (groups, x.shape[1] // groups))


def floor_step(x: Tensor, grad: Tensor) -> None:
    with torch.no_grad():
        floor(x, grad)
