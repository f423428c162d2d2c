"""Moment exchange (Sec. 3 and Algorithm 1): features of A with the moments of B.

Two implementations of one formula. `_readable` is F⁻¹(F(h), moments of the partner), differentiated by autograd: it is
what compilers and torch.func see, and what second derivatives are taken of. `_Fast` computes the same in eager mode
with a hand-written backward that keeps nothing of the size of the features. The tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias, TypedDict, final

import torch
from torch import Tensor

from momentex.errors import PairingError, did_you_mean
from momentex.moments import Moments, accumulation_dtype, put, strip, take
from momentex.opened import Groups, Layout, Moves, check_numbers, open_features
from momentex.over import PONO, Over, check_over
from momentex.pairing import check_index, sit_out


def exchange_moments(
    h: Tensor,
    index: Tensor,
    over: Over = PONO(),
    *,
    mask: Tensor | None = None,
    batch: Tensor | None = None,
    channel_dim: int = 1,
    batch_dim: int = 0,
    skip: int = 0,
    eps: float = 1e-5,
    correction: int = 1,
    detach: bool = False,
) -> Tensor:
    """`h` with the moments of `h[index]`: sample i keeps its normalised features and gets the moments of index[i].

        h_i ← F⁻¹(ĥ_i, μ_index[i], σ_index[i])        for PONO:  σ_B (h_A − μ_A) / σ_A + μ_B        (Sec. 3, Alg. 1)

    `index` is any map of the batch into itself, a permutation or not. A sample with `index[i] == i` comes out
    bit-identical. So does one without enough valid positions (fewer than two under `mask` or `batch`); it gives its
    moments to nobody either. The result has the dtype and memory format of `h`; moments are computed in float32 at
    least. `detach=True` treats the moments that are received as constants: no gradient reaches the partner (the paper
    lets it). All other arguments are those of `normalize`.

    >>> h = torch.tensor([[[0.0], [2.0]], [[10.0], [30.0]]])  # two samples, two channels, one position
    >>> exchange_moments(h, torch.tensor([1, 0])).squeeze(-1).round(decimals=3)
    tensor([[10., 30.],
            [-0.,  2.]])
    """
    how = How(over, Layout(channel_dim, batch_dim, skip), eps, correction, detach)
    return exchange(h, index, how, mask=mask, batch=batch).h


@final
class Form(TypedDict, total=False):
    """The keywords of `exchange_moments` that describe the features and the numerics, and `compiled`."""

    channel_dim: int
    batch_dim: int
    skip: int
    eps: float
    correction: int
    detach: bool
    compiled: bool


@dataclass(frozen=True)
class How:
    """What is exchanged and how: everything about an exchange that does not change from batch to batch."""

    over: Over = PONO()
    layout: Layout = Layout()
    eps: float = 1e-5
    correction: int = 1
    detach: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        check_over(self.over)
        check_numbers(self.eps, self.correction)

    @staticmethod
    def of(over: Over, form: Form, others: Iterable[str] = ()) -> How:
        """From keywords. An unknown one is named, with those near to it among the known ones and `others`."""
        for name in form.keys() - Form.__annotations__.keys():
            known = [*others, *Form.__annotations__]
            hint = did_you_mean(name, known) or f"Known are {', '.join(known)}."
            raise TypeError(f"unexpected keyword {name!r}. {hint}")
        numbers = {name: value for name, value in form.items() if name not in ("channel_dim", "batch_dim", "skip")}
        layout = Layout(form.get("channel_dim", 1), form.get("batch_dim", 0), form.get("skip", 0))
        return How(over, layout, **numbers)  # type: ignore[arg-type]

    @property
    def moves(self) -> Moves:
        return Moves(self.over.centred and self.over.only != "std", self.over.only != "mean", self.detach)


class Exchanged(NamedTuple):
    """The new features, and the moments that the old ones had (without gradient), as `normalize` returns them."""

    h: Tensor
    moments: Moments


def exchange(h: Tensor, index: Tensor, how: How, *, mask: Tensor | None, batch: Tensor | None) -> Exchanged:
    """`exchange_moments` for callers that decide once how, and want to see the moments."""
    check_index(index)
    numbers = {"eps": how.eps, "correction": how.correction}
    opened = open_features(h, how.over, how.layout, mask=mask, batch=batch, sets=len(index), **numbers)
    if batch is None and len(index) != opened.v.shape[0]:
        raise PairingError(
            f"index has {len(index)} entries for a batch of {opened.v.shape[0]} (features {tuple(h.shape)}); it needs "
            "one for each sample: the sample whose moments it gets."
        )
    index = sit_out(index.to(h.device), opened.groups.enough)
    v, moments = _run(opened.v, index, opened.groups, how)
    return Exchanged(opened.close(v), moments.closed())


def _run(v: Tensor, index: Tensor, groups: Groups, how: How) -> tuple[Tensor, Moments]:
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _readable(v, index, groups, how.moves)
    if how.compiled:
        return _compiled(how)(v, index, groups, how.moves)
    v, mean, std = _Fast.apply(v, index, groups, how.moves)
    return v, Moments(mean, std)


@cache
def _compiled(how: How) -> Callable[..., tuple[Tensor, Moments]]:
    # Code of its own for each kind of exchange: torch keeps a few graphs (recompile_limit) for one code object.
    code = _readable.__code__.replace(co_name=f"exchange_{type(how.over).__name__}")
    return torch.compile(FunctionType(code, _readable.__globals__), fullgraph=True)


def _stays(index: Tensor, like: Tensor) -> Tensor:
    """(batch, 1, 1, …): true for the samples that keep their own moments."""
    stays = index == torch.arange(len(index), device=index.device, dtype=index.dtype)
    return stays.view(-1, *[1] * (like.ndim - 1))


# --- the readable reference ------------------------------------------------------------------------------------------


def _readable(v: Tensor, index: Tensor, groups: Groups, moves: Moves) -> tuple[Tensor, Moments]:
    f = groups.zero_padding(v.to(accumulation_dtype(v)))
    own = take(f, groups)
    partner = own.at(index)
    if moves.detach:
        partner = Moments(partner.mean.detach(), partner.std.detach())
    received = Moments(partner.mean if moves.mean else own.mean, partner.std if moves.std else own.std)
    exchanged = put(strip(f, own, groups), received, groups).to(v.dtype)
    exchanged = torch.where(groups.spread(_stays(index, own.mean)), v, exchanged)
    return groups.unless_padding(exchanged, v), Moments(own.mean.detach(), own.std.detach())


def _readable_gradient(v: Tensor, grad: Tensor, index: Tensor, groups: Groups, moves: Moves) -> Tensor:
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        v = v if differentiable else v.detach().requires_grad_()
        exchanged, _moments = _readable(v, index, groups, moves)
        return torch.autograd.grad(exchanged, v, grad, create_graph=differentiable)[0]


# --- the fast path ---------------------------------------------------------------------------------------------------
#
# With j running over all samples that receive from b, x̂ = (x − μ)/σ, N elements in a group, D = N − correction, and
# for each sample a = Σ g, c = Σ g x̂, s = σ_index / σ (over the group):
#
#     y_b  = s_b (x_b − μ_b) + μ_index[b]
#     dx_b = s_b g_b + k1_b (x_b − μ_b) + k0_b     k1 = (Σ_j c_j − s c) / (D σ)     k0 = (Σ_j a_j − s a) / N
#
# A sample that stays has s = 1, subtracts 0 and adds −0.0 (x + −0.0 is x for every x, +0.0 turns −0.0 around): exact,
# and without a pass over the features.


class _Fast(torch.autograd.Function):
    """Saves the features, two moment maps and the index; works in few large blocks of whole samples."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, v: Tensor, index: Tensor, groups: Groups, moves: Moves) -> tuple[Tensor, Tensor, Tensor]:
        kernels = _kernels_for(v, groups)
        out, own = (kernels.forward if kernels else _forward)(v, index, groups, moves)
        ctx.save_for_backward(v, own.mean, own.std, index)
        ctx.groups, ctx.moves = groups, moves
        ctx.mark_non_differentiable(own.mean, own.std)
        ctx.set_materialize_grads(False)
        return out, own.mean, own.std

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if grad is None:
            return None, None, None, None
        v, mean, std, index = ctx.saved_tensors
        groups, moves = ctx.groups, ctx.moves
        # create_graph=True, or many gradients at once under vmap: what follows works in place, and can do neither
        if torch.is_grad_enabled() or _is_batched(grad):
            return _readable_gradient(v, grad, index, groups, moves), None, None, None
        kernels = _kernels_for(v, groups)
        run = kernels.backward if kernels else _backward
        return run(v, grad, Moments(mean, std), index, groups, moves), None, None, None


