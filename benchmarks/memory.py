"""Bytes, counted from tensor allocations and not from the process: what is kept for backward, and the peak."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.operator import Case, Operator, operators


class Allocations(TorchDispatchMode):
    """Counts the bytes of storages that come into being under it, and the largest sum alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), given)
        return result

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in given:
            return
        self._known.add(key)
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, partial(self._remove, key, storage.nbytes()))

    def _remove(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.alive -= nbytes


def measure(case: Case) -> dict[str, Any]:
    """For every variant: bytes kept for backward beyond x, and peak extra allocation, in units of x."""
    x, grad, index = case.tensors(torch.device("cpu"))
    unit = x.numel() * x.itemsize
    row: dict[str, Any] = {"over": case.over, "shape": list(case.shape), "dtype": case.dtype}
    for name in ("algorithm_1", "scale_shift", "eager"):
        operator = operators(case.over)[name]
        row[name] = {"saved": _saved(operator, x, index) / unit, "peak": _peak(operator, x, index, grad) / unit}
    row["compiled"] = {"saved": _saved(operators(case.over)["compiled"], x, index) / unit}
    moments = 2 * _moment_elements(case) * 4 + index.numel() * index.itemsize
    row["two_moment_maps_and_pairing"] = moments / unit
    return row


def _saved(operator: Operator, x: Tensor, index: Tensor) -> int:
    x = x.detach().requires_grad_()
    operator(x, index)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        operator(x, index)
    kept.pop(x.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def _peak(operator: Operator, x: Tensor, index: Tensor, grad: Tensor) -> int:
    x = x.detach().requires_grad_()
    with Allocations() as counted:
        operator(x, index).backward(grad)
    return counted.peak


def _moment_elements(case: Case) -> int:
    batch, channels, height, width = case.shape
    return {"PONO": batch * height * width, "IN": batch * channels, "LN": batch, "GN(4)": batch * 4}[case.over]
