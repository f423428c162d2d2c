"""What is asked for in input space, as frozen values: of a loop of one's own, and of a recipe. Needs no torch.

Each is called with a batch and its labels (or targets of another method) and the number of the step:

    x, targets = CutMix(p=0.5)(x, y, step=step)

Everything random is a function of (seed, step, stream, rank), as for Moment Exchange. `pairs="shared"`: the partner is
the one that Moment Exchange has in this step, as the authors combine the two; each method keeps its coin and its λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from momentex.errors import OutOfRange, PairingError, check_fraction

if TYPE_CHECKING:
    from torch import Tensor

    from momentex.targets import Targets

Pairs: TypeAlias = Literal["shared", "own"]


@dataclass(frozen=True)
class Mixup:
    """x ← λ x + (1 − λ) x[index], λ ~ Beta(α, α), and targets likewise (Zhang et al., ICLR 2018).

    >>> Mixup(alpha=0.2)
    Mixup(alpha=0.2, p=1.0, per='batch', pairs='shared')
    """

    alpha: float = 1.0
    """λ is drawn from Beta(α, α): 1 is uniform, and smaller ones leave most images nearly alone."""
    p: float = 1.0
    """The probability of mixing."""
    per: Literal["batch", "sample"] = "batch"
    """One coin and one λ for a batch, or for each sample."""
    pairs: Pairs = "shared"
    """Whose partner: that of Moment Exchange in the same step, or an own one."""

    def __post_init__(self) -> None:
        _check_mix("mixup", self.alpha, self.p, self.per, self.pairs)

    def __call__(
        self,
        x: Tensor,
        targets: Tensor | Targets,
        *,
        step: int,
        seed: int = 0,
        rank: int | None = None,
        index: Tensor | None = None,
        stream: str = "mixup",
    ) -> tuple[Tensor, Targets]:
        """Mixed images and their targets. `index` is a pairing that is already decided.

        rank    of this process; that of torch.distributed unless given
        stream  the name of its draws: another one for a second mixup in the same step
        """
        from momentex.augment.mixup import drawn  # torch, without which recipes can be listed

        return drawn(self, x, targets, (seed, step, stream, rank), index)


@dataclass(frozen=True)
class CutMix:
    """A box of the partner is pasted, targets are mixed by its area; 1 − λ ~ Beta(α, α) of it (Yun et al., ICCV 2019).

    >>> CutMix(p=0.5)
    CutMix(alpha=1.0, p=0.5, per='batch', pairs='shared')
    """

    alpha: float = 1.0
    """λ is drawn from Beta(α, α), the box has 1 − λ of the image; where the border cuts it, λ is what is left."""
    p: float = 1.0
    """The probability of pasting: its authors run it with 0.5 on CIFAR, with 1 on ImageNet."""
    per: Literal["batch", "sample"] = "batch"
    """One coin and one box for a batch, as published, or for each sample."""
    pairs: Pairs = "shared"
    """Whose partner: that of Moment Exchange in the same step, or an own one."""

    def __post_init__(self) -> None:
        _check_mix("cutmix", self.alpha, self.p, self.per, self.pairs)

    def __call__(
        self,
        x: Tensor,
        targets: Tensor | Targets,
        *,
        step: int,
        seed: int = 0,
        rank: int | None = None,
        index: Tensor | None = None,
        stream: str = "cutmix",
        inplace: bool = False,
    ) -> tuple[Tensor, Targets]:
        """Images with a box of their partner, and their targets. `index` is a pairing that is already decided.

        rank     of this process; that of torch.distributed unless given
        stream   the name of its draws: another one for a second CutMix in the same step
        inplace  write into x, which is the caller's own batch: a copy less
        """
        from momentex.augment.cutmix import drawn  # torch, without which recipes can be listed

        return drawn(self, x, targets, (seed, step, stream, rank), index, inplace)


@dataclass(frozen=True)
class Cutout:
    """A square around a pixel drawn at random is set to zero; targets stay (DeVries and Taylor, 2017).

    >>> Cutout(size=16)
    Cutout(size=16, p=1.0, per='sample')
    """

    size: int | None = None
    """Side of the square, in pixels. Default: half of the image's, which is the published 16 of CIFAR-10."""
    p: float = 1.0
    """The probability of cutting."""
    per: Literal["batch", "sample"] = "sample"
    """One coin and one square for each sample, as published, or for a batch."""

    def __post_init__(self) -> None:
        _check_per("cutout", self.per)
        _check_p("cutout", self.p, "cut out")
        if self.size is not None and (type(self.size) is not int or self.size < 2):
            raise OutOfRange(
                f"cutout.size is {self.size!r}: nothing would ever be cut out. It is a whole number of pixels, 2 or "
                "more: so many halves, rounded down, lie on either side of the centre."
            )

    def __call__(
        self,
        x: Tensor,
        targets: Tensor | Targets,
        *,
        step: int,
        seed: int = 0,
        rank: int | None = None,
        stream: str = "cutout",
        inplace: bool = False,
    ) -> tuple[Tensor, Targets]:
        """Images with a square of zeros, and the targets as they were.

        rank     of this process; that of torch.distributed unless given
        stream   the name of its draws: another one for a second square in the same step
        inplace  write into x, which is the caller's own batch: a copy less
        """
        from momentex.augment.cutout import drawn  # torch, without which recipes can be listed

        return drawn(self, x, targets, (seed, step, stream, rank), inplace)


