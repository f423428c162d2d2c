"""The paper's F and F⁻¹ (Sec. 3): take the moments out of features, put moments in."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from momentex.errors import ShapeError
from momentex.opened import Groups, Layout, open_features, open_for_moments
from momentex.over import PONO, Over


class Moments(NamedTuple):
    """Mean and standard deviation of every group: each `(batch, groups, *space or ones)`, float32 at least.

    >>> Moments(mean=torch.tensor([[1.0], [2.0]]), std=torch.tensor([[3.0], [4.0]])).at(torch.tensor([1, 0])).mean
    tensor([[2.],
            [1.]])
    """

    mean: Tensor
    std: Tensor

    def at(self, index: Tensor) -> Moments:
        """The moments of the samples `index`: everybody's partner's."""
        return Moments(self.mean.index_select(0, index), self.std.index_select(0, index))

    def closed(self) -> Moments:
        """Without the axis of the channels of a group, along which moments are constant: what users see."""
        return Moments(self.mean.squeeze(2), self.std.squeeze(2))

    def opened(self) -> Moments:
        """With that axis again."""
        return Moments(self.mean.unsqueeze(2), self.std.unsqueeze(2))


def normalize(
    h: Tensor,
    over: Over = PONO(),
    *,
    mask: Tensor | None = None,
    batch: Tensor | None = None,
    channel_dim: int = 1,
    batch_dim: int = 0,
    skip: int = 0,
    eps: float = 1e-5,
    correction: int = 1,
) -> tuple[Tensor, Moments]:
    """Take the moments out: the paper's F (Sec. 3).

        ĥ = (h − μ) / σ      μ = mean(h)      σ = sqrt(Σ (h − μ)² / (N − correction) + ε)

    where mean and sum run over the N elements that `over` says, in float32 at least. `correction=1` is the paper's
    Algorithm 1 and the released code, `correction=0` its equation; in an exchange, where only ratios of σ matter, the
    two differ by the effect of ε alone. LRN takes out no mean (μ = 0, N − correction = N).

    `h` is `(batch, channels, *space)` of any rank from 2; `channel_dim` and `batch_dim` name other orders. `mask`
    `(batch, *space)` is true where an element counts; padding is returned as it came. `batch` `(points,)` makes `h`
    `(points, channels)` a ragged collection of sets. The first `skip` positions (class tokens) are left alone.

    >>> h = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])  # one sample, two channels, two positions
    >>> h_hat, moments = normalize(h, PONO(), correction=0)
    >>> h_hat
    tensor([[[-1.0000,  0.0000],
             [ 1.0000,  0.0000]]])
    >>> moments.mean
    tensor([[[2., 5.]]])
    """
    layout = Layout(channel_dim, batch_dim, skip)
    opened = open_features(h, over, layout, mask=mask, batch=batch, eps=eps, correction=correction)
    f = opened.groups.zero_padding(opened.v.to(accumulation_dtype(h)))
    moments = take(f, opened.groups)
    h_hat = strip(f, moments, opened.groups).to(h.dtype)
    return opened.close(opened.groups.unless_padding(h_hat, opened.v)), moments.closed()


def denormalize(
    h_hat: Tensor,
    moments: Moments,
    *,
    mask: Tensor | None = None,
    batch: Tensor | None = None,
    channel_dim: int = 1,
    batch_dim: int = 0,
    skip: int = 0,
) -> Tensor:
    """Put moments in: the paper's F⁻¹ (Sec. 3), `h = σ ĥ + μ`. The moments say by their shape what they range over.

    Give it what `normalize` was given: `mask`, `batch`, `channel_dim`, `batch_dim` and `skip` mean the same.

    >>> h = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
    >>> denormalize(*normalize(h))
    tensor([[[1., 5.],
             [3., 5.]]])
    """
    mean, std = moments
    if mean.shape != std.shape or mean.ndim < 2:
        raise ShapeError(f"mean {tuple(mean.shape)} and std {tuple(std.shape)} must have one shape, of 2 axes or more.")
    layout = Layout(channel_dim, batch_dim, skip)
    opened = open_for_moments(h_hat, mean.shape, layout, mask=mask, batch=batch)
    f = opened.groups.zero_padding(opened.v.to(accumulation_dtype(h_hat)))
    h = put(f, Moments(mean, std).opened(), opened.groups).to(h_hat.dtype)
    return opened.close(opened.groups.unless_padding(h, opened.v))


def take(f: Tensor, groups: Groups) -> Moments:
    """The moments of opened features that are float32 at least and zero in the padding.

    Two passes: E[h²] − μ² would cancel. Padding is zeroed beforehand and not in here, so that no gradient meets it.
    """
    if groups.centred:
        mean = groups.sum(f) / groups.divisor
        f = groups.zero_padding(f - groups.spread(mean))
        variance = groups.sum(f * f) / groups.spare
    else:
        variance = groups.sum(f * f) / groups.divisor
        mean = torch.zeros_like(variance)
    return Moments(mean, (variance + groups.eps).sqrt())


def strip(f: Tensor, moments: Moments, groups: Groups) -> Tensor:
    return (f - groups.spread(moments.mean)) / groups.spread(moments.std)


def put(f: Tensor, moments: Moments, groups: Groups) -> Tensor:
    return f * groups.spread(moments.std) + groups.spread(moments.mean)


def accumulation_dtype(h: Tensor) -> torch.dtype:
    return torch.float64 if h.dtype == torch.float64 else torch.float32
