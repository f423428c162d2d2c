"""What users hold: MomentExchange, attached once, and the step that it hands out for every batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from momentex.attach import Facts, Hook, Select, Where, attach
from momentex.diagnostics import Diagnostics, Strength, Tally
from momentex.errors import (
    LayerDidNotFire,
    LayerNotFound,
    MomentexWarning,
    PairingError,
    ShapeError,
    StepError,
    check_fraction,
    did_you_mean,
)
from momentex.exchange import Form, How
from momentex.opened import MASK, SETS, check_tensor, count_sets, enough_positions
from momentex.over import PONO, Over
from momentex.pairing import (
    Lam,
    Pairing,
    Per,
    Plan,
    Policy,
    check_index,
    check_lam,
    check_pairing,
    check_per,
    check_seed,
    rank_here,
    sit_out,
)
from momentex.replay import Block, keep, when_backward_ends
from momentex.targets import Targets, checked_lam

if TYPE_CHECKING:
    from typing_extensions import Unpack

Schedule: TypeAlias = Callable[[int], float]  # of the number of the step

SITES_UNDER_COMPILE = 6  # one graph each and the plain one, under torch's limit of 8 with one to spare


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
        self.plan: Plan | None = None  # the last one
        self._how = How.of(over, form, signature(MomentExchange).parameters.keys() - {"form"})
        self._modules: dict[str, nn.Module] = {}
        self._hooks: dict[str, Hook] = {}
        self._handles: list[Any] = []
        self._open: Step | None = None
        self._last_exchange: Hook | None = None
        self._tally = Tally()
        self._warned = False
        self._attach(model, _names(layer), where, select)

    def _attach(self, model: nn.Module, layers: tuple[str, ...], where: Where, select: Select) -> None:
        if not layers or len(set(layers)) != len(layers):
            raise LayerNotFound(f"layer is {layers!r}; name one layer, or several different ones.")
        try:
            for name in layers:
                self._modules[name], self._hooks[name], handle = attach(model, name, where, select, self._how)
                self._handles.append(handle)
        except ValueError:
            self.remove()  # a second name that is wrong leaves no hook of the first behind
            raise

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
        return tuple(self._hooks)

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
        self._check_attached()
        targets = y if isinstance(y, Targets) else Targets(y)
        self._check_facts(len(targets), mask, batch, index, plan)
        return Step(self, targets, mask, batch, index, plan)

    def _check_attached(self) -> None:
        if not self._hooks:
            raise StepError("this MomentExchange was removed from its model; make a new one.")

    def _check_facts(
        self, size: int, mask: Tensor | None, batch: Tensor | None, index: Tensor | None, plan: Plan | None
    ) -> None:
        if index is not None and plan is not None:
            raise PairingError("both index= and plan= were given; a plan has its index already.")
        if plan is not None and not isinstance(plan, Plan):
            raise PairingError(f"plan is a {type(plan).__name__}; it must be a Plan: `moex.plan` is the last one.")
        for name, given, meaning in (("mask", mask, MASK), ("batch", batch, SETS)):
            if given is not None:
                check_tensor(name, given, meaning)
        given = plan.index if plan is not None else index
        if given is not None:
            check_index(given)
            if len(given) != size:
                raise PairingError(f"index has {len(given)} entries for {size} labels; it needs one for each.")
        if plan is not None and plan.layer not in self._hooks:
            near = did_you_mean(plan.layer, self._hooks)
            raise LayerNotFound(f"the plan is for layer {plan.layer!r}; attached are {self.layers}. {near}".strip())
        if plan is not None:
            checked_lam(plan.lam, size)
        if mask is not None and (mask.ndim < 2 or len(mask) != size or mask.is_floating_point()):
            raise ShapeError(
                f"mask is {mask.dtype} {tuple(mask.shape)} for {size} labels; it must be bool (batch, *space), "
                "true where an element counts."
            )
        if batch is not None and (batch.ndim != 1 or batch.dtype not in (torch.int64, torch.int32)):
            raise ShapeError(f"batch is {batch.dtype} {tuple(batch.shape)}; it must be whole numbers, (points,).")
        count_sets(batch, size)

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
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        self._modules.clear()

    def diagnostics(self, *, reset: bool = False) -> Diagnostics:
        """What happened since the last reset. Counting is free; this call looks at the counts, and may wait for a GPU.

        The strength σ_B/σ_A is that of the last exchange in eager mode; for compiled models ask `momentex.check`.
        """
        hook, strength = self._last_exchange, None
        if hook is not None and hook.seen is not None:
            strength = Strength.of(hook.seen.moments, hook.seen.index, self._how.eps)
            if strength is not None and self._how.moves.std:
                strength.warn_if_it_explodes(hook.name)
        report = self._tally.report(strength)
        if reset:
            self._tally = Tally()
        return report

    def __repr__(self) -> str:
        return f"MomentExchange(layer={self.layers}, over={self._how.over}, lam={self.lam}, p={self.p})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}  # copies are disarmed

    def _draw(self, size: int, labels: Tensor, index: Tensor | None) -> Plan:
        lam = check_fraction("lam", self.lam(self.step)) if callable(self.lam) else self.lam
        p = check_fraction("p", self.p(self.step)) if callable(self.p) else self.p
        policy = Policy(lam, p if self.enabled else 0.0, self.per, self.pairing, self.layers)
        rank = rank_here() if self.rank is None else self.rank
        plan = policy.draw(self.seed, self.step, size, rank=rank, labels=labels, index=index)
        self.step += 1
        return plan

    def _set(self, facts: Facts | None, layer: str) -> None:
        for name, hook in self._hooks.items():
            hook.facts = facts if name == layer else None

    def _set_facts_of_open_block(self) -> None:
        step = self._open
        self._set(step._facts if step else None, step.plan.layer if step and step.plan else "")


class Step:
    """One batch. Entering draws and arms, leaving checks and disarms; it can be entered once."""

    def __init__(
        self,
        moex: MomentExchange,
        targets: Targets,
        mask: Tensor | None,
        batch: Tensor | None,
        index: Tensor | None,
        plan: Plan | None,
    ) -> None:
        self._moex, self._targets = moex, targets
        self._mask, self._batch, self._index = mask, batch, index
        self._facts: Facts | None = None
        self._block: Block[Facts] | None = None
        self._entered = False
        self.plan = plan

    def __enter__(self) -> Targets:
        moex = self._moex
        moex._check_attached()
        if self._entered:
            raise StepError("this step was entered before; ask for a new one for every forward pass: moex(y).")
        if moex._open is not None:
            raise StepError("a block of this MomentExchange is open; blocks of one object cannot be nested.")
        self._entered = True
        size = len(self._targets)
        plan = self.plan = self.plan or moex._draw(size, self._targets.labels, self._index)
        index = self._partners(plan, size)
        moex._tally.add(plan, index, self._targets.labels)
        targets = self._targets
        if plan.on:
            index = _to(index, targets.labels.device)  # once: labels and features are usually on one device
            targets = targets.mixed_with(index, plan.lam)
            self._facts = Facts(_to(index, self._device(plan.layer)), self._mask, self._batch)
        moex.plan, moex._open = plan, self
        hook = moex._hooks[plan.layer]
        hook.calls = 0
        moex._set(self._facts, plan.layer)
        if self._facts is not None:
            self._block = hook.block = hook.replay.open(self._facts)
        return targets.when_used(self._used)  # without an exchange too: compiled parts are then told to be plain

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        moex, plan = self._moex, self.plan
        assert plan is not None
        moex._open = None
        moex._set(None, plan.layer)
        if plan.layer not in moex._hooks:
            return  # removed inside of the block
        if plan.on:
            hook = moex._last_exchange = moex._hooks[plan.layer]
            if self._block is not None:
                hook.replay.close(self._block)
            hook.block = None
        if kind is None and plan.on:
            self._check_fired(plan.layer)

    def _partners(self, plan: Plan, size: int) -> Tensor:
        """The index, in which samples without enough valid positions keep themselves: features and labels agree."""
        mask = self._mask
        if mask is not None:
            mask = (mask != 0)[:, self._moex._how.layout.skip :]
        enough = enough_positions(mask, self._batch, size)
        return plan.index if enough is None else sit_out(_to(plan.index, enough.device), enough)

    def _device(self, layer: str) -> torch.device:
        parameter = next(self._moex._modules[layer].parameters(), None)
        return self._targets.labels.device if parameter is None else parameter.device

    def _used(self, output: Tensor) -> None:
        """A loss of this block is computed: its graph holds the block and tells compiled parts when backward comes."""
        keep(self._block, output)
        if any(hook.traced for hook in self._moex._hooks.values()):
            output.register_hook(self._make_current)

    def _make_current(self, _grad: Tensor) -> None:
        """The gradient has reached an output of this block: a compiled part that runs again from here on is of it.

        Compiled code cannot ask which node it runs for, as eager code does (see `replay`); it reads `facts` again.
        """
        if self.plan is not None:
            self._moex._set(self._facts, self.plan.layer)
            when_backward_ends(partial(self._moex._set_facts_of_open_block))

    def _check_fired(self, layer: str) -> None:
        moex, hook = self._moex, self._moex._hooks[layer]
        if hook.calls > 1:
            raise LayerDidNotFire(
                f"layer {layer!r} fired {hook.calls} times in one block, and each pass exchanged moments, while the "
                "labels were mixed once. Use one block for each forward pass (a teacher's goes outside), or a layer "
                "that a pass goes through once."
            )
        if hook.calls == 0 and not hook.traced:
            raise LayerDidNotFire(
                f"layer {layer!r} did not fire in this block: the labels would be mixed and the features not. Call the "
                "model that MomentExchange was attached to inside of the block; choose a layer that its forward calls "
                "(momentex.sites lists them); attach before torch.compile, which does not see later hooks."
            )
        if hook.traced and len(moex._hooks) > SITES_UNDER_COMPILE and not moex._warned:
            moex._warned = True
            warnings.warn(
                f"{len(moex._hooks)} layers under torch.compile make {len(moex._hooks) + 1} graphs, and torch stops at "
                "torch._dynamo.config.recompile_limit (8). Raise that, or attach to fewer layers.",
                MomentexWarning,
                stacklevel=3,
            )


def _names(layer: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(layer, str) or not isinstance(layer, Sequence):  # what is neither is refused by name
        return (layer,)
    return tuple(layer)


def _to(index: Tensor, device: torch.device) -> Tensor:
    return index if index.device == device else index.to(device, non_blocking=True)
