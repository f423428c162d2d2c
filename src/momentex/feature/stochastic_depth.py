"""Stochastic depth (Huang et al. 2016): residual branches are left out by a coin, while training.

    training     x + b F(x)      b ~ Bernoulli(p)
    evaluation   x + p F(x)

p falls with depth: see `branch.LinearDecay`. Draws come from torch's own generator, as dropout's do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from momentex.errors import check_fraction
from momentex.pairing import Per, check_per


def stochastic_depth(h: Tensor, p: float, per: Per = "batch") -> Tensor:
    """`h` with probability `p`, else zeros: one coin for the batch, as published, or one for each sample.

    It is not scaled, as published: in evaluation, the branch is multiplied by `p` instead.

    >>> stochastic_depth(torch.ones(3), p=1.0), stochastic_depth(torch.ones(3), p=0.0)
    (tensor([1., 1., 1.]), tensor([0., 0., 0.]))
    """
    shape = (1,) * h.ndim if per == "batch" else (h.shape[0], *(1,) * (h.ndim - 1))
    return h * torch.empty(shape, dtype=h.dtype, device=h.device).bernoulli_(p)


class StochasticDepth(nn.Module):
    """What stands on the branch of one block: without parameters and buffers.

    p     the probability that the branch is there; 1 leaves it alone
    per   "batch": one coin for all samples, as published; "sample": one for each

    >>> StochasticDepth(p=0.5).eval()(torch.ones(3))
    tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(self, p: float = 0.5, per: Per = "batch") -> None:
        super().__init__()
        self.p = check_fraction("p", p)
        check_per(per)
        self.per: Per = per

    def forward(self, h: Tensor) -> Tensor:
        return stochastic_depth(h, self.p, self.per) if self.training else h * self.p

    def extra_repr(self) -> str:
        return f"p={self.p:.3f}, per={self.per!r}"
