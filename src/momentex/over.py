"""What the moments range over: the rows of the paper's table of moments, as values. This module needs no torch.

Features are `(batch, channels, *space)`. Every value below says which of those elements share one mean and one
standard deviation; the moments of a sample never see another sample.

    value           elements that share moments                     shape of a moment
    PONO(groups)    the channels (of one group) at one position     (batch, groups, *space)
    IN()            one channel at all positions                    (batch, channels, 1, …)
    LN()            all channels at all positions                   (batch, 1, 1, …)
    GN(groups)      the channels of one group at all positions      (batch, groups, 1, …)
    LRN()           as PONO, but nothing is centred                 (batch, 1, *space)

`only="mean"` or `only="std"` moves one of the two moments and leaves the other one in place. The paper has such rows
("1st moment at each position", "2nd moment at each position") and does not define them; ours are

    both            h_A^(B) = σ_B (h_A − μ_A) / σ_A + μ_B
    only="mean"     h_A^(B) =      h_A − μ_A        + μ_B       the deviations of A stay as they are
    only="std"      h_A^(B) = σ_B (h_A − μ_A) / σ_A + μ_A       A keeps its mean
    LRN             h_A^(B) = σ_B  h_A / σ_A,   σ = sqrt(mean(h²) + ε)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from momentex.errors import GroupError

Only: TypeAlias = Literal["mean", "std"]


def _check(over: PONO | IN | LN | GN | LRN, groups: object = 1) -> None:
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise GroupError(f"groups is {groups!r}; {type(over).__name__} needs a whole number of groups, 1 or more.")
    if over.only not in (None, "mean", "std"):
        raise GroupError(
            f"only is {over.only!r}; it is 'mean' (move the mean alone), 'std' (move the standard deviation alone), "
            "or None (move both)."
        )


@dataclass(frozen=True)
class PONO:
    """Positional moments: over the channels at each position (Li et al. 2019; Sec. 3). `groups=4` is four groups.

    >>> PONO(groups=2, only="std")
    PONO(groups=2, only='std')
    """

    groups: int = 1
    only: Only | None = None
    channels: ClassVar[bool] = True
    space: ClassVar[bool] = False
    centred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self, self.groups)


@dataclass(frozen=True)
class IN:
    """Moments of instance normalisation: over the positions, of each channel by itself.

    >>> IN(only="mean")
    IN(only='mean')
    """

    only: Only | None = None
    channels: ClassVar[bool] = False
    space: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LN:
    """Moments of layer normalisation: over all channels and positions of a sample.

    >>> LN()
    LN(only=None)
    """

    only: Only | None = None
    groups: ClassVar[int] = 1
    channels: ClassVar[bool] = True
    space: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class GN:
    """Moments of group normalisation: over the positions and the channels of each of `groups` groups.

    `groups=4` means four groups, as in torch.nn.GroupNorm (the paper's "g=4" can be read as four channels a group
    as well; with the 16 channels of its ResNet-110 the two are the same).

    >>> GN(4)
    GN(groups=4, only=None)
    """

    groups: int
    only: Only | None = None
    channels: ClassVar[bool] = True
    space: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self, self.groups)


@dataclass(frozen=True)
class LRN:
    """The unnormalised second moment at each position: σ = sqrt(mean over channels of h² + ε), and no mean.

    This is the variant of Karras et al. (2018) to which the paper's table refers. It has one moment only: `LRN()` and
    `LRN(only="std")` are the same, and `only="mean"` is an error.

    >>> LRN()
    LRN(only=None)
    """

    only: Only | None = None
    groups: ClassVar[int] = 1
    channels: ClassVar[bool] = True
    space: ClassVar[bool] = False
    centred: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self)
        if self.only == "mean":
            raise GroupError("LRN(only='mean') would move nothing: LRN has no mean. Use PONO(only='mean').")


Over: TypeAlias = PONO | IN | LN | GN | LRN


def check_over(over: object) -> None:
    """Raise unless `over` is one of the values of this module; strings and the bare classes are not."""
    if not isinstance(over, (PONO, IN, LN, GN, LRN)):
        given = f"the class {over.__name__}" if isinstance(over, type) else repr(over)
        raise GroupError(
            f"over is {given}; it must be a value from momentex: PONO(), PONO(groups=2), IN(), LN(), GN(groups), LRN()."
        )
