"""What users hold: MomentExchange, attached once, which hands out a step for every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from momentex.attach import Exchanging, Select, Where
from momentex.blocks import Blocks, Given, Step
from momentex.diagnostics import Diagnostics, Strength
from momentex.errors import check_fraction
from momentex.exchange import Form, How
from momentex.over import PONO, Over
from momentex.pairing import Lam, Pairing, Per, Plan, Policy, check_lam, check_pairing, check_per, check_seed, rank_here
from momentex.targets import Targets

if TYPE_CHECKING:
    from typing_extensions import Unpack

Schedule: TypeAlias = Callable[[int], float]  # of the number of the step


class MomentExchange:
    """Moment Exchange for any model: attach once, then ask for targets in a block around each forward pass.

        moex = MomentExchange(model, layer="layer1", lam=0.9, p=0.5)   # acts on the input of layer1
        for x, y in loader:
            with moex(y) as targets:
                loss = targets.loss(F.cross_entropy, model(x))
            loss.backward()

    Inside the block, with probability `p`, every sample gets the moments of its partner at `layer`, and the targets ask
    for both labels: λ = `lam` for the sample's own, 1 − λ for the partner's (Sec. 3). Outside of it the model is
    bitwise the plain model, in train mode too: no parameters, no buffers, no other keys in its state.

    layer     name of a child module, as in `model.named_modules()`; several: one of them is drawn for each step.
              The paper's "first layer" is the input of the first stage: "layer1" of a ResNet
    over      what the moments range over: PONO(), IN(), LN(), GN(groups), LRN(), each also `only="mean"` or "std"
    lam, p    numbers in [0, 1] or functions of the step; lam also Beta(a, b). Both may be assigned while training,
              and `enabled = False` turns everything off. λ is always the weight of the sample itself
    per       "batch": one coin for all, as the authors do; "sample": one for each
    where     act on the "input" or the "output" of the layer
    select    where the layer takes or returns more than one tensor: position, keyword, or a path of those
    pairing   "permutation" (as published), "derangement", "other_class", "same_class"
    seed      plans are a function of (seed, step, rank); `rank` is that of torch.distributed unless given
    **form    channel_dim, batch_dim, skip, eps, correction, detach: see `exchange_moments`.
              compiled=True compiles the operator alone, for models that are not compiled themselves

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> moex = MomentExchange(model, layer="1", p=1.0)
    >>> x, y = torch.randn(4, 3, 8, 8), torch.tensor([1, 2, 3, 4])
    >>> with moex(y) as targets:
    ...     loss = targets.loss(nn.functional.cross_entropy, model(x))
    >>> loss.backward()
    >>> targets
    Targets(0.9 · torch.int64 (4,) + 0.1 · torch.int64 (4,))
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | Sequence[str],
        *,
        over: Over = PONO(),
        lam: Lam | Schedule = 0.9,
        p: float | Schedule = 0.5,
        per: Per = "batch",
        where: Where = "input",
        select: Select = None,
        pairing: Pairing = "permutation",
        seed: int = 0,
        rank: int | None = None,
        **form: Unpack[Form],
    ) -> None:
        self.lam, self.p = lam, p
        check_pairing(pairing)
        check_per(per)
        self.enabled = True
        self.seed, self.step, self.rank = check_seed(seed), 0, rank
        self.pairing: Pairing = pairing
        self.per: Per = per
        self._how = How.of(over, form, signature(MomentExchange).parameters.keys() - {"form"})
        self._blocks = Blocks(model, layer, where, select, Exchanging(self._how), "MomentExchange", "moex(y)")

    @property
    def lam(self) -> Lam | Schedule:
        """λ, the weight of the sample itself."""
        return self._lam

    @lam.setter
    def lam(self, value: Lam | Schedule) -> None:
        self._lam = value if callable(value) else check_lam(value)

    @property
    def p(self) -> float | Schedule:
        """The probability of exchanging."""
        return self._p

    @p.setter
    def p(self, value: float | Schedule) -> None:
        self._p = value if callable(value) else check_fraction("p", value)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that it is attached to; none after `remove`."""
        return self._blocks.layers

    @property
    def plan(self) -> Plan | None:
        """The last one."""
        return self._blocks.plan

    def __call__(
        self,
        y: Tensor | Targets,
        *,
        mask: Tensor | None = None,
        batch: Tensor | None = None,
        index: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Step:
        """A step for this batch: enter it around the forward pass and the loss.

        y       labels, or Targets of an input-space method: composition is exact
        mask    (batch, *space) at the layer, true where an element counts; `batch` (points,): the set of each point
        index   a pairing that is already decided, to share one with CutMix; the coin and λ stay this object's
        plan    replay: exactly this plan, without a draw (SAM, closures): `moex.plan` is the last one
        """
        return self._blocks.step(y, Given(mask, batch, index, plan), self._draw)

    def state_dict(self) -> dict[str, int]:
        """The two integers that plans depend on."""
        return {"seed": self.seed, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self.seed, self.step = int(state["seed"]), int(state["step"])

    def remove(self) -> None:
        """Take the hooks off the model, for pickling it or torch.jit.script.

        Call backward first: a checkpointed pass that runs again without its hook would run without its exchange.
        """
        self._blocks.remove()

    def diagnostics(self, *, reset: bool = False) -> Diagnostics:
        """What happened since the last reset. Counting is free; this call looks at the counts, and may wait for a GPU.

        The strength σ_B/σ_A is that of the last exchange in eager mode; for compiled models ask `momentex.check`.
        """
        hook, strength = self._blocks.last, None
        if hook is not None and hook.seen is not None and hook.seen.moments is not None:
            strength = Strength.of(hook.seen.moments, hook.seen.index, self._how.eps)
            if strength is not None and self._how.moves.std:
                strength.warn_if_it_explodes(hook.name)
        return self._blocks.report(strength, reset=reset)

    def __repr__(self) -> str:
        return f"MomentExchange(layer={self.layers}, over={self._how.over}, lam={self.lam}, p={self.p})"

    def _draw(self, size: int, labels: Tensor, index: Tensor | None) -> Plan:
        lam = check_fraction("lam", self.lam(self.step)) if callable(self.lam) else self.lam
        p = check_fraction("p", self.p(self.step)) if callable(self.p) else self.p
        policy = Policy(lam, p if self.enabled else 0.0, self.per, self.pairing, self.layers)
        rank = rank_here() if self.rank is None else self.rank
        plan = policy.draw(self.seed, self.step, size, rank=rank, labels=labels, index=index)
        self.step += 1
        return plan
