"""A comparator that cannot fail shows nothing: each one fails here."""

import pytest
import torch

from momentex import GN, LN, PONO
from tests import reference
from tests.compare import DTYPES, assert_close, assert_same_bits, assert_same_numbers, error


@pytest.mark.parametrize("dtype", DTYPES)
def test_assert_same_bits_sees_a_lost_sign_of_zero(dtype):
    with pytest.raises(AssertionError, match="1 of 2 elements differ"):
        assert_same_bits(torch.tensor([0.0, 1.0], dtype=dtype), torch.tensor([-0.0, 1.0], dtype=dtype))


def test_assert_same_bits_accepts_nan_and_refuses_other_shapes_and_dtypes():
    nan = torch.tensor([float("nan")])
    assert_same_bits(nan, nan.clone())
    with pytest.raises(AssertionError, match="is not"):
        assert_same_bits(nan, nan[None])
    with pytest.raises(AssertionError, match="is not"):
        assert_same_bits(nan, nan.double())


def test_assert_same_numbers_tells_nan_from_numbers_and_zeros_apart():
    nan = torch.tensor([float("nan"), 0.0])
    assert_same_numbers(-nan + 0.0, nan)
    for wrong in ([0.0, 0.0], [float("nan"), -0.0], [float("inf"), 0.0]):
        with pytest.raises(AssertionError, match="1 of 2 elements differ"):
            assert_same_numbers(torch.tensor(wrong), nan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_assert_close_sees_a_relative_error_of_three_percent_nan_and_another_shape(dtype):
    wanted = torch.tensor([1.0, -100.0], dtype=dtype)
    for wrong in (wanted * 1.03, wanted * float("nan"), wanted[:, None]):
        with pytest.raises(AssertionError):
            assert_close(wrong, wanted)


def test_error_is_relative_to_the_root_mean_square():
    assert error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0]).double()) == pytest.approx(1 / 17**0.5)


@pytest.mark.parametrize(("name", "over"), [("pono", PONO()), ("layer_norm", LN()), ("instance_norm", GN(4))], ids=str)
@pytest.mark.parametrize("index", [[1, 2, 0], [0, 0, 1]])
def test_the_listing_and_the_moments_by_hand_are_one(name, over, index):
    x, index = torch.randn(3, 4, 3, 2, dtype=torch.float64), torch.tensor(index)
    places = reference.places_of(x.shape, True, over != PONO(), getattr(over, "groups", 1))
    listing, _, _ = reference.moex(x, index, name, index)
    assert_close(reference.exchange(x, index, places), listing.where(index.view(-1, 1, 1, 1) != _me(3), x))


def _me(samples):
    return torch.arange(samples).view(-1, 1, 1, 1)
