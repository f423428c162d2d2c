"""What residual models of `momentex.models.cifar` put on their branches, as a factory: `branch(block, blocks)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from momentex.errors import check_fraction


@dataclass(frozen=True)
class LinearDecay:
    """The linear decay rule of stochastic depth and ShakeDrop: block l of L survives with p_l = 1 − l / L · (1 − p_L).

    make   the module of a block, given its p: ShakeDrop, StochasticDepth, or a partial of one
    last   p_L, of the last block

    >>> from momentex.feature.shakedrop import ShakeDrop
    >>> from momentex.models.cifar.resnet import resnet
    >>> model = resnet(8, branch=LinearDecay(ShakeDrop, last=0.4))
    >>> [round(m.p, 2) for m in model.modules() if isinstance(m, ShakeDrop)]
    [0.8, 0.6, 0.4]
    """

    make: Callable[[float], nn.Module]
    last: float = 0.5

    def __post_init__(self) -> None:
        check_fraction("last", self.last)

    def __call__(self, block: int, blocks: int) -> nn.Module:
        return self.make(1 - (block + 1) / blocks * (1 - self.last))
