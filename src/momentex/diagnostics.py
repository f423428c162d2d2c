"""What to log about the exchange: how often it happened, between whom, and how strong it was."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from momentex.errors import MomentexWarning
from momentex.moments import Moments
from momentex.pairing import Plan

QUANTILES = (0.05, 0.5, 0.95, 1.0)
GAIN_LIMIT = 100.0  # σ_B / σ_A multiplies gradients too; the paper's features stay below 10


@dataclass(frozen=True)
class Strength:
    """σ_B / σ_A over the groups of one step, and the share of groups that are constant (variance below ε)."""

    gain_q05: float
    gain_median: float
    gain_q95: float
    gain_max: float
    constant_groups: float

    @staticmethod
    def of(moments: Moments, index: Tensor, eps: float) -> Strength | None:
        """Of the groups of all who gave or received; None if nobody did."""
        moved = _moved(index)
        std = moments.std
        gain = (std.index_select(0, index) / std)[moved].flatten().double()
        if not gain.numel():
            return None
        stride = -(-gain.numel() // 2**22)  # torch.quantile sorts, and takes 2²⁴ elements at most
        levels = torch.tensor(QUANTILES[:-1], dtype=gain.dtype, device=gain.device)
        low, median, high = gain[::stride].quantile(levels).tolist()
        part = moved.index_fill(0, index[moved], True)
        constant = (std[part].square() < 2 * eps).double().mean().item()
        return Strength(low, median, high, gain.max().item(), constant)

    def warn_if_it_explodes(self, layer: str) -> None:
        if self.constant_groups > 0 and self.gain_max > GAIN_LIMIT:
            warnings.warn(
                f"layer {layer!r}: {self.constant_groups:.1%} of the groups are constant and get up to "
                f"{self.gain_max:.0f} times their deviation, their gradients too. Usual after ReLU and pooling: attach "
                "before the ReLU or at the input of the first stage, take moments over more elements, or raise eps.",
                MomentexWarning,
                stacklevel=3,
            )


@dataclass(frozen=True)
class Diagnostics:
    """Shares since the last reset, of same-class pairs over the last 64 exchanges; None where nothing is known (labels
    without classes, compiled sites).

    >>> Diagnostics(100, 0.5, 0.48, 0.04, same_class_pairs=0.1, strength=None).flat()["exchanged_samples"]
    0.48
    """

    steps: int
    exchanged_steps: float
    exchanged_samples: float
    self_pairs: float
    same_class_pairs: float | None
    strength: Strength | None

    def flat(self) -> dict[str, float]:
        """Numbers by name, for a logger."""
        rows = asdict(self)
        rows |= rows.pop("strength") or {}
        return {name: float(value) for name, value in rows.items() if value is not None}


RECENT = 64  # steps of which labels are remembered


class Tally:
    """Counts that are added up where they arise, and looked at only when asked for: no step waits for a device."""

    def __init__(self) -> None:
        self.steps = self.on = self.samples = self.asked = 0
        self._exchanged: dict[torch.device, Tensor] = {}
        self._recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT)

    def add(self, plan: Plan, index: Tensor, labels: Tensor) -> None:
        self.steps += 1
        self.samples += len(index)
        if not plan.on:
            return
        self.on += 1
        self.asked += len(index) if plan.asked is None else plan.asked
        count, device = _moved(index).sum(), index.device
        self._exchanged[device] = self._exchanged[device] + count if device in self._exchanged else count
        if labels.ndim == 1 and not labels.is_floating_point():
            self._recent.append((index, labels.detach()))

    def report(self, strength: Strength | None) -> Diagnostics:
        exchanged = sum(int(n) for n in self._exchanged.values())
        return Diagnostics(
            steps=self.steps,
            exchanged_steps=_share(self.on, self.steps),
            exchanged_samples=_share(exchanged, self.samples),
            self_pairs=_share(self.asked - exchanged, self.asked),
            same_class_pairs=self._same_class_pairs(),
            strength=strength,
        )

    def _same_class_pairs(self) -> float | None:
        if not self._recent:
            return None
        same = pairs = 0
        for index, labels in self._recent:
            moved = _moved(index).to(labels.device)
            partner = labels.index_select(0, index.to(labels.device))
            same += int(((labels == partner) & moved).sum())
            pairs += int(moved.sum())
        return _share(same, pairs)


def _moved(index: Tensor) -> Tensor:
    return index != torch.arange(len(index), device=index.device)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
