"""The operator, forward and backward: ours, eager and compiled, against Algorithm 1 and the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import interleaved
from benchmarks.published import algorithm_1, floor_step, group_norm_view, scale_shift
from momentex import GN, IN, LN, PONO
from momentex.exchange import How, exchange
from momentex.over import Over

Shape = tuple[int, int, int, int]
SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": ((128, 64, 8, 8), (128, 16, 32, 32), (128, 64, 32, 32)),
    "cuda": ((128, 16, 32, 32), (256, 64, 56, 56)),  # CIFAR's and ImageNet's stem
}
OVERS: dict[str, Over] = {"PONO": PONO(), "IN": IN(), "LN": LN(), "GN(4)": GN(4)}
FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Operator = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    over: str
    shape: Shape
    memory_format: str
    dtype: str

    @property
    def megabytes(self) -> float:
        batch, channels, height, width = self.shape
        return batch * channels * height * width * DTYPES[self.dtype].itemsize / 2**20

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Features, a gradient and a pairing."""
        generator = torch.Generator().manual_seed(0)
        x, grad = (
            torch.randn(self.shape, generator=generator)
            .to(device, DTYPES[self.dtype])
            .contiguous(memory_format=FORMATS[self.memory_format])
            for _ in range(2)
        )
        return x, grad, torch.randperm(self.shape[0], generator=generator).to(device)


def cases(shapes: tuple[Shape, ...]) -> list[Case]:
    return [Case(o, s, f, d) for s in shapes for d in DTYPES for f in FORMATS for o in OVERS]


def operators(over: str) -> dict[str, Operator]:
    """The variants by name, with one signature."""
    value = OVERS[over]
    dims = {"PONO": (1,), "IN": (2, 3), "LN": (1, 2, 3), "GN(4)": (2, 3, 4)}[over]
    found: dict[str, Operator] = {
        "algorithm_1": partial(algorithm_1, dims=dims),
        "scale_shift": partial(scale_shift, dims=dims),
    }
    if isinstance(value, GN):
        found = {name: partial(_on_groups, function, value.groups) for name, function in found.items()}
    for name, compiled in (("eager", False), ("compiled", True)):
        found[name] = partial(_ours, How(value, compiled=compiled))
    return found


def measure(device: torch.device, *, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for every case, as it is measured."""
    for case in cases(SHAPES[device.type][: 1 if quick else None]):
        torch.compiler.reset()
        x, grad, index = case.tensors(device)
        variants = {name: partial(_step, op, x, index, grad) for name, op in operators(case.over).items()}
        variants["floor"] = partial(floor_step, x, grad)
        timing = interleaved(
            variants, gate="floor", rounds=rounds, device=device, repeat=10 if device.type == "cuda" else 1
        )
        yield {
            "over": case.over,
            "shape": list(case.shape),
            "memory_format": case.memory_format,
            "dtype": case.dtype,
            "megabytes": case.megabytes,
            "counted": timing.counted,
            "idle_ratio": timing.idle_ratio,
            "milliseconds": {name: timing.median(name) * 1000 for name in variants},
            "to_algorithm_1": {name: timing.ratio(name, "algorithm_1") for name in variants if name != "algorithm_1"},
            "to_floor": {name: timing.ratio(name, "floor") for name in ("eager", "compiled")},
        }


def _step(operator: Operator, x: Tensor, index: Tensor, grad: Tensor) -> None:
    x = x.detach().requires_grad_()
    operator(x, index).backward(grad)


def _ours(how: How, x: Tensor, index: Tensor) -> Tensor:
    return exchange(x, index, how, mask=None, batch=None).h


def _on_groups(function: Callable[[Tensor, Tensor], Tensor], groups: int, x: Tensor, index: Tensor) -> Tensor:
    return function(group_norm_view(x, groups), index).flatten(1, 2)
