"""The CUDA kernels against the readable reference: python -m tests.kernels_on_device.

On a GPU they run compiled, elsewhere in the interpreter of Triton (TRITON_INTERPRET=1).
A program of its own, because Triton decides when it is imported whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import itertools
import sys

import torch

from momentex import GN, IN, LN, LRN, PONO, kernels
from momentex.exchange import How, _readable
from momentex.opened import open_features

SHAPES = ((5, 6, 4, 3), (3, 12, 7), (4, 8), (2, 70, 5, 13))
ON_GPU_TOO = ((64, 16, 32, 32), (16, 64, 56, 56), (3, 130, 9, 5, 2))
OVERS = (PONO(), PONO(2), PONO(only="mean"), PONO(only="std"), IN(), IN("mean"), LN(), LN("std"), GN(2), LRN())
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def compare(shape: tuple[int, ...], how: How, dtype: torch.dtype, channels_last: bool, device: str) -> float:
    """The largest error of values and gradients, over the tolerance; sample 0 stays and must be exact."""
    x = torch.randn(shape, device=device).to(dtype)
    if channels_last and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    index = torch.randint(len(x), (len(x),), device=device)
    index[0] = 0
    v, groups, *_ = open_features(
        x, how.over, how.layout, mask=None, batch=None, eps=how.eps, correction=how.correction
    )
    expected, moments = _readable(v, index, groups, how.moves)
    grad = torch.randn_like(expected)
    (expected_grad,) = torch.autograd.grad(expected, v, grad)
    v = v.detach()
    assert kernels.serves(v, groups)
    out, own = kernels.forward(v, index, groups, how.moves)
    out_grad = kernels.backward(v, grad, own, index, groups, how.moves)
    assert torch.equal(out[0], v[0])
    assert out.stride() == v.stride()
    assert own.mean.shape == moments.mean.shape
    pairs = ((out, expected), (out_grad, expected_grad), (own.std, moments.std), (own.mean, moments.mean))
    return max(_error(a.detach().double(), b.detach().double()) for a, b in pairs) / TOLERANCE[dtype]


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    size = expected.abs() + expected.square().mean().sqrt() + torch.finfo(torch.float32).tiny
    return float(((found - expected).abs() / size).max())


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = SHAPES + ON_GPU_TOO if device == "cuda" else SHAPES
    worst, count = 0.0, 0
    cases = list(itertools.product(shapes, OVERS, TOLERANCE, (False, True), (False, True)))
    for shape, over, dtype, last, detach in cases if device == "cuda" else cases[::5]:  # the interpreter is slow
        if len(shape) == 2 and isinstance(over, IN):
            continue
        how = How(over, detach=detach)
        error = compare(shape, how, dtype, last, device)
        if not error <= 1:
            sys.exit(f"{shape} {how} {dtype} channels_last={last}: {error:.3g} × the tolerance")
        worst, count = max(worst, error), count + 1
    print(f"{count} cases on {device}, worst {worst:.3g} of the tolerance")


if __name__ == "__main__":
    main()
