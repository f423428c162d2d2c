"""The expected calibration error, against a loop over bins as its paper writes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from momentex.errors import OutOfRange, ShapeError
from momentex.evaluate.calibration import BINS, bin_sums, calibration_error, expected_error


def by_hand(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    """Guo et al. 2017, Eq. 2 and 3: bins (k / M, (k + 1) / M]."""
    p, y = probabilities.double().numpy(), labels.numpy()
    confidence, right = p.max(1), p.argmax(1) == y
    total = 0.0
    for k in range(bins):
        inside = (confidence > k / bins) & (confidence <= (k + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return 100 * total


def some(seed: int, count: int, classes: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64) * scale
    return logits.softmax(1), torch.randint(classes, (count,), generator=generator)


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(2, 12), st.sampled_from([0.1, 1.0, 10.0]))
def test_it_is_what_the_paper_writes(seed: int, count: int, classes: int, scale: float) -> None:
    probabilities, labels = some(seed, count, classes, scale)
    for bins in (1, 7, BINS):
        assert calibration_error(probabilities, labels, bins) == pytest.approx(by_hand(probabilities, labels, bins))


def test_who_is_as_often_right_as_he_says_is_calibrated() -> None:
    probabilities = torch.tensor([[0.75, 0.25]]).repeat(400, 1)
    labels = (torch.arange(400) % 4 == 0).long()  # three of four are of class 0
    assert calibration_error(probabilities, labels) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(probabilities, 1 - labels) == pytest.approx(50.0)


def test_certain_and_always_wrong_is_a_hundred_percent() -> None:
    assert calibration_error(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == 100.0


def test_sums_of_parts_are_those_of_the_whole() -> None:
    probabilities, labels = some(1, 103, 5, 2.0)
    parts = [bin_sums(p, y) for p, y in zip(probabilities.split(25), labels.split(25), strict=True)]
    assert expected_error(sum(parts)) == pytest.approx(calibration_error(probabilities, labels))
    assert int(sum(parts)[0].sum()) == 103


def test_more_than_two_bins_see_what_one_bin_averages_away() -> None:
    """Too sure of one half and not sure enough of the other: one bin finds nothing."""
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).repeat(20, 1)
    labels = torch.tensor([0, 0] * 15 + [1, 0] * 5)  # 75 % right where it says 90 %, 100 % where it says 60 %
    assert calibration_error(probabilities, labels, 1) < 13 < calibration_error(probabilities, labels)
    assert calibration_error(probabilities, labels) == pytest.approx(100 * np.mean([0.15, 0.4]))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"probabilities are \(3, 2\) and labels \(2,\); they must be \(N, classes\)"):
        calibration_error(torch.rand(3, 2), torch.zeros(2).long())
    with pytest.raises(OutOfRange, match=r"bins is 0; it must be 1 or more\."):
        calibration_error(torch.rand(3, 2), torch.zeros(3).long(), 0)
