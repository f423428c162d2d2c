"""Layer name -> module -> hook: how an operation on features gets into a model that knows nothing of it.

One permanent hook sits on a child module. What it does is decided by plain attributes that the step sets and clears, so
that compilers guard on "facts or no facts" and nothing else: p, λ and the pairing never recompile.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from momentex.errors import AttachmentError, FeatureError, LayerNotFound, StepError, did_you_mean
from momentex.exchange import How, exchange
from momentex.moments import Moments
from momentex.opened import Layout
from momentex.replay import Block, Replay, in_backward, keep

Where: TypeAlias = Literal["input", "output"]
Key: TypeAlias = int | str
Select: TypeAlias = Key | tuple[Key, ...] | None


class Facts(NamedTuple):
    """What a site must know about the step: who is whose partner, where padding or sets are, and with which weight."""

    index: Tensor
    mask: Tensor | None = None
    batch: Tensor | None = None
    weight: Tensor | None = None  # of the sample itself, for operations that are weighted: () or (batch,)


class Seen(NamedTuple):
    """What a site last saw in eager mode, for diagnostics."""

    features: tuple[int, ...]
    moments: Moments | None
    index: Tensor


class Operation(Protocol):
    """What happens to the features at a layer. A value: copies and pickles of a model bring it along."""

    @property
    def layout(self) -> Layout: ...

    @property
    def weighted(self) -> bool:
        """Whether it needs `Facts.weight`."""
        ...

    def __call__(self, h: Tensor, facts: Facts) -> tuple[Tensor, Moments | None]:
        """The new features, and the moments of the old ones if it has them."""
        ...


@dataclass(frozen=True)
class Exchanging:
    """Moment Exchange as an operation."""

    how: How
    weighted = False

    @property
    def layout(self) -> Layout:
        return self.how.layout

    def __call__(self, h: Tensor, facts: Facts) -> tuple[Tensor, Moments | None]:
        return exchange(h, facts.index, self.how, mask=facts.mask, batch=facts.batch)


class ExchangeSite(nn.Module):
    """The place of the exchange, for people who own their forward: an identity without parameters or buffers.

    `MomentExchange(model, layer="site")` attaches to it as to any other module. Facts that only the forward knows, a
    mask at this resolution say, can be handed in here; what goes into `moex(y, mask=…)` reaches the labels as well.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.stem, self.site, self.head = nn.Conv1d(2, 8, 3), ExchangeSite(), nn.Linear(8, 3)
    ...
    ...     def forward(self, x, mask=None):
    ...         return self.head(self.site(self.stem(x), mask=mask).mean(-1))
    >>> Net()(torch.zeros(4, 2, 9)).shape
    torch.Size([4, 3])
    """

    def forward(self, h: Tensor, *, mask: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
        return h


_NUMBERS = itertools.count()


class Hook:
    """What sits on a layer. Plain unless `facts` are set; a copy or a pickle of it is always plain."""

    def __init__(self, name: str, where: Where, select: Select, operation: Operation) -> None:
        self.name, self.where, self.select, self.operation = name, where, select, operation
        self.facts: Facts | None = None  # of the block that is open
        self.replay = Replay[Facts]()  # for recomputation during backward, when the block has closed
        self.block: Block[Facts] | None = None  # that is open
        self.calls = 0  # eager forward passes since the block was opened
        self.traced = False  # a compiler has seen the exchange
        self.mark = f"hook {next(_NUMBERS)}"  # guards a graph: that of another hook would leave this one untraced
        self.seen: Seen | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "where": self.where, "select": self.select, "operation": self.operation}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def on_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        facts = self._facts(module, kwargs)
        if facts is None:
            return None
        path = self._path() or ((0,) if args else (next(iter(kwargs), 0),))
        call = args if isinstance(path[0], int) else kwargs
        new = self._changed(call, path, facts)
        return (new, kwargs) if call is args else (args, new)

    def on_output(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        facts = self._facts(module, kwargs)
        return None if facts is None else self._changed(output, self._path(), facts)

    def _path(self) -> tuple[Key, ...]:
        return () if self.select is None else self.select if isinstance(self.select, tuple) else (self.select,)

    def _facts(self, module: nn.Module, kwargs: dict[str, Any]) -> Facts | None:
        facts = self._current()
        if facts is None or not isinstance(module, ExchangeSite):
            return facts
        mask, batch = kwargs.get("mask"), kwargs.get("batch")
        return facts._replace(mask=facts.mask if mask is None else mask, batch=facts.batch if batch is None else batch)

    def _current(self) -> Facts | None:
        if torch.compiler.is_compiling():
            if self.facts is not None and self.mark:
                self._mark_traced()
            return self.facts
        if in_backward():  # activation checkpointing
            return self.replay.facts()
        self.replay.forward()
        if self.facts is not None:
            self.calls += 1
        return self.facts

    def _mark_traced(self) -> bool:
        self.traced = True
        return True

    # torch.compiler.assume_constant_result sets this and imports the compiler, which takes a second: run while tracing,
    # leave no trace in the graph. Changing an attribute in the graph is refused in checkpointed regions.
    _mark_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _changed(self, container: Any, path: tuple[Key, ...], facts: Facts) -> Any:
        h = self._get(container, path)
        samples = len(facts.index) if facts.batch is not None else h.shape[self.operation.layout.axes(h)[0]]
        if samples != len(facts.index):
            raise StepError(
                f"layer {self.name!r} sees a batch of {samples} (features {tuple(h.shape)}), and the labels are "
                f"{len(facts.index)}. Features and labels must be of one batch: set batch_dim if it is another axis, "
                "and use DistributedDataParallel, not DataParallel, which cuts the batch under the pairing."
            )
        new, moments = self.operation(h, facts)
        if not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
            keep(self.block, new)
            self.seen = Seen(tuple(h.shape), moments, facts.index)
        return _replaced(container, path, new)

    def _get(self, container: Any, path: tuple[Key, ...]) -> Tensor:
        h = container
        for key in path:
            try:
                h = h[key]
            except (LookupError, TypeError):
                raise FeatureError(
                    f"select={self.select!r} finds nothing in the {self.where} of layer {self.name!r}: "
                    f"{_describe(container)}."
                ) from None
        if not isinstance(h, Tensor):
            raise FeatureError(
                f"the {self.where} of layer {self.name!r} is {_describe(h)}, not a tensor. Say which part holds the "
                "features: select=0 (position), select='name' (keyword or key), or a path such as select=(0, 'x')."
            )
        return h


def attach(
    model: nn.Module, name: str, where: Where, select: Select, operation: Operation
) -> tuple[nn.Module, Hook, Any]:
    """Put a hook on the child of `model` with this name: the module, the hook, and the handle that removes it."""
    model = unwrapped(model)
    module = find_layer(model, name)
    hook = Hook(name, where, select, operation)
    if where == "input":
        return module, hook, module.register_forward_pre_hook(hook.on_input, with_kwargs=True)
    if where == "output":
        return module, hook, module.register_forward_hook(hook.on_output, with_kwargs=True)
    raise AttachmentError(f"where is {where!r}; it is 'input' (before the layer) or 'output' (after it).")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, out of DistributedDataParallel; an error for what cannot be attached to."""
    if not isinstance(model, nn.Module):
        raise AttachmentError(f"model is a {type(model).__name__}; it must be a torch.nn.Module.")
    if isinstance(model, nn.DataParallel):
        raise AttachmentError(
            "model is a DataParallel: it cuts every batch, and samples would be paired with samples of another part. "
            "Use DistributedDataParallel (one process for each device), and attach to the model inside."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise AttachmentError("model is a ScriptModule, which takes no Python hooks. Attach before torch.jit.script.")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel):
            raise AttachmentError(
                f"module {name!r} is a DataParallel, which cuts every batch: samples would be paired with samples of "
                "another part. Take it out, and use DistributedDataParallel around the whole model."
            )
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            what = f"its module {name!r}" if name else "the model"
            raise AttachmentError(
                f"{what} is compiled already, and a hook that comes later may never be seen. "
                "Order: build the model, MomentExchange(model, …), then torch.compile(model)."
            )
    return model


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """The module of that name, or an error that knows the near ones."""
    if not isinstance(name, str):
        raise LayerNotFound(f"layer is a {type(name).__name__}; give its name, as in model.named_modules().")
    modules = dict(model.named_modules(remove_duplicate=False))
    if name == "":
        raise LayerNotFound("layer is ''; hooks on the root break compiled graphs. Name a child of the model.")
    if name in modules:
        return modules[name]
    named = [n for n in modules if n]
    top = ", ".join(n for n, _ in model.named_children())
    message = f"{type(model).__name__} has no layer {name!r}. {did_you_mean(name, named)} Top-level layers: {top}. "
    raise LayerNotFound(" ".join(message.split()) + " momentex.sites(model, example) lists all with their shapes.")


def _replaced(container: Any, path: tuple[Key, ...], value: Any) -> Any:
    """`container` with `value` at `path`; nothing is changed in place."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    new = _replaced(container[key], rest, value)
    if isinstance(container, tuple):
        items = [new if i == key % len(container) else item for i, item in enumerate(container)]
        return type(container)(*items) if hasattr(container, "_fields") else tuple(items)
    changed = dict(container) if type(container) is dict else copy.copy(container)
    changed[key] = new
    return changed


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: ({', '.join(map(_describe, value))})"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {', '.join(map(repr, value))}"
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
