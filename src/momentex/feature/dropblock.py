"""DropBlock (Ghiasi et al. 2018): squares of neighbouring features are dropped, while training.

    γ = p / s² · H W / ((H − s + 1)(W − s + 1))          the probability that a position begins a block of s × s
    h ← h · M · count(M) / count_ones(M)                  M: 0 inside of blocks, 1 elsewhere; each channel its own

`p` is about the share of features that is dropped: blocks may overlap. It behaves like dropout: its draws come from
torch's own generator, which activation checkpointing and the checkpoints of a run restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentex.attach import find_layer, unwrapped
from momentex.errors import FeatureError, LayerNotFound, OutOfRange, StepError, check_fraction


def drop_block(h: Tensor, p: float | Tensor, block_size: int = 7) -> Tensor:
    """Features (batch, channels, height, width) of which blocks are dropped; the others grow, so that the sum stays.

    A block is at most as large as the features. `p` as a tensor of no axes may change in a compiled graph.

    >>> h = torch.ones(2, 3, 8, 8)
    >>> torch.equal(drop_block(h, 0.0), h), 0.0 in drop_block(h, 0.5, block_size=2)
    (True, True)
    """
    check_block_size(block_size)
    if h.ndim != 4 or not h.is_floating_point():
        raise FeatureError(
            f"features are {h.dtype} {tuple(h.shape)}; DropBlock needs floating-point maps, (batch, channels, height, "
            "width)."
        )
    size = min(block_size, h.shape[2], h.shape[3])
    rows, columns = h.shape[2] - size + 1, h.shape[3] - size + 1
    drawn = torch.rand(h.shape[0], h.shape[1], rows, columns, device=h.device)
    return without_blocks(h, drawn < start_probability(p, size, h.shape[2], h.shape[3]), size)


def start_probability(p: float | Tensor, size: int, height: int, width: int) -> float | Tensor:
    """γ of the paper, for blocks that lie inside of the features.

    >>> start_probability(0.5, size=2, height=3, width=3)
    0.28125
    """
    return p * (height * width) / (size**2 * (height - size + 1) * (width - size + 1))


def without_blocks(h: Tensor, starts: Tensor, size: int) -> Tensor:
    """`h` without the blocks whose upper left corners are true in `starts`, scaled up by the share that is left."""
    around = F.pad(starts.to(h.dtype), [size - 1] * 4)
    kept = 1 - F.max_pool2d(around, size, stride=1)
    scale = kept.numel() / kept.sum(dtype=torch.float32).clamp(min=1)  # where everything was dropped, nothing is left
    return h * kept * scale.to(h.dtype)


def check_block_size(size: int) -> int:
    """`size` if it is a whole number from 1 on."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise OutOfRange(f"block_size is {size!r}; it is the side of a square of features, a whole number from 1 on.")
    return size


class DropBlock:
    """DropBlock for any model: attached to the outputs of layers, which it acts on while they are in train mode.

    layers       names of child modules, as in `model.named_modules()`, that return (batch, channels, height, width)
    p            about the share of features that is dropped in the end: 1 − keep_prob
    block_size   side of a block

    As published, the share rises linearly over the training, from 0 to `p`: say `at(progress)` before each step, with
    a progress from 0 to 1. Without it, `p` holds from the beginning. Parameters, buffers and keys stay as they are.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    >>> dropping = DropBlock(model, ["1"], p=0.1, block_size=3)
    >>> for step in range(3):
    ...     _ = dropping.at(step / 3), model(torch.randn(2, 3, 8, 8))
    >>> round(dropping.now, 3)
    0.067
    """

    def __init__(self, model: nn.Module, layers: str | Sequence[str], *, p: float = 0.1, block_size: int = 7) -> None:
        self.p = check_fraction("p", p)
        self.block_size = check_block_size(block_size)
        names = (layers,) if isinstance(layers, str) else tuple(layers)
        if not names or len(set(names)) != len(names):
            raise LayerNotFound(f"layers is {layers!r}; name one layer, or several different ones.")
        model = unwrapped(model)
        modules = {name: find_layer(model, name) for name in names}  # all of them, before one has a hook
        self._hooks = [_Hook(name, self.block_size, self.p) for name in names]
        self._handles = [modules[hook.name].register_forward_hook(hook.on_output) for hook in self._hooks]

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that it is attached to; none after `remove`."""
        return tuple(hook.name for hook in self._hooks)

    @property
    def now(self) -> float:
        """The share that is dropped now."""
        return float(self._hooks[0].p) if self._hooks else 0.0

    def at(self, progress: float) -> None:
        """So much of the training is over, from 0 to 1: drop this part of `p`."""
        if not self._hooks:
            raise StepError("this DropBlock was removed from its model; make a new one.")
        share = self.p * check_fraction("progress", progress)
        for hook in self._hooks:
            hook.p.fill_(share)

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()

    def __repr__(self) -> str:
        return f"DropBlock(layers={self.layers}, p={self.p}, block_size={self.block_size})"


class _Hook:
    """What sits on a layer. `p` is a tensor, on the CPU, so that a schedule never recompiles."""

    def __init__(self, name: str, block_size: int, p: float) -> None:
        self.name, self.block_size = name, block_size
        self.p = torch.tensor(p, device="cpu")

    def on_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
        if not module.training:
            return None
        if not isinstance(output, Tensor):
            raise FeatureError(
                f"layer {self.name!r} returns a {type(output).__name__}, and DropBlock needs a tensor: name a layer "
                "that returns maps, (batch, channels, height, width)."
            )
        return drop_block(output, self.p, self.block_size)
