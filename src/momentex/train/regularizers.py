"""What a recipe asks for on features, beside the exchange, as frozen values. This module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from momentex.errors import RecipeError


def _need(fine: bool, problem: str) -> None:
    if not fine:
        raise RecipeError(problem)


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup:
    """At a layer drawn for each step, features and labels are averaged with a partner's (Verma et al. 2019).

    >>> ManifoldMixup(alpha=2.0)
    ManifoldMixup(layers=(), alpha=2.0, p=1.0, per='batch')
    """

    layers: tuple[str, ...] = ()
    """Features are mixed at the input of one of these. Default: the first layer (the input), second and third stage."""
    alpha: float = 1.0
    """λ is drawn from Beta(α, α): 1 is uniform, and smaller ones leave most samples nearly alone."""
    p: float = 1.0
    """The probability of mixing."""
    per: Literal["batch", "sample"] = "batch"
    """One coin and one λ for a batch, or for each sample."""

    def __post_init__(self) -> None:
        _need(self.alpha > 0, f"manifold_mixup.alpha is {self.alpha}; λ ~ Beta(α, α) needs it above 0.")
        _need(
            0 < self.p <= 1, f"manifold_mixup.p is {self.p}; it is a probability above 0: leave the method out for 0."
        )
        _need(len(set(self.layers)) == len(self.layers), "manifold_mixup.layers has a layer twice: name each once.")


@dataclass(frozen=True, kw_only=True)
class DropBlock:
    """Squares of features are dropped while training (Ghiasi et al. 2018).

    >>> DropBlock(p=0.1, block_size=4)
    DropBlock(layers=(), p=0.1, block_size=4, rises=True)
    """

    layers: tuple[str, ...] = ()
    """At the output of each of these. Default: the second and the third stage."""
    p: float = 0.1
    """About the share of features that is dropped: 1 − keep_prob."""
    block_size: int = 7
    """Side of a square, in features."""
    rises: bool = True
    """The share rises linearly from 0 over the training, as published."""

    def __post_init__(self) -> None:
        _need(0 < self.p < 1, f"dropblock.p is {self.p}; it is a share between 0 and 1, exclusive.")
        _need(
            self.block_size >= 1, f"dropblock.block_size is {self.block_size}; it is the side of a square, 1 or more."
        )
        _need(len(set(self.layers)) == len(self.layers), "dropblock.layers has a layer twice: name each once.")


@dataclass(frozen=True, kw_only=True)
class ShakeDrop:
    """Residual branches are multiplied by noise, their gradients by another one (Yamada et al. 2018).

    >>> ShakeDrop(last=0.5).beta
    (0.0, 1.0)
    """

    last: float = 0.5
    """p of the last block; that of block l of L is 1 − l / L · (1 − last)."""
    alpha: tuple[float, float] = (-1.0, 1.0)
    """Range of the factor of a branch that is shaken."""
    beta: tuple[float, float] = (0.0, 1.0)
    """Range of the factor of its gradient."""
    per: Literal["batch", "sample", "element"] = "sample"
    """One pair of factors for a batch, for each sample, or for each feature."""

    def __post_init__(self) -> None:
        _check_last("shakedrop", self.last)
        for name, (low, high) in (("alpha", self.alpha), ("beta", self.beta)):
            _need(low <= high, f"shakedrop.{name} is {low} to {high}; it is a range from a smaller to a larger number.")
        _need(
            {*self.alpha, *self.beta} != {1},
            "shakedrop.alpha and shakedrop.beta are 1 alone: no branch would ever be changed. Leave the method out.",
        )


@dataclass(frozen=True, kw_only=True)
class StochasticDepth:
    """Residual branches are left out by a coin while training (Huang et al. 2016).

    >>> StochasticDepth()
    StochasticDepth(last=0.5, per='batch')
    """

    last: float = 0.5
    """p of the last block, its probability to be there; that of block l of L is 1 − l / L · (1 − last)."""
    per: Literal["batch", "sample"] = "batch"
    """One coin for a batch, as published, or for each sample."""

    def __post_init__(self) -> None:
        _check_last("stochastic_depth", self.last)


def _check_last(name: str, last: float) -> None:
    _need(
        0 <= last < 1,
        f"{name}.last is {last}; it is a probability, 0 or more. At 1 every block would always be as it is: leave the "
        "method out.",
    )
