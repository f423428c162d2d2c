"""What may be asked for in input space, and what contradicts itself."""

from __future__ import annotations

import math

import pytest

from momentex import CutMix, Cutout, LabelInterpolation, Mixup
from momentex.errors import OutOfRange, PairingError


@pytest.mark.parametrize("kind", [Mixup, CutMix])
@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan, "1"])
def test_alpha_must_be_above_zero(kind, alpha) -> None:
    message = (
        rf"^{kind.__name__.lower()}\.alpha is {alpha!r}: λ is drawn from Beta\(alpha, alpha\), which needs a finite"
    )
    with pytest.raises(OutOfRange, match=message):
        kind(alpha=alpha)


@pytest.mark.parametrize("kind", [Mixup, CutMix, Cutout, LabelInterpolation])
def test_what_could_never_act_is_refused(kind) -> None:
    with pytest.raises(OutOfRange, match=r"\.p is 0: nothing would ever be .* Leave \w+ out, or set p above 0\.$"):
        kind(p=0)


@pytest.mark.parametrize("kind", [Mixup, CutMix, Cutout, LabelInterpolation])
@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_p_is_a_probability(kind, p: float) -> None:
    with pytest.raises(OutOfRange, match=r"\.p is .*; it must be a number between 0 and 1\.$"):
        kind(p=p)


@pytest.mark.parametrize("kind", [Mixup, CutMix, Cutout, LabelInterpolation])
def test_per_is_batch_or_sample(kind) -> None:
    with pytest.raises(PairingError, match=r"\.per is 'element'; it is 'batch' \(one draw for all\) or 'sample'"):
        kind(per="element")


@pytest.mark.parametrize("kind", [Mixup, CutMix])
def test_pairs_are_shared_or_own(kind) -> None:
    with pytest.raises(PairingError, match=r"\.pairs is 'mine'; it is 'shared' \(.*\) or 'own'\.$"):
        kind(pairs="mine")


@pytest.mark.parametrize("size", [0, 1, -4, 2.5])
def test_a_square_that_cuts_nothing_is_refused(size) -> None:
    with pytest.raises(OutOfRange, match=rf"^cutout\.size is {size}: nothing would ever be cut out\. It is a whole"):
        Cutout(size=size)


def test_interpolation_that_mixes_nothing_is_refused() -> None:
    with pytest.raises(OutOfRange, match=r"^label_interpolation\.lam is 1: no label would ever be mixed"):
        LabelInterpolation(lam=1.0)
