"""Who gets whose moments, with which weight, at which layer: everything random about one step, drawn in one place.

A `Plan` is a function of (seed, step, stream, rank) alone. It is drawn on the CPU and outside of any compiled graph, so
it is the same on every device, arms of one seed see the same pairs, and resuming needs two integers. The coin, λ of the
batch and the layer ignore the rank (all ranks take the same branch); what belongs to single samples does not.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.distributed
from torch import Tensor

from momentex.errors import OutOfRange, PairingError, check_fraction, did_you_mean

Pairing: TypeAlias = Literal["permutation", "derangement", "other_class", "same_class"]
Per: TypeAlias = Literal["batch", "sample"]
CPU = torch.device("cpu")  # said everywhere, since users set other default devices
TINY = 2.0**-54  # less than any other number that torch.rand gives in float64, which may be 0
PAIRINGS: tuple[Pairing, ...] = ("permutation", "derangement", "other_class", "same_class")


@dataclass(frozen=True)
class Beta:
    """λ drawn from Beta(a, b), one for the batch or one for each sample. `b` is `a` unless given.

    >>> Beta(1.0)
    Beta(a=1.0, b=1.0, per='batch')
    """

    a: float
    b: float | None = None
    per: Per = "batch"

    def __post_init__(self) -> None:
        if self.b is None:
            object.__setattr__(self, "b", self.a)
        if not all(0 < parameter < math.inf for parameter in self._parameters):
            raise OutOfRange(f"Beta({self.a!r}, {self.b!r}): both parameters must be greater than 0, and finite.")
        check_per(self.per)

    @property
    def _parameters(self) -> tuple[float, float]:
        return self.a, self.a if self.b is None else self.b

    def draw(self, generator: torch.Generator, size: int) -> Tensor:
        # From two Gammas, of which torch.distributions has none with a generator, and in logarithms: with small
        # parameters both underflow. Gamma(a) is Gamma(a + 1) · U^(1/a).
        shape = torch.tensor(self._parameters, dtype=torch.float64, device=CPU)
        uniform = torch.rand(size, 2, dtype=torch.float64, generator=generator, device=CPU)
        logs = torch._standard_gamma((shape + 1).expand(size, 2), generator=generator).log_()
        one, other = logs.add_(uniform.log_().div_(shape)).unbind(1)
        return (one - other).sigmoid_()

    def draw_one(self, generator: torch.Generator) -> float:
        """`draw` of one number, without a tensor for each operation: this is every step."""
        a, b = self._parameters
        u, v = torch.rand(2, dtype=torch.float64, generator=generator, device=CPU).tolist()
        shape = torch.tensor((a + 1, b + 1), dtype=torch.float64, device=CPU)
        g, h = torch._standard_gamma(shape, generator=generator).tolist()
        log = math.log
        logit = log(g) + log(u or TINY) / a - (log(h) + log(v or TINY) / b)
        less = math.exp(-abs(logit))  # does not overflow
        return (1.0 if logit > 0 else less) / (1.0 + less)


Lam: TypeAlias = float | Beta


@dataclass(frozen=True, eq=False)
class Plan:
    """What must be known both inside and outside of the model for one step.

    index   (batch,) on the CPU: sample i gets the moments of index[i], and index[i] == i takes no part
    lam     weight of the sample itself: a float, or (batch,)
    layer   where it happens
    on      False if the coin said no: the plain step, and index is the identity
    asked   of how many samples the coin said yes (all, if None); those of them that keep themselves are self pairs

    >>> Plan(torch.tensor([1, 0, 2]), lam=0.9, layer="layer1")  # the first two exchange, the third takes no part
    Plan(index=tensor([1, 0, 2]), lam=0.9, layer='layer1', on=True, asked=None)
    """

    index: Tensor
    lam: float | Tensor
    layer: str
    on: bool = True
    asked: int | None = None


def stream(seed: int, step: int, name: str, rank: int = 0) -> torch.Generator:
    """The generator of (seed, step, name, rank). The key is mixed to 32 bits: the CPU generator ignores higher ones.

    >>> torch.rand(1, generator=stream(0, 7, "coin")) == torch.rand(1, generator=stream(0, 7, "coin"))
    tensor([True])
    """
    key = hashlib.blake2b(f"{seed}/{step}/{name}/{rank}".encode(), digest_size=4).digest()
    return torch.Generator(CPU).manual_seed(int.from_bytes(key, "little"))


def rank_here() -> int:
    """That of torch.distributed, or 0."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if ready else 0