def _is_batched(grad: Tensor) -> bool:
    """Whether vmap, or the older one behind is_grads_batched, hides a batch of gradients in this one."""
    return torch._C._are_functorch_transforms_active() or torch._C._functorch.is_legacy_batchedtensor(grad)


@cache
def _kernels() -> ModuleType | None:
    return import_module("momentex.kernels") if find_spec("triton") else None


def _kernels_for(v: Tensor, groups: Groups) -> ModuleType | None:
    kernels = _kernels() if v.device.type == "cuda" else None
    return kernels if kernels is not None and kernels.serves(v, groups) else None


def _forward(v: Tensor, index: Tensor, groups: Groups, moves: Moves) -> tuple[Tensor, Moments]:
    out = torch.empty_like(v)
    blocks = _blocks(v, out, groups)
    own = _take_in_blocks(v, groups, blocks)
    stays = _stays(index, own.mean)
    received = own.mean.index_select(0, index) if moves.mean else own.mean
    maps = own.mean.masked_fill(stays, 0.0), _gain(own.std, index, moves, stays), received.masked_fill(stays, -0.0)
    subtract, gain, add = (_spread(m, v, groups) for m in maps)
    for rows, work in blocks:
        _subtract(v[rows], subtract[rows], work).mul_(gain[rows]).add_(add[rows])
        _write(out, rows, work, groups.mask, v)
    if out.dtype != accumulation_dtype(v):  # NaNs lose their bits on the way to float32 and back
        out = torch.where(groups.spread(stays), v, out) if v.device.type != "cpu" else _restore(out, v, stays, groups)
    return out, own


