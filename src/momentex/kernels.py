"""The fast path on CUDA, in Triton: four launches for forward and backward instead of some fifty operations.

Every kernel walks the same grid. A sample's features are a matrix *kept × reduced*: one row for each group, one column
for each element of a group. For PONO a row is a position and a column a channel; for IN, LN and GN a row is a group and
a column an element of it. Strides, not shapes, say where an element lies, so both memory formats are served.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from momentex.moments import Moments
from momentex.opened import Groups, Moves

TILE = 4096  # elements that a program holds at once


class Matrix(NamedTuple):
    """Opened features (samples, groups, channels, positions) with the axes of space in one."""

    channels: int
    positions: int
    strides: tuple[int, int, int, int]

    @staticmethod
    def of(v: Tensor) -> Matrix | None:
        """None if the axes of space do not lie one behind the other."""
        sizes, strides = v.shape[3:], v.stride()[3:]
        for i in range(len(sizes) - 1):
            if strides[i] != strides[i + 1] * sizes[i + 1]:
                return None
        return Matrix(v.shape[2], sizes.numel(), (*v.stride()[:3], strides[-1] if sizes else 0))


def serves(v: Tensor, groups: Groups) -> bool:
    """Whether these kernels can do it: no mask, no ragged sets, no float64, axes in order, samples below 2³¹ bytes."""
    plain = groups.mask is None and groups.batch is None and v.dtype != torch.float64
    return plain and v.numel() > 0 and Matrix.of(v) is not None and v[0].numel() < 2**31


def forward(v: Tensor, index: Tensor, groups: Groups, moves: Moves) -> tuple[Tensor, Moments]:
    """The exchanged features, and the moments that they had."""
    out, x = torch.empty_like(v), Matrix.of(v)
    assert x is not None
    y = Matrix.of(out)
    assert y is not None
    grid = _Grid.of(v, x, groups)
    mean, std = torch.empty((2, *grid.map_shape), dtype=torch.float32, device=v.device)
    with torch.cuda.device_of(v):  # Triton launches on the current device
        _take[grid.reducing](v, mean, std, *grid.sizes, *x.strides, groups.eps, float(groups.spare), **grid.meta)
        _apply[grid.elementwise](
            v, out, mean, std, index, *grid.sizes, *x.strides, *y.strides, **grid.meta,
            MOVES_MEAN=moves.mean, MOVES_STD=moves.std, SPLIT=grid.split,
        )  # fmt: skip
    return out, Moments(mean, std)


def backward(v: Tensor, grad: Tensor, own: Moments, index: Tensor, groups: Groups, moves: Moves) -> Tensor:
    """The gradient with respect to the features; see the formula in `exchange`."""
    x, dy = Matrix.of(v), Matrix.of(grad)
    if dy is None:
        grad = grad.contiguous()
        dy = Matrix.of(grad)
    out = torch.empty_like(v)
    dx = Matrix.of(out)
    assert x is not None
    assert dy is not None
    assert dx is not None
    grid = _Grid.of(v, x, groups)
    mean, std = own
    sums = torch.empty((2, *grid.map_shape), dtype=torch.float32, device=v.device)
    with torch.cuda.device_of(v):  # Triton launches on the current device
        _sums[grid.reducing](
            v, grad, mean, std, sums, index, sums[0].numel(), *grid.sizes, *x.strides, *dy.strides, **grid.meta
        )
        received = sums if moves.detach else torch.zeros_like(sums).index_add_(1, index, sums)
        _apply_backward[grid.elementwise](
            v, grad, out, mean, std, sums, received, index, sums[0].numel(),
            *grid.sizes, *x.strides, *dy.strides, *dx.strides,
            float(groups.size), float(groups.spare), **grid.meta,
            MOVES_MEAN=moves.mean, MOVES_STD=moves.std, DETACH=moves.detach, SPLIT=grid.split,
        )  # fmt: skip
    return out


class _Grid(NamedTuple):
    map_shape: tuple[int, ...]
    reducing: tuple[int, int]
    elementwise: tuple[int, int, int]
    sizes: tuple[int, int, int, int]  # kept, reduced, channels, positions
    split: int
    meta: dict[str, Any]

    @staticmethod
    def of(v: Tensor, x: Matrix, groups: Groups) -> _Grid:
        over_channels, over_space = 2 in groups.dims, len(groups.dims) > (2 in groups.dims)
        samples, number = v.shape[:2]
        kept = number if over_space else number * x.positions
        reduced = (x.channels if over_channels else 1) * (x.positions if over_space else 1)
        channel_inner = x.channels > 1 and x.strides[2] <= x.strides[3]
        rows_are_contiguous = (over_space and x.channels > 1) or channel_inner or (over_space and x.strides[3] == 1)
        columns = triton.next_power_of_2(min(reduced, TILE if rows_are_contiguous else 64))
        rows = min(triton.next_power_of_2(kept), max(1, TILE // columns))
        split = max(1, min(reduced // (4 * columns), 64))
        space = v.shape[3:] if not over_space else (1,) * (v.ndim - 3)
        return _Grid(
            (samples, number, 1, *space),
            (samples, triton.cdiv(kept, rows)),
            (samples, triton.cdiv(kept, rows), split),
            (kept, reduced, x.channels, x.positions),
            split,
            {
                "OVER_SPACE": over_space,
                "CHANNEL_INNER": channel_inner,
                "CENTRED": groups.centred,
                "ROWS": rows,
                "COLUMNS": columns,
            },
        )


@triton.jit
def _row_offsets(j, positions, sg, ss, OVER_SPACE: tl.constexpr):
    return j * sg if OVER_SPACE else (j // positions) * sg + (j % positions) * ss


@triton.jit
def _column_offsets(r, channels, positions, sk, ss, OVER_SPACE: tl.constexpr, CHANNEL_INNER: tl.constexpr):
    if OVER_SPACE:
        if CHANNEL_INNER:
            return (r % channels) * sk + (r // channels) * ss
        return (r // positions) * sk + (r % positions) * ss
    return r * sk


@triton.jit
def _take(
    x, mean, std, kept, reduced, channels, positions, sb, sg, sk, ss, eps, spare,
    OVER_SPACE: tl.constexpr, CHANNEL_INNER: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = x + b * sb + _row_offsets(j, positions, sg, ss, OVER_SPACE)[:, None]
    total = tl.zeros([ROWS], tl.float32)
    if CENTRED:
        for start in range(0, reduced, COLUMNS):
            r = start + tl.arange(0, COLUMNS)
            inside = (j < kept)[:, None] & (r < reduced)[None, :]
            column = _column_offsets(r, channels, positions, sk, ss, OVER_SPACE, CHANNEL_INNER)[None, :]
            total += tl.sum(tl.load(row + column, mask=inside, other=0.0).to(tl.float32), 1)
    mu = total / reduced
    squares = tl.zeros([ROWS], tl.float32)
    for start in range(0, reduced, COLUMNS):
        r = start + tl.arange(0, COLUMNS)
        inside = (j < kept)[:, None] & (r < reduced)[None, :]
        column = _column_offsets(r, channels, positions, sk, ss, OVER_SPACE, CHANNEL_INNER)[None, :]
        d = tl.where(inside, tl.load(row + column, mask=inside, other=0.0).to(tl.float32) - mu[:, None], 0.0)
        squares += tl.sum(d * d, 1)
    tl.store(mean + b * kept + j, mu, mask=j < kept)
    tl.store(std + b * kept + j, tl.sqrt(squares / spare + eps), mask=j < kept)


@triton.jit
def _apply(
    x, y, mean, std, index, kept, reduced, channels, positions, sb, sg, sk, ss, tb, tg, tk, ts,
    OVER_SPACE: tl.constexpr, CHANNEL_INNER: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    MOVES_MEAN: tl.constexpr, MOVES_STD: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    b, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    partner = tl.load(index + b).to(tl.int64)
    stays = partner == b
    mu = tl.load(mean + b * kept + j, mask=j < kept, other=0.0)
    gain = tl.full([ROWS], 1.0, tl.float32)
    if MOVES_STD:
        own = tl.load(std + b * kept + j, mask=j < kept, other=1.0)
        gain = tl.where(stays, 1.0, tl.load(std + partner * kept + j, mask=j < kept, other=1.0) / own)
    received = tl.load(mean + partner * kept + j, mask=j < kept, other=0.0) if MOVES_MEAN else mu
    subtract, add = tl.where(stays, 0.0, mu), tl.where(stays, -0.0, received)
    row_x = x + b * sb + _row_offsets(j, positions, sg, ss, OVER_SPACE)[:, None]
    row_y = y + b * tb + _row_offsets(j, positions, tg, ts, OVER_SPACE)[:, None]
    for start in range(tl.program_id(2) * COLUMNS, reduced, COLUMNS * SPLIT):
        r = start + tl.arange(0, COLUMNS)
        inside = (j < kept)[:, None] & (r < reduced)[None, :]
        column = _column_offsets(r, channels, positions, sk, ss, OVER_SPACE, CHANNEL_INNER)[None, :]
        before = tl.load(row_x + column, mask=inside, other=0.0)
        value = (before.to(tl.float32) - subtract[:, None]) * gain[:, None] + add[:, None]
        column = _column_offsets(r, channels, positions, tk, ts, OVER_SPACE, CHANNEL_INNER)[None, :]
        # NaNs lose their bits on the way to float32 and back
        tl.store(row_y + column, tl.where(stays, before, value.to(y.dtype.element_ty)), mask=inside)


@triton.jit
def _sums(
    x, g, mean, std, own, index, maps, kept, reduced, channels, positions, sb, sg, sk, ss, tb, tg, tk, ts,
    OVER_SPACE: tl.constexpr, CHANNEL_INNER: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mu = tl.load(mean + b * kept + j, mask=j < kept, other=0.0)
    row_x = x + b * sb + _row_offsets(j, positions, sg, ss, OVER_SPACE)[:, None]
    row_g = g + b * tb + _row_offsets(j, positions, tg, ts, OVER_SPACE)[:, None]
    a = tl.zeros([ROWS], tl.float32)
    c = tl.zeros([ROWS], tl.float32)
    for start in range(0, reduced, COLUMNS):
        r = start + tl.arange(0, COLUMNS)
        inside = (j < kept)[:, None] & (r < reduced)[None, :]
        column = _column_offsets(r, channels, positions, sk, ss, OVER_SPACE, CHANNEL_INNER)[None, :]
        value = tl.load(row_x + column, mask=inside, other=0.0).to(tl.float32)
        column = _column_offsets(r, channels, positions, tk, ts, OVER_SPACE, CHANNEL_INNER)[None, :]
        grad = tl.load(row_g + column, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            a += tl.sum(grad, 1)
        c += tl.sum(grad * (value - mu[:, None]), 1)
    stays = tl.load(index + b).to(tl.int64) == b
    sigma = tl.load(std + b * kept + j, mask=j < kept, other=1.0)
    tl.store(own + b * kept + j, tl.where(stays, 0.0, a), mask=j < kept)
    tl.store(own + maps + b * kept + j, tl.where(stays, 0.0, c / sigma), mask=j < kept)


@triton.jit
def _apply_backward(
    x, g, dx, mean, std, own, received, index, maps, kept, reduced, channels, positions,
    sb, sg, sk, ss, tb, tg, tk, ts, ub, ug, uk, us, size, spare,
    OVER_SPACE: tl.constexpr, CHANNEL_INNER: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    MOVES_MEAN: tl.constexpr, MOVES_STD: tl.constexpr, DETACH: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    b, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    partner = tl.load(index + b).to(tl.int64)
    here = b * kept + j
    mu = tl.load(mean + here, mask=j < kept, other=0.0)
    sigma = tl.load(std + here, mask=j < kept, other=1.0)
    a = tl.load(own + here, mask=j < kept, other=0.0)
    c = tl.load(own + maps + here, mask=j < kept, other=0.0)
    gain = tl.full([ROWS], 1.0, tl.float32)
    if MOVES_STD:
        gain = tl.where(partner == b, 1.0, tl.load(std + partner * kept + j, mask=j < kept, other=1.0) / sigma)
    from_a, from_c = a, c
    if MOVES_MEAN:
        from_a = tl.zeros([ROWS], tl.float32) if DETACH else tl.load(received + here, mask=j < kept, other=0.0)
    if MOVES_STD:
        from_c = tl.zeros([ROWS], tl.float32) if DETACH else tl.load(received + maps + here, mask=j < kept, other=0.0)
    k0 = (from_a - gain * a) / size
    k1 = (from_c - gain * c) / (sigma * spare)
    row_x = x + b * sb + _row_offsets(j, positions, sg, ss, OVER_SPACE)[:, None]
    row_g = g + b * tb + _row_offsets(j, positions, tg, ts, OVER_SPACE)[:, None]
    row_d = dx + b * ub + _row_offsets(j, positions, ug, us, OVER_SPACE)[:, None]
    for start in range(tl.program_id(2) * COLUMNS, reduced, COLUMNS * SPLIT):
        r = start + tl.arange(0, COLUMNS)
        inside = (j < kept)[:, None] & (r < reduced)[None, :]
        column = _column_offsets(r, channels, positions, sk, ss, OVER_SPACE, CHANNEL_INNER)[None, :]
        value = tl.load(row_x + column, mask=inside, other=0.0).to(tl.float32)
        column = _column_offsets(r, channels, positions, tk, ts, OVER_SPACE, CHANNEL_INNER)[None, :]
        grad = tl.load(row_g + column, mask=inside, other=0.0).to(tl.float32)
        value = gain[:, None] * grad + k1[:, None] * (value - mu[:, None]) + k0[:, None]
        column = _column_offsets(r, channels, positions, uk, us, OVER_SPACE, CHANNEL_INNER)[None, :]
        tl.store(row_d + column, value.to(dx.dtype.element_ty), mask=inside)