@dataclass(frozen=True)
class Policy:
    """How plans are drawn. MomentExchange has one; without a model, this is how a control draws the same pairs.

    `stream` is the name before that of each draw: methods that act in one step draw independently of each other. What
    has none draws as MomentExchange does. With `shares_pairs`, the partners alone are those of MomentExchange.

    >>> plan = Policy(lam=0.9, p=1.0).draw(seed=0, step=0, size=4)
    >>> plan.lam, sorted(plan.index.tolist())
    (0.9, [0, 1, 2, 3])
    """

    lam: Lam = 0.9
    p: float = 0.5
    per: Per = "batch"
    pairing: Pairing = "permutation"
    layers: tuple[str, ...] = ("",)
    stream: str = ""
    shares_pairs: bool = False

    def __post_init__(self) -> None:
        check_lam(self.lam)
        check_fraction("p", self.p)
        check_per(self.per)
        check_pairing(self.pairing)

    def draw(
        self,
        seed: int,
        step: int,
        size: int,
        *,
        rank: int = 0,
        labels: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Plan:
        """The plan of this step for a batch of `size`. `index` is a pairing that is already decided."""
        layer = self.layers[0]
        if len(self.layers) > 1:
            drawn = torch.randint(len(self.layers), (), generator=self._stream(seed, step, "layer"), device=CPU)
            layer = self.layers[int(drawn)]
        takes_part: Tensor | None = None  # everybody
        on = self.p > 0
        if self.per == "batch" and 0 < self.p < 1:
            coin = torch.rand((), generator=self._stream(seed, step, "coin"), device=CPU) < self.p
            on = bool(coin)
        elif self.per == "sample":
            takes_part = torch.rand(size, generator=self._stream(seed, step, "coin", rank), device=CPU) < self.p
        if not on or size < 2:  # a batch of one exchanges nothing and mixes nothing
            return Plan(torch.arange(size, device=CPU), 1.0, layer, on=False)
        if index is None:
            shared = stream(seed, step, "pairing", rank) if self.shares_pairs else None
            index = pair(self.pairing, size, shared or self._stream(seed, step, "pairing", rank), labels)
        else:
            check_index(index)
            if len(index) != size:
                raise PairingError(
                    f"index has {len(index)} entries for a batch of {size}; it needs one for each sample."
                )
            index = index.to(CPU, torch.int64, copy=True)
        lam = self._lam(seed, step, rank, size)
        if takes_part is None:
            return Plan(index, lam, layer, asked=size)
        index = torch.where(takes_part, index, torch.arange(size, device=CPU))
        return Plan(index, lam, layer, asked=int(takes_part.sum()))

    def _lam(self, seed: int, step: int, rank: int, size: int) -> float | Tensor:
        if not isinstance(self.lam, Beta):
            return self.lam
        if self.lam.per == "batch":
            return self.lam.draw_one(self._stream(seed, step, "lam"))
        return self.lam.draw(self._stream(seed, step, "lam", rank), size).float()

    def _stream(self, seed: int, step: int, name: str, rank: int = 0) -> torch.Generator:
        return stream(seed, step, f"{self.stream}.{name}" if self.stream else name, rank)


def pair(pairing: Pairing, size: int, generator: torch.Generator, labels: Tensor | None = None) -> Tensor:
    """A partner for each of `size` samples, on the CPU. A sample for which there is none keeps itself.

    "permutation" may pair a sample with itself (once a batch on average, as published); "derangement" does not;
    "other_class" and "same_class" draw uniformly among the samples that qualify, so one may give to several.

    >>> pair("other_class", 3, stream(0, 0, "pairing"), torch.tensor([5, 5, 8]))[:2]
    tensor([2, 2])
    """
    check_pairing(pairing)
    if pairing == "permutation" and size > 1:
        return torch.randperm(size, generator=generator, device=CPU)
    me = torch.arange(size, device=CPU)
    if size < 2:
        return me
    if pairing == "derangement":
        index = me
        while bool((index == me).any()):  # accepted once in e ≈ 2.7 tries; uniform over derangements
            index = torch.randperm(size, generator=generator, device=CPU)
        return index
    same = _classes(labels, size, pairing)
    same = same[:, None] == same[None, :]
    allowed = same & (me[:, None] != me) if pairing == "same_class" else ~same
    index = torch.rand(size, size, generator=generator, device=CPU).masked_fill_(~allowed, -1).argmax(1)
    return torch.where(allowed.any(1), index, me)


def looks_are_free(tensor: Tensor) -> bool:
    """Whether values may be looked at: elsewhere that would wait for a device, or break a graph."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return tensor.device.type == "cpu" and not traced


def check_index(index: Tensor) -> None:
    """Raise unless `index` is one axis of whole numbers from 0 to its own length, exclusive."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32) or index.ndim != 1:
        given = f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else f"a {type(index).__name__}"
        raise PairingError(f"index is {given}; it must be a tensor of whole numbers with one axis: (batch,).")
    if not looks_are_free(index):
        return  # index_select checks on the device
    low, high = map(int, index.aminmax()) if len(index) else (0, -1)
    if low < 0 or high >= len(index):
        raise PairingError(
            f"index has entries from {low} to {high}; for a batch of {len(index)} they must be 0 to {len(index) - 1}."
        )


def sit_out(index: Tensor, enough: Tensor | None) -> Tensor:
    """`index` in which samples without enough valid positions neither give nor receive. No look at the values."""
    if enough is None:
        return index
    takes_part = enough & enough.index_select(0, index)
    return torch.where(takes_part, index, torch.arange(len(index), device=index.device, dtype=index.dtype))


def check_pairing(pairing: str) -> None:
    if pairing not in PAIRINGS:
        known = ", ".join(map(repr, PAIRINGS))
        raise PairingError(f"pairing is {pairing!r}; known are {known}. {did_you_mean(str(pairing), PAIRINGS)}".strip())


def check_per(per: str) -> None:
    if per not in ("batch", "sample"):
        raise PairingError(f"per is {per!r}; it is 'batch' (one draw for all) or 'sample' (one for each).")


def check_seed(seed: int) -> int:
    if not isinstance(seed, int):
        raise OutOfRange(f"seed is {seed!r}; it must be a whole number, of which every plan is a function.")
    return seed


def check_lam(lam: Lam) -> Lam:
    return lam if isinstance(lam, Beta) else check_fraction("lam", lam)


def _classes(labels: Tensor | None, size: int, pairing: str) -> Tensor:
    """One class a sample, on the CPU."""
    if labels is not None and labels.ndim == 2 and labels.is_floating_point():
        labels = labels.argmax(1)
    if labels is None or labels.shape != (size,) or labels.is_floating_point():
        given = "none" if labels is None else f"{labels.dtype} {tuple(labels.shape)}"
        raise PairingError(
            f"pairing={pairing!r} needs one class for each of the {size} samples: class indices (batch,) or soft rows "
            f"(batch, classes). Labels given: {given}. Use pairing='permutation', or hand in index=."
        )
    return labels.detach().cpu()
