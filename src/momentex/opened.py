"""Features, opened: a view in which the elements that share moments are whole axes.

Opened features are `(samples, groups, channels of a group, *space)`, whatever the axes were called before. Elements
that share moments then fill whole axes of a row, or (ragged sets) whole axes of all rows that have one number in the
batch vector. All checks that shapes can decide are made here, before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from momentex.errors import FeatureError, GroupError, OutOfRange, PairingError, ShapeError
from momentex.over import IN, Over, check_over

MASK = "(batch, *space), true where an element counts"
SETS = "(points,) whole numbers, the set that each point belongs to"


@dataclass(frozen=True)
class Layout:
    """Which axes are the batch and the channels, and how many first positions are left alone."""

    channel_dim: int = 1
    batch_dim: int = 0
    skip: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.skip, bool) or not isinstance(self.skip, int) or self.skip < 0:
            raise OutOfRange(f"skip is {self.skip!r}; it is the number of first positions to leave alone, 0 or more.")

    def axes(self, h: Tensor) -> tuple[int, int]:
        """Batch and channel axis of `h`, counted from the front."""
        found = []
        for name, axis in (("batch_dim", self.batch_dim), ("channel_dim", self.channel_dim)):
            if not -h.ndim <= axis < h.ndim:
                raise ShapeError(f"{name}={axis}, but features {tuple(h.shape)} have {h.ndim} axes.")
            found.append(axis % h.ndim)
        if found[0] == found[1]:
            raise ShapeError(f"batch_dim and channel_dim are both axis {found[0]} of features {tuple(h.shape)}.")
        return found[0], found[1]


class Groups(NamedTuple):
    """Which elements of opened features share moments, and what their moments are."""

    dims: tuple[int, ...]  # axes within a row
    size: int | Tensor  # elements of a group; (batch, 1, 1, …) where groups differ in size
    centred: bool = True
    correction: int = 1
    eps: float = 1e-5
    mask: Tensor | None = None  # (batch, 1, 1, *space)
    batch: Tensor | None = None  # (points,): the set of each row
    sets: int = 0  # with `batch`: how many
    enough: Tensor | None = None  # (batch,): has at least two valid positions; None: all have

    def of_rows(self, rows: slice) -> Groups:
        """The groups of some samples. Sets are not cut: with a batch vector, `rows` must be all."""
        if self.mask is None:
            return self
        assert isinstance(self.size, Tensor)
        return self._replace(size=self.size[rows], mask=self.mask[rows])

    def zero_padding(self, v: Tensor) -> Tensor:
        # where, not multiplication: 0 · NaN is NaN
        return v if self.mask is None else torch.where(self.mask, v, 0)

    def unless_padding(self, v: Tensor, otherwise: Tensor) -> Tensor:
        return v if self.mask is None else torch.where(self.mask, v, otherwise)

    def collect(self, rows: Tensor) -> Tensor:
        """Sums over the axes of a row -> sums over the group, (batch, groups, 1, …)."""
        if self.batch is None:
            return rows
        return rows.new_zeros(self.sets, *rows.shape[1:]).index_add(0, self.batch, rows)

    def sum(self, v: Tensor) -> Tensor:
        return self.collect(v.sum(self.dims, keepdim=True) if self.dims else v)

    def spread(self, m: Tensor) -> Tensor:
        """A value of each group or sample -> something that broadcasts against opened features."""
        return m if self.batch is None else m.index_select(0, self.batch)

    @property
    def spare(self) -> int | Tensor:
        """N − correction. Groups that are too small sit out (see `enough`); 1 keeps them finite."""
        if isinstance(self.size, int):
            return self.size - self.correction
        return (self.size - self.correction).clamp(min=1)

    @property
    def divisor(self) -> int | Tensor:
        return self.size if isinstance(self.size, int) else self.size.clamp(min=1)


class Moves(NamedTuple):
    """Which moments come from the partner, and whether gradients go there."""

    mean: bool
    std: bool
    detach: bool


class Opened(NamedTuple):
    """Opened features and the way back."""

    v: Tensor
    groups: Groups
    layout: Layout
    axes: tuple[int, int]
    prefix: Tensor | None

    def close(self, v: Tensor) -> Tensor:
        h = self._in_order(v.flatten(1, 2))
        if self.prefix is None:
            return h
        (positions,) = {0, 1, 2} - {*self.axes}
        return torch.cat([self._in_order(self.prefix), h], dim=positions)  # in this order: strides are then as before

    def _in_order(self, f: Tensor) -> Tensor:
        return f if self.axes == (0, 1) else f.movedim((0, 1), self.axes)


def open_features(
    h: Tensor,
    over: Over,
    layout: Layout,
    *,
    mask: Tensor | None,
    batch: Tensor | None,
    sets: int | None = None,
    eps: float,
    correction: int,
) -> Opened:
    """Check everything that shapes and values can tell, then open `h` for `over`."""
    check_over(over)
    check_numbers(eps, correction)
    f, prefix, mask, axes = _sample_first(h, layout, mask, batch)
    channels = f.shape[1]
    groups = channels if isinstance(over, IN) else over.groups
    if channels == 0 or channels % groups:
        divisors = ", ".join(str(d) for d in range(1, channels + 1) if channels % d == 0) or "none"
        raise GroupError(
            f"{over}: {groups} groups do not divide the {channels} channels of features {tuple(h.shape)}; possible are "
            f"{divisors}."
        )
    if not over.space and (mask is not None or batch is not None):
        problem = (
            "ragged sets have no positions in common" if mask is None else "under a mask, partners may have padding"
        )
        raise GroupError(
            f"{type(over).__name__} exchanges position by position, and {problem}. Use IN(), LN() or GN(groups)."
        )
    v = f.unflatten(1, (groups, channels // groups))
    dims = ((2,) if over.channels else ()) + (tuple(range(3, v.ndim)) if over.space else ())
    partial = Groups(
        dims, 0, over.centred, correction if over.centred else 0, float(eps), None, batch, count_sets(batch, sets)
    )
    sized = _with_sizes(partial, v, mask)
    _check_sizes(sized, over, tuple(h.shape))
    return Opened(v, sized, layout, axes, prefix)


def check_numbers(eps: float, correction: int) -> None:
    if not eps > 0:
        raise OutOfRange(f"eps is {eps!r}; it must be greater than 0, or constant features would divide by zero.")
    if correction not in (0, 1):
        raise OutOfRange(f"correction is {correction!r}; it is 1 (unbiased, the paper's listing) or 0 (its equation).")


def open_for_moments(
    h: Tensor, shape: torch.Size, layout: Layout, *, mask: Tensor | None, batch: Tensor | None
) -> Opened:
    """Open `h` for moments of this shape, which says how the channels fall into groups."""
    f, prefix, mask, axes = _sample_first(h, layout, mask, batch)
    samples, groups, *space = shape
    fits = (
        f.shape[1] % groups == 0
        and (batch is not None or samples == f.shape[0])
        and len(space) == f.ndim - 2
        and all(m in (1, n) for m, n in zip(space, f.shape[2:], strict=True))
    )
    if not fits:
        raise ShapeError(
            f"moments (batch, groups, *space) = {tuple(shape)} do not fit features (batch, channels, *space) = "
            f"{tuple(f.shape)}: the batch must be equal, the groups must divide the channels, and every axis of space "
            "must be equal or 1. Moments at each position fit no features of another spatial size."
        )
    count_sets(batch, samples)
    opened_mask = None if mask is None else mask[:, None, None]
    groups_of = Groups((), 1, mask=opened_mask, batch=batch, sets=samples)
    return Opened(f.unflatten(1, (groups, f.shape[1] // groups)), groups_of, layout, axes, prefix)


def _sample_first(
    h: Tensor, layout: Layout, mask: Tensor | None, batch: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, tuple[int, int]]:
    """`h` as (batch, channels, *space) without the skipped positions; those; the mask without them; the axes."""
    if not isinstance(h, Tensor) or not h.is_floating_point():
        given = f"a tensor of {h.dtype}" if isinstance(h, Tensor) else f"a {type(h).__name__}"
        raise FeatureError(f"features are {given}; moments need a floating-point tensor. Attach to a later layer.")
    if h.is_nested or h.layout != torch.strided:
        raise FeatureError(
            f"features are {'nested' if h.is_nested else f'a tensor of {h.layout}'}; moments need a dense tensor: pad "
            "it and give a mask, or join the sets, (all points, channels), and give a batch vector."
        )
    if h.ndim < 2:
        raise ShapeError(f"features {tuple(h.shape)} have {h.ndim} axes; they need a batch and a channel axis.")
    axes = layout.axes(h)
    f = h if axes == (0, 1) else h.movedim(axes, (0, 1))
    if batch is not None:
        _check_batch(f, batch, layout, mask)
    if mask is not None:
        mask = _checked_mask(f, mask)
    if not layout.skip:
        return f, None, mask, axes
    if f.ndim != 3 or layout.skip >= f.shape[2]:
        raise ShapeError(
            f"skip={layout.skip} leaves the first positions alone; it needs features with one axis of more than "
            f"{layout.skip} positions, such as (batch, channels, tokens). Given (sample first): {tuple(f.shape)}."
        )
    prefix, f = f[:, :, : layout.skip], f[:, :, layout.skip :]
    return f, prefix, None if mask is None else mask[:, layout.skip :], axes


def check_tensor(name: str, value: object, meaning: str) -> None:
    """Raise unless `value` is a tensor."""
    if not isinstance(value, Tensor):
        raise ShapeError(f"{name} is a {type(value).__name__}; it must be a tensor: {meaning}.")


def _checked_mask(f: Tensor, mask: Tensor) -> Tensor:
    needed = (f.shape[0], *f.shape[2:])
    check_tensor("mask", mask, MASK)
    if tuple(mask.shape) != needed:
        raise ShapeError(
            f"mask {tuple(mask.shape)} does not fit features (batch, channels, *space) = {tuple(f.shape)}; it must be "
            f"(batch, *space) = {needed}, true where an element counts."
        )
    if mask.is_floating_point():
        raise ShapeError(f"mask is {mask.dtype}; it must be bool (or 0 / 1), true where an element counts.")
    return mask if mask.dtype == torch.bool else mask != 0


def _check_batch(f: Tensor, batch: Tensor, layout: Layout, mask: Tensor | None) -> None:
    check_tensor("batch", batch, SETS)
    if f.ndim != 2 or mask is not None or layout.skip:
        raise ShapeError(
            f"a batch vector makes features (all points, channels), without mask or skip; given {tuple(f.shape)}"
            f"{', mask' if mask is not None else ''}{', skip' if layout.skip else ''}."
        )
    if batch.shape != f.shape[:1] or batch.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            f"batch is {batch.dtype} {tuple(batch.shape)}; it must be whole numbers, one for each of the "
            f"{f.shape[0]} points: the set that the point belongs to."
        )


def count_sets(batch: Tensor | None, sets: int | None) -> int:
    """How many sets there are: `sets` if that is given, and then no point may belong to another one."""
    if batch is None:
        return 0
    if torch.compiler.is_compiling() or (sets is not None and batch.device.type != "cpu"):
        return sets or 0  # looking at the values would wait for the device; index_add checks them there
    low, high = (int(batch.min()), int(batch.max())) if batch.numel() else (0, -1)
    if low < 0 or (sets is not None and high >= sets):
        allowed = "0 or more" if sets is None else f"with {sets} sets they must be 0 to {sets}, exclusive"
        raise PairingError(f"batch has numbers from {low} to {high}; {allowed}.")
    return high + 1 if sets is None else sets


def enough_positions(mask: Tensor | None, batch: Tensor | None, sets: int) -> Tensor | None:
    """(batch,): which samples have the two valid positions without which they sit out; None if all have."""
    if batch is not None:
        ones = torch.ones_like(batch)
        return ones.new_zeros(sets).index_add(0, batch, ones) >= 2
    return None if mask is None else mask.flatten(1).sum(1) >= 2


def _with_sizes(groups: Groups, v: Tensor, mask: Tensor | None) -> Groups:
    """Count: elements of a group = valid positions × channels that share moments."""
    of_a_position = v.shape[2] if 2 in groups.dims else 1
    enough = enough_positions(mask, groups.batch, groups.sets)
    if groups.batch is not None:
        ones = torch.ones_like(groups.batch)
        positions = ones.new_zeros(groups.sets).index_add(0, groups.batch, ones)
        return groups._replace(size=(positions * of_a_position).view(-1, 1, 1), enough=enough)
    if mask is None:
        size = of_a_position
        for d in groups.dims:
            size *= v.shape[d] if d > 2 else 1
        return groups._replace(size=size)
    opened_mask = mask[:, None, None]
    positions = opened_mask.sum(tuple(range(3, v.ndim)), keepdim=True)
    return groups._replace(size=positions * of_a_position, mask=opened_mask, enough=enough)


def _check_sizes(groups: Groups, over: Over, shape: tuple[int, ...]) -> None:
    if isinstance(groups.size, int) and groups.size < 2 and over.centred:
        axes = {(True, False): "channel axis of a group", (False, True): "spatial axes"}.get(
            (over.channels, over.space), "channel and spatial axes"
        )
        raise GroupError(
            f"{over} takes moments over the {axes}, which for features {shape} has {'one' if groups.size else 'no'} "
            "element: its deviation is 0 and there is nothing to exchange. Attach to a layer with more, or choose "
            "other moments."
        )
