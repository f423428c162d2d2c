"""Manifold mixup (Verma et al. 2019): features of two samples are interpolated at a layer, and their labels alike.

    h_i ← λ h_i + (1 − λ) h_index[i],    λ ~ Beta(α, α)        at one of the eligible layers, drawn for each step

Mixup is the case in which the only eligible layer is the input. It is attached exactly as Moment Exchange is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from momentex.attach import Facts, Select, Where
from momentex.blocks import Blocks, Given, Step
from momentex.diagnostics import Diagnostics
from momentex.errors import FeatureError, PairingError, check_fraction
from momentex.moments import Moments, accumulation_dtype
from momentex.opened import Layout
from momentex.pairing import (
    Beta,
    Pairing,
    Per,
    Plan,
    Policy,
    check_index,
    check_pairing,
    check_per,
    check_seed,
    pair,
    rank_here,
    stream,
)
from momentex.targets import Targets

STREAM = "manifold_mixup"


def manifold_mixup(h: Tensor, index: Tensor, lam: float | Tensor, *, batch_dim: int = 0) -> Tensor:
    """λ h + (1 − λ) h[index]: each sample between itself and its partner. `lam` is a number or one for each sample.

    A sample with `index[i] == i` comes out bit-identical. The result has the dtype of `h`; halves are computed in
    float32.

    >>> manifold_mixup(torch.tensor([[0.0], [10.0]]), torch.tensor([1, 0]), 0.75).flatten()
    tensor([2.5000, 7.5000])
    """
    check_index(index)
    axis = _batch_axis(h, index, batch_dim)
    index = index.to(h.device)
    lam = torch.as_tensor(lam, dtype=accumulation_dtype(h), device=h.device)
    if lam.ndim > 1 or (lam.ndim == 1 and len(lam) != len(index)):
        raise PairingError(f"lam is a tensor {tuple(lam.shape)} for {len(index)} samples; it needs one for each.")
    alone = index == torch.arange(len(index), device=h.device)
    return _between(h, index, torch.where(alone, torch.ones_like(lam), lam), axis)


def _between(h: Tensor, index: Tensor, weight: Tensor, axis: int) -> Tensor:
    work = accumulation_dtype(h)
    weight = weight.to(work).view(*(-1 if i == axis else 1 for i in range(h.ndim)))
    partner = h.index_select(axis, index)
    return torch.lerp(partner.to(work), h.to(work), weight).to(h.dtype)


def _batch_axis(h: Tensor, index: Tensor, batch_dim: int) -> int:
    if not h.is_floating_point():
        raise FeatureError(
            f"features are {h.dtype}: what lies between two of them is none of them. Mix after embedding."
        )
    if not -h.ndim <= batch_dim < h.ndim or h.shape[batch_dim] != len(index):
        raise PairingError(
            f"index has {len(index)} entries for features {tuple(h.shape)} with the batch along axis {batch_dim}; it "
            "needs one for each sample."
        )
    return batch_dim % h.ndim


@dataclass(frozen=True)
class Interpolating:
    """Manifold mixup as an operation at a layer."""

    layout: Layout
    weighted = True

    def __call__(self, h: Tensor, facts: Facts) -> tuple[Tensor, Moments | None]:
        assert facts.weight is not None
        if facts.mask is not None or facts.batch is not None:
            raise FeatureError(
                "manifold mixup interpolates position by position; with a mask or a batch vector, positions of two "
                "samples do not correspond."
            )
        return _between(h, facts.index, facts.weight, _batch_axis(h, facts.index, self.layout.batch_dim)), None


class ManifoldMixup:
    """Manifold mixup for any model: attach once, then ask for targets in a block around each forward pass.

    layers    names of child modules, as in `model.named_modules()`; one of them is drawn for each step, and features
              are mixed at its input. The input of the first layer is that of the model: name it to have mixup among
              the choices, as published
    alpha     λ ~ Beta(alpha, alpha)
    p         how probable it is that a step is mixed
    per       "batch": one λ and one coin for all, as published; "sample": one for each
    where     act on the "input" or the "output" of the layers; `select` as in MomentExchange
    pairing   "permutation" (as published), "derangement", "other_class", "same_class"
    seed      plans are a function of (seed, step, rank). Pairs are those of every method with this seed; coin, λ and
              layer are its own

    Outside of the block the model is bitwise the plain model. With Moment Exchange, enter the one whose layer comes
    first in the model first; with one shared index, the order makes no difference.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> mixup = ManifoldMixup(model, layers=["0", "1"], alpha=2.0)
    >>> with mixup(torch.tensor([1, 2, 3, 4])) as targets:
    ...     loss = targets.loss(nn.functional.cross_entropy, model(torch.randn(4, 3, 8, 8)))
    >>> mixup.plan.layer in ("0", "1"), 0 < mixup.plan.lam < 1
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str],
        *,
        alpha: float = 1.0,
        p: float = 1.0,
        per: Per = "batch",
        where: Where = "input",
        select: Select = None,
        pairing: Pairing = "permutation",
        seed: int = 0,
        rank: int | None = None,
        batch_dim: int = 0,
    ) -> None:
        check_per(per)
        check_pairing(pairing)
        self.lam = Beta(alpha, per=per)
        self.p = check_fraction("p", p)
        self.enabled = True
        self.seed, self.step, self.rank = check_seed(seed), 0, rank
        self.per: Per = per
        self.pairing: Pairing = pairing
        channel_dim = 1 if batch_dim != 1 else 0  # of no meaning here, and not the batch
        operation = Interpolating(Layout(channel_dim, batch_dim))
        self._blocks = Blocks(model, layers, where, select, operation, "ManifoldMixup", "mixup(y)")

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that it is attached to; none after `remove`."""
        return self._blocks.layers

    @property
    def plan(self) -> Plan | None:
        """The last one."""
        return self._blocks.plan

    def __call__(self, y: Tensor | Targets, *, index: Tensor | None = None, plan: Plan | None = None) -> Step:
        """A step for this batch: enter it around the forward pass and the loss.

        y       labels, or Targets of another method: composition is exact
        index   a pairing that is already decided
        plan    replay: exactly this plan, without a draw; `draw` makes one beforehand
        """
        return self._blocks.step(y, Given(index=index, plan=plan), self._draw)

    def draw(self, y: Tensor | Targets, *, index: Tensor | None = None) -> Plan:
        """The plan of the next step, for those who must know its layer before they enter it."""
        labels = y.labels if isinstance(y, Targets) else y
        return self._draw(len(labels), labels, index)

    def state_dict(self) -> dict[str, int]:
        """The two integers that plans depend on."""
        return {"seed": self.seed, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self.seed, self.step = int(state["seed"]), int(state["step"])

    def remove(self) -> None:
        """Take the hooks off the model, for pickling it or torch.jit.script."""
        self._blocks.remove()

    def diagnostics(self, *, reset: bool = False) -> Diagnostics:
        """What happened since the last reset."""
        return self._blocks.report(None, reset=reset)

    def __repr__(self) -> str:
        return f"ManifoldMixup(layers={self.layers}, alpha={self.lam.a}, p={self.p})"

    def _draw(self, size: int, labels: Tensor, index: Tensor | None) -> Plan:
        p = self.p if self.enabled else 0.0
        rank = rank_here() if self.rank is None else self.rank
        if index is None:  # that of Moment Exchange in this step
            index = pair(self.pairing, size, stream(self.seed, self.step, "pairing", rank), labels)
        policy = Policy(self.lam, p, self.per, self.pairing, self.layers, stream=STREAM)
        plan = policy.draw(self.seed, self.step, size, rank=rank, labels=labels, index=index)
        self.step += 1
        return plan
