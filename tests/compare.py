"""Comparators, each of which asserts, and the one table of tolerances. A test sees each of them fail."""

import torch
from torch import Tensor

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

# Relative to the largest element. One rounding of the result is 1e-16, 6e-8, 4e-3, 5e-4.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}

_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def assert_close(given: Tensor, wanted: Tensor, dtype: torch.dtype | None = None) -> None:
    """Equal up to the tolerance of `dtype` (that of `given`), whatever the dtype of `wanted`."""
    assert given.shape == wanted.shape, f"{tuple(given.shape)} is not {tuple(wanted.shape)}"
    atol = TOLERANCE[dtype or given.dtype] * max(1.0, wanted.abs().max().item() if wanted.numel() else 1.0)
    torch.testing.assert_close(given.double(), wanted.double(), rtol=0, atol=atol)


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(_INTEGER[t.element_size()])


def assert_same_bits(given: Tensor, wanted: Tensor) -> None:
    """Not one bit differs: -0.0 is not 0.0, and NaN is NaN."""
    assert given.shape == wanted.shape, f"{tuple(given.shape)} is not {tuple(wanted.shape)}"
    assert given.dtype == wanted.dtype, f"{given.dtype} is not {wanted.dtype}"
    differ = (bits(given) != bits(wanted)).nonzero()
    assert not len(differ), f"{len(differ)} of {given.numel()} elements differ, first at {differ[0].tolist()}"


def assert_same_numbers(given: Tensor, wanted: Tensor) -> None:
    """Not one bit differs, but NaN may be any of the many NaN."""
    assert_same_bits(torch.where(given.isnan(), torch.nan, given), torch.where(wanted.isnan(), torch.nan, wanted))


def error(given: Tensor, exact: Tensor) -> float:
    """Largest error in units of the root mean square of what is exact."""
    return ((given.double() - exact).abs().max() / exact.square().mean().sqrt()).item()