@dataclass(frozen=True)
class LabelInterpolation:
    """Targets are mixed with those of a partner, and images are not: what is left of Moment Exchange without features.

    With the seed of a MomentExchange of the same λ and p, it mixes the same labels in the same steps.

    >>> LabelInterpolation(lam=0.9, p=0.5)
    LabelInterpolation(lam=0.9, p=0.5, per='batch')
    """

    lam: float = 0.9
    """λ, the weight of the sample's own label."""
    p: float = 0.5
    """The probability of mixing."""
    per: Literal["batch", "sample"] = "batch"
    """One coin for a batch, or one for each sample."""

    def __post_init__(self) -> None:
        _check_per("label_interpolation", self.per)
        _check_p("label_interpolation", self.p, "mixed")
        if check_fraction("label_interpolation.lam", self.lam) == 1:
            raise OutOfRange("label_interpolation.lam is 1: no label would ever be mixed. Set it below 1.")

    def __call__(
        self,
        x: Tensor,
        targets: Tensor | Targets,
        *,
        step: int,
        seed: int = 0,
        rank: int | None = None,
        index: Tensor | None = None,
        stream: str = "",
    ) -> tuple[Tensor, Targets]:
        """The images as they are, and mixed targets. `index` is a pairing that is already decided.

        rank    of this process; that of torch.distributed unless given
        stream  the name of its draws; without one they are those of Moment Exchange
        """
        from momentex.augment.label_interpolation import drawn  # torch, without which recipes can be listed

        return drawn(self, x, targets, (seed, step, stream, rank), index)


def _check_mix(name: str, alpha: float, p: float, per: str, pairs: str) -> None:
    if not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
        raise OutOfRange(
            f"{name}.alpha is {alpha!r}: λ is drawn from Beta(alpha, alpha), which needs a finite number above 0. "
            f"Without {name}, leave it out."
        )
    _check_per(name, per)
    _check_p(name, p, "mixed")
    if pairs not in ("shared", "own"):
        raise PairingError(
            f"{name}.pairs is {pairs!r}; it is 'shared' (Moment Exchange's partner in the same step) or 'own'."
        )


def _check_p(name: str, p: float, done: str) -> None:
    if check_fraction(f"{name}.p", p) == 0:
        raise OutOfRange(f"{name}.p is 0: nothing would ever be {done}. Leave {name} out, or set p above 0.")


def _check_per(name: str, per: str) -> None:
    if per not in ("batch", "sample"):
        raise PairingError(f"{name}.per is {per!r}; it is 'batch' (one draw for all) or 'sample' (one for each).")