def _backward(v: Tensor, grad: Tensor, own: Moments, index: Tensor, groups: Groups, moves: Moves) -> Tensor:
    mean, std = own
    out = torch.empty_like(v)
    blocks = _blocks(v, out, groups)
    a, c = _gradient_sums(v, grad, _spread(mean, v, groups), groups, blocks)
    stays = _stays(index, mean)
    gain = _gain(std, index, moves, stays)
    k0 = _received_less_given(a.masked_fill_(stays, 0), gain, index, moves.mean, moves.detach).div_(groups.divisor)
    c = c.div_(std).masked_fill_(stays, 0)
    del a  # maps are as large as the features where a group has few channels
    k1 = _received_less_given(c, gain, index, moves.std, moves.detach).div_(std).div_(groups.spare)
    del c
    mean, gain, k1, k0 = (_spread(m, v, groups) for m in (mean, gain, k1, k0))
    for rows, work in blocks:
        _subtract(v[rows], mean[rows], work).mul_(k1[rows]).add_(k0[rows])
        work.addcmul_(grad[rows].to(work.dtype), gain[rows])
        _write(out, rows, work, groups.mask, grad)
    return out


Block: TypeAlias = tuple[slice, Tensor]  # rows of the batch, and room to work in


def _take_in_blocks(v: Tensor, groups: Groups, blocks: list[Block]) -> Moments:
    """`take`, a block at a time and in place."""
    taken = [_take_in_place(v[rows], groups.of_rows(rows), work) for rows, work in blocks]
    return Moments(torch.cat([m.mean for m in taken]), torch.cat([m.std for m in taken]))


def _take_in_place(v: Tensor, groups: Groups, work: Tensor) -> Moments:
    f = v if v.dtype == work.dtype else work.copy_(v)
    if groups.centred:
        mean = _sum(groups.zero_padding(f), groups).div_(groups.divisor)
        squares = torch.sub(f, _spread(mean, f, groups), out=work).square_()
        variance = _sum(groups.zero_padding(squares), groups).div_(groups.spare)
    else:
        squares = torch.square(f, out=work)
        variance = _sum(groups.zero_padding(squares), groups).div_(groups.divisor)
        mean = torch.zeros_like(variance)
    return Moments(mean, variance.add_(groups.eps).sqrt_())


def _gradient_sums(v: Tensor, grad: Tensor, mean: Tensor, groups: Groups, blocks: list[Block]) -> tuple[Tensor, Tensor]:
    """Σ g and Σ g (x − μ) over each group; the raw form Σ g x − μ Σ g would cancel."""
    parts = [_sums_of_block(v[r], grad[r], mean[r], groups.of_rows(r), work) for r, work in blocks]
    return torch.cat([a for a, _ in parts]), torch.cat([c for _, c in parts])


