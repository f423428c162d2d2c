"""The block around a forward pass: what features and labels go through at one layer in one step, armed and checked.

Moment Exchange and manifold mixup differ in the operation on the features and in how their plans are drawn; what must
hold around both (the layer fires once, labels and features are mixed with one plan, activation checkpointing finds it
again, copies are plain) is here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from momentex.attach import Facts, Hook, Operation, Select, Where, attach
from momentex.diagnostics import Diagnostics, Strength, Tally
from momentex.errors import (
    LayerDidNotFire,
    LayerNotFound,
    MomentexWarning,
    PairingError,
    ShapeError,
    StepError,
    did_you_mean,
)
from momentex.opened import MASK, SETS, check_tensor, count_sets, enough_positions
from momentex.pairing import Plan, check_index, sit_out
from momentex.replay import Block, keep, when_backward_ends
from momentex.targets import Targets, checked_lam

SITES_UNDER_COMPILE = 6  # one graph each and the plain one, under torch's limit of 8 with one to spare

Draw: TypeAlias = Callable[[int, Tensor, Tensor | None], Plan]  # of the batch's size, its labels, a pairing if decided


class Given(NamedTuple):
    """What the caller knows of one batch: see `MomentExchange.__call__`."""

    mask: Tensor | None = None
    batch: Tensor | None = None
    index: Tensor | None = None
    plan: Plan | None = None


class Blocks:
    """Hooks on layers of one model, and the block that is open. `owner` is what users hold, `call` how it is asked."""

    def __init__(
        self,
        model: nn.Module,
        layer: str | Sequence[str],
        where: Where,
        select: Select,
        operation: Operation,
        owner: str,
        call: str,
    ) -> None:
        self.operation, self.owner, self.call = operation, owner, call
        self.plan: Plan | None = None  # the last one
        self.hooks: dict[str, Hook] = {}
        self.modules: dict[str, nn.Module] = {}
        self.open: Step | None = None
        self.last: Hook | None = None  # that did something
        self.tally = Tally()
        self.warned = False
        self._handles: list[Any] = []
        self._attach(model, _names(layer), where, select)

    def _attach(self, model: nn.Module, layers: tuple[str, ...], where: Where, select: Select) -> None:
        if not layers or len(set(layers)) != len(layers):
            raise LayerNotFound(f"layer is {layers!r}; name one layer, or several different ones.")
        try:
            for name in layers:
                self.modules[name], self.hooks[name], handle = attach(model, name, where, select, self.operation)
                self._handles.append(handle)
        except ValueError:
            self.remove()  # a second name that is wrong leaves no hook of the first behind
            raise

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.hooks)

    def step(self, y: Tensor | Targets, given: Given, draw: Draw) -> Step:
        """A step for this batch, to be entered once; everything that is wrong with what was given is an error here."""
        self.check_attached()
        targets = y if isinstance(y, Targets) else Targets(y)
        self._check_pairing(len(targets), given)
        self._check_facts(len(targets), given)
        return Step(self, targets, given, draw)

    def check_attached(self) -> None:
        if not self.hooks:
            raise StepError(f"this {self.owner} was removed from its model; make a new one.")

    def _check_pairing(self, size: int, given: Given) -> None:
        plan = given.plan
        if given.index is not None and plan is not None:
            raise PairingError("both index= and plan= were given; a plan has its index already.")
        if plan is not None and not isinstance(plan, Plan):
            whose = self.call.partition("(")[0]
            raise PairingError(f"plan is a {type(plan).__name__}; it must be a Plan: `{whose}.plan` is the last one.")
        index = plan.index if plan is not None else given.index
        if index is not None:
            check_index(index)
            if len(index) != size:
                raise PairingError(f"index has {len(index)} entries for {size} labels; it needs one for each.")
        if plan is not None and plan.layer not in self.hooks:
            near = did_you_mean(plan.layer, self.hooks)
            raise LayerNotFound(f"the plan is for layer {plan.layer!r}; attached are {self.layers}. {near}".strip())
        if plan is not None:
            checked_lam(plan.lam, size)

    def _check_facts(self, size: int, given: Given) -> None:
        mask, batch = given.mask, given.batch
        for name, fact, meaning in (("mask", mask, MASK), ("batch", batch, SETS)):
            if fact is not None:
                check_tensor(name, fact, meaning)
        if mask is not None and (mask.ndim < 2 or len(mask) != size or mask.is_floating_point()):
            raise ShapeError(
                f"mask is {mask.dtype} {tuple(mask.shape)} for {size} labels; it must be bool (batch, *space), "
                "true where an element counts."
            )
        if batch is not None and (batch.ndim != 1 or batch.dtype not in (torch.int64, torch.int32)):
            raise ShapeError(f"batch is {batch.dtype} {tuple(batch.shape)}; it must be whole numbers, (points,).")
        count_sets(batch, size)

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.hooks.clear()
        self.modules.clear()

    def report(self, strength: Strength | None, *, reset: bool) -> Diagnostics:
        """What was counted since the last reset."""
        report = self.tally.report(strength)
        if reset:
            self.tally = Tally()
        return report

    def set(self, facts: Facts | None, layer: str) -> None:
        """Arm this layer; all others are plain."""
        for name, hook in self.hooks.items():
            hook.facts = facts if name == layer else None

    def set_facts_of_open_block(self) -> None:
        step = self.open
        self.set(step.facts if step else None, step.plan.layer if step and step.plan else "")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"open": None}  # copies are disarmed


class Step:
    """One batch. Entering draws and arms, leaving checks and disarms; it can be entered once."""

    def __init__(self, blocks: Blocks, targets: Targets, given: Given, draw: Draw) -> None:
        self._blocks, self._targets, self._given, self._draw = blocks, targets, given, draw
        self._block: Block[Facts] | None = None
        self._entered = False
        self.facts: Facts | None = None
        self.plan = given.plan

    def __enter__(self) -> Targets:
        blocks = self._blocks
        blocks.check_attached()
        if self._entered:
            raise StepError(f"this step was entered before; ask for a new one for every forward pass: {blocks.call}.")
        if blocks.open is not None:
            raise StepError(f"a block of this {blocks.owner} is open; blocks of one object cannot be nested.")
        self._entered = True
        targets, size = self._targets, len(self._targets)
        plan = self.plan = self.plan or self._draw(size, targets.labels, self._given.index)
        index = self._partners(plan, size)
        blocks.tally.add(plan, index, targets.labels)
        if plan.on:
            self.facts = self._facts_of(plan, index)
            index = _to(index, targets.labels.device)  # once: labels and features are usually on one device
            targets = targets.mixed_with(index, plan.lam)
        blocks.plan, blocks.open = plan, self
        hook = blocks.hooks[plan.layer]
        hook.calls = 0
        blocks.set(self.facts, plan.layer)
        if self.facts is not None:
            self._block = hook.block = hook.replay.open(self.facts)
        return targets.when_used(self._used)  # if it is off, too: compiled parts are then told to be plain

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        blocks, plan = self._blocks, self.plan
        assert plan is not None
        blocks.open = None
        blocks.set(None, plan.layer)
        if plan.layer not in blocks.hooks:
            return  # removed inside of the block
        if plan.on:
            hook = blocks.last = blocks.hooks[plan.layer]
            if self._block is not None:
                hook.replay.close(self._block)
            hook.block = None
        if kind is None and plan.on:
            self._check_fired(plan.layer)

    def _partners(self, plan: Plan, size: int) -> Tensor:
        """The index, in which samples without enough valid positions keep themselves: features and labels agree."""
        mask, batch = self._given.mask, self._given.batch
        if mask is not None:
            mask = (mask != 0)[:, self._blocks.operation.layout.skip :]
        enough = enough_positions(mask, batch, size)
        return plan.index if enough is None else sit_out(_to(plan.index, enough.device), enough)

    def _facts_of(self, plan: Plan, index: Tensor) -> Facts:
        device = self._device(plan.layer)
        weight = None
        if self._blocks.operation.weighted:
            # A tensor, so that compilers do not make a graph for each λ; and 1 for those that keep themselves.
            lam = torch.as_tensor(plan.lam, dtype=torch.float32, device=index.device)
            alone = index == torch.arange(len(index), device=index.device)
            weight = _to(torch.where(alone, torch.ones_like(lam), lam), device)
        return Facts(_to(index, device), self._given.mask, self._given.batch, weight)

    def _device(self, layer: str) -> torch.device:
        parameter = next(self._blocks.modules[layer].parameters(), None)
        return self._targets.labels.device if parameter is None else parameter.device

    def _used(self, output: Tensor) -> None:
        """A loss of this block is computed: its graph holds the block and tells compiled parts when backward comes."""
        keep(self._block, output)
        if any(hook.traced for hook in self._blocks.hooks.values()):
            output.register_hook(self._make_current)

    def _make_current(self, _grad: Tensor) -> None:
        """The gradient has reached an output of this block: a compiled part that runs again from here on is of it.

        Compiled code cannot ask which node it runs for, as eager code does (see `replay`); it reads `facts` again.
        """
        if self.plan is not None:
            self._blocks.set(self.facts, self.plan.layer)
            when_backward_ends(partial(self._blocks.set_facts_of_open_block))

    def _check_fired(self, layer: str) -> None:
        blocks, hook = self._blocks, self._blocks.hooks[layer]
        if hook.calls > 1:
            raise LayerDidNotFire(
                f"layer {layer!r} fired {hook.calls} times in one block, and each pass mixed the features, while the "
                "labels were mixed once. Use one block for each forward pass (a teacher's goes outside), or a layer "
                "that a pass goes through once."
            )
        if hook.calls == 0 and not hook.traced:
            raise LayerDidNotFire(
                f"layer {layer!r} did not fire in this block: the labels would be mixed and the features not. Call the "
                f"model that {blocks.owner} was attached to inside of the block; choose a layer that its forward calls "
                "(momentex.sites lists them); attach before torch.compile, which does not see later hooks."
            )
        if hook.traced and len(blocks.hooks) > SITES_UNDER_COMPILE and not blocks.warned:
            blocks.warned = True
            warnings.warn(
                f"{len(blocks.hooks)} layers under torch.compile make {len(blocks.hooks) + 1} graphs, and torch stops "
                "at torch._dynamo.config.recompile_limit (8). Raise that, or attach to fewer layers.",
                MomentexWarning,
                stacklevel=3,
            )


def _names(layer: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(layer, str) or not isinstance(layer, Sequence):  # what is neither is refused by name
        return (layer,)
    return tuple(layer)


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
