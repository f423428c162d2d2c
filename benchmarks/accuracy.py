"""Error of values and gradients against float64, beside that of Algorithm 1 in the same dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.operator import Operator, operators

INPUTS = {
    "normal": lambda x: x,
    "after ReLU": torch.relu,
    "100 + normal": lambda x: x + 100,
    "300 · normal": lambda x: x * 300,
}
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row for each kind of moments, dtype and input: maximal error over root mean square."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(32, 16, 16, 16, generator=generator) for _ in range(2))
    index = torch.randperm(32, generator=generator)
    rows = []
    for over in ("PONO", "IN", "LN", "GN(4)"):
        torch.compiler.reset()
        variants = operators(over)
        names = ("algorithm_1", "eager") if quick else ("algorithm_1", "eager", "compiled")
        for dtype_name, dtype in {"float32": torch.float32, **HALVES}.items():
            for input_name, transform in INPUTS.items():
                h = transform(x).to(dtype)
                exact = _both(variants["algorithm_1"], h.double(), index, grad.to(dtype).double())
                row: dict[str, Any] = {"over": over, "dtype": dtype_name, "input": input_name}
                for name in names:
                    found = _both(variants[name], h, index, grad.to(dtype))
                    row[name] = {
                        part: _error(f, e) for part, f, e in zip(("value", "gradient"), found, exact, strict=True)
                    }
                rows.append(row)
    return rows


def _both(operator: Operator, x: Tensor, index: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = operator(x, index)
    y.backward(grad)
    assert x.grad is not None
    return y.detach(), x.grad


def _error(found: Tensor, exact: Tensor) -> float:
    """inf where the result is not finite."""
    if not found.isfinite().all():
        return float("inf")
    return float((found.double() - exact).abs().max() / exact.square().mean().sqrt())