def _sums_of_block(v: Tensor, grad: Tensor, mean: Tensor, groups: Groups, work: Tensor) -> tuple[Tensor, Tensor]:
    g = groups.zero_padding(grad).to(work.dtype)
    products = _subtract(v, mean, work).mul_(g)
    c = _sum(groups.zero_padding(products), groups)
    return _sum(g, groups) if groups.centred else torch.zeros_like(c), c


def _alternate(v: Tensor, groups: Groups) -> bool:
    """Whether a few channels of every group in turn lie side by side, as GN has it in channels_last."""
    return v.shape[1] > 1 and len(groups.dims) > 1 and 2 in groups.dims and v.stride(2) < max(v.stride()[3:])


def _sum(v: Tensor, groups: Groups) -> Tensor:
    """`groups.sum`, of each channel first where groups alternate: torch then adds whole rows of memory."""
    if not _alternate(v, groups):
        return groups.sum(v)
    return v.sum(groups.dims[1:], keepdim=True).sum(2, keepdim=True)


def _spread(m: Tensor, v: Tensor, groups: Groups) -> Tensor:
    """`groups.spread`, with a value for each channel where groups alternate: for the same reason."""
    m = groups.spread(m)
    return m.expand(-1, -1, v.shape[2], *m.shape[3:]).contiguous() if _alternate(v, groups) else m


def _received_less_given(m: Tensor, gain: Tensor, index: Tensor, moves: bool, detach: bool) -> Tensor:
    """Σ_j m_j − s m, in which m is used up; j runs over the sample itself if this moment stays where it is.

    In a permutation every sum has one term, so that the order in which a GPU adds does not matter.
    """
    if not moves:
        received = m.clone()
    else:
        received = torch.zeros_like(m) if detach else torch.zeros_like(m).index_add_(0, index, m)
    return received.sub_(m.mul_(gain))


def _gain(std: Tensor, index: Tensor, moves: Moves, stays: Tensor) -> Tensor:
    if not moves.std:
        return torch.ones_like(std)
    return std.index_select(0, index).div_(std).masked_fill_(stays, 1.0)


# Elements of a block: few large ones, since every operation is a parallel region, and waits for the slowest thread.
# Narrow dtypes need scratch of the size of a block, twice in backward: theirs are a twelfth of the features at most,
# unless that would be too few for the threads.
_BLOCK, _NARROW_LEAST, _NARROW_MOST, _NARROW_PART = 2**20, 2**16, 2**17, 12


def _blocks(v: Tensor, out: Tensor, groups: Groups) -> list[Block]:
    """Whole samples at a time, each with room to work in: the rows of `out` if they are wide enough, or one scratch."""
    rows, dtype = max(1, len(v)), accumulation_dtype(v)
    in_place = out.dtype == dtype
    if v.device.type == "cpu" and v.numel() and groups.batch is None:  # a set may have points in any row
        elements = _BLOCK if in_place else _narrow_block(v.numel())
        rows = max(1, elements * len(v) // v.numel())
    starts = range(0, max(1, len(v)), rows)
    if in_place:
        return [(slice(start, start + rows), out[start : start + rows]) for start in starts]
    scratch = torch.empty_like(v[:rows], dtype=dtype)
    return [(slice(start, start + rows), scratch[: len(v) - start]) for start in starts]


def _narrow_block(elements: int) -> int:
    threads = torch.get_num_threads()
    return max(_NARROW_LEAST * threads, min(_NARROW_MOST * threads, elements // _NARROW_PART))


def _subtract(v: Tensor, m: Tensor, out: Tensor) -> Tensor:
    return torch.sub(v, m, out=out) if v.dtype == out.dtype else out.copy_(v).sub_(m)


def _restore(out: Tensor, v: Tensor, stays: Tensor, groups: Groups) -> Tensor:
    rows = groups.spread(stays).flatten().nonzero().flatten()
    out[rows] = v[rows]
    return out


def _write(out: Tensor, rows: slice, work: Tensor, mask: Tensor | None, otherwise: Tensor) -> None:
    """`work` into `out`, and into padding what stood there before."""
    if mask is not None:
        torch.where(mask[rows], work, otherwise[rows].to(work.dtype), out=work)
    if out.dtype != work.dtype:
        out[rows] = work
