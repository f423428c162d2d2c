"""ShakeDrop (Yamada et al. 2018): a residual branch is multiplied by noise, and its gradient by another noise.

    forward    x + (b + α − b α) F(x)       b ~ Bernoulli(p), α ~ U(−1, 1)
    backward       (b + β − b β) ∂F         β ~ U(0, 1)
    evaluation x + E[b + α − b α] F(x)      = x + p F(x), since E[α] = 0

So with probability p the block is as it is, else α is in the place of 1, and β for the gradient. p falls with depth:
see `branch.LinearDecay`. Draws come from torch's own generator, as dropout's do.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from momentex.errors import OutOfRange, check_fraction, did_you_mean

Range: TypeAlias = tuple[float, float]
Level: TypeAlias = Literal["batch", "sample", "element"]
LEVELS: tuple[Level, ...] = ("batch", "sample", "element")


def shake_drop(h: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """`h` times `forward`, whose gradient is that of `h` times `backward`.

    >>> h = torch.ones(2, requires_grad=True)
    >>> out = shake_drop(h, torch.tensor(-0.5), torch.tensor(0.25))
    >>> out.sum().backward()
    >>> out.tolist(), h.grad.tolist()
    ([-0.5, -0.5], [0.25, 0.25])
    """
    return _Shake.apply(h, forward, backward)


class _Shake(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any, **_: Any) -> Tensor:
        h, forward, _backward = args
        return h * forward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (backward,) = ctx.saved_tensors
        return grads[0] * backward, None, None


class ShakeDrop(nn.Module):
    """What stands on the branch of one block: without parameters and buffers.

    p       the probability that the block stays as it is; 1 leaves it alone
    alpha   range of the factor in its place
    beta    range of the factor of the gradient
    per     "sample": α and β for each sample, as the implementations of the time draw them; "batch": for all;
            "element": for each feature. The coin is one for the batch

    >>> ShakeDrop(p=0.5).eval()(torch.ones(3))
    tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self, p: float = 0.5, alpha: Range = (-1.0, 1.0), beta: Range = (0.0, 1.0), per: Level = "sample"
    ) -> None:
        super().__init__()
        self.p = check_fraction("p", p)
        self.alpha, self.beta = check_range("alpha", alpha), check_range("beta", beta)
        if per not in LEVELS:
            near = did_you_mean(str(per), LEVELS)
            raise OutOfRange(f"per is {per!r}; it is {', '.join(map(repr, LEVELS))}. {near}".strip())
        self.per: Level = per

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h * (self.p + (1 - self.p) * sum(self.alpha) / 2)
        # No look at the coin: it may lie on a device. In float32, since halves would round the noise.
        coin = torch.rand((), device=h.device) < self.p
        alpha, beta = self._noise(h, self.alpha), self._noise(h, self.beta)
        one = torch.ones((), device=h.device)
        return shake_drop(h, torch.where(coin, one, alpha).to(h.dtype), torch.where(coin, one, beta).to(h.dtype))

    def _noise(self, h: Tensor, between: Range) -> Tensor:
        low, high = between
        shapes: dict[Level, tuple[int, ...]] = {
            "batch": (),
            "sample": (h.shape[0], *(1,) * (h.ndim - 1)),
            "element": tuple(h.shape),
        }
        return torch.rand(shapes[self.per], device=h.device) * (high - low) + low

    def extra_repr(self) -> str:
        return f"p={self.p:.3f}, alpha={self.alpha}, beta={self.beta}, per={self.per!r}"


def check_range(name: str, value: Range) -> Range:
    """(low, high), finite and in that order."""
    low, high = value
    if not float("-inf") < low <= high < float("inf"):
        raise OutOfRange(f"{name} is {value!r}; it is a range (low, high) of finite numbers.")
    return float(low), float(high)
