"""Activation checkpointing runs a layer again in backward, when its block has closed: which block is it running for?

Every node of an autograd graph carries the number up to which its thread had counted when it was made. A block is an
interval of those numbers, and what runs again in backward runs for the node that is being differentiated. So plain
passes, other blocks and losses of any origin can be mixed in one backward pass, in any order.

A block is remembered as long as its graph is there: nodes of the graph hold it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from momentex.errors import StepError

F = TypeVar("F")

HELD = 128  # blocks whose graph nobody showed us (see `keep`), before one backward pass


def in_backward() -> bool:
    """Whether this call comes out of a backward pass. torch.utils.module_tracker asks in the same way."""
    return torch._C._current_graph_task_id() != -1


class _Thread(threading.local):
    """What belongs to one thread: its identity, and the backward passes that have called a layer in it."""

    def __init__(self) -> None:
        self.identity = object()  # numbers of threads that have ended are used again
        self.tasks: list[_Task] = []


@dataclass
class _Task:
    """A backward pass under way: what it last ran again, and the number from which nodes are of that."""

    number: int
    facts: object
    counted: int


@dataclass(eq=False)
class Block(Generic[F]):
    """The nodes of one block, and the facts that its layer needs when it runs again."""

    facts: F
    thread: object
    start: int
    end: int | None = None  # still open
    kept: bool = False  # by its graph


@dataclass(eq=False)
class Replay(Generic[F]):
    """The facts of blocks, found again by the graph node for which a layer runs in backward."""

    _known: weakref.WeakSet[Block[F]] = field(default_factory=weakref.WeakSet)
    _held: deque[Block[F]] = field(default_factory=deque)
    _threads: set[object] = field(default_factory=set)  # that have run the layer since no block was known
    _here: _Thread = field(default_factory=_Thread)
    _forgotten: bool = False

    def open(self, facts: F) -> Block[F] | None:
        """A block begins: nodes that are made from now on are its own."""
        if torch.compiler.is_compiling():
            return None  # then forward and recomputation are in one graph, or both in the compiler's hands
        self.forward()
        block = Block(facts, self._here.identity, torch.autograd._get_sequence_nr())
        self._known.add(block)
        return block

    def close(self, block: Block[F]) -> None:
        """The block ends."""
        block.end = torch.autograd._get_sequence_nr()
        if block.kept:
            return
        if len(self._held) == HELD:
            self._held.popleft()
            self._forgotten = True
        self._held.append(block)

    def forward(self) -> None:
        """The layer runs outside of backward: no backward pass is under way here, failed ones included."""
        self._here.tasks.clear()
        if not self._known:
            self._threads.clear()
            self._forgotten = False
        self._threads.add(self._here.identity)

    def facts(self) -> F | None:
        """Of the block whose graph is being differentiated; None if that was a plain pass."""
        if not self._known:
            return None
        number, tasks = torch._C._current_graph_task_id(), self._here.tasks
        while tasks and tasks[-1].number != number and any(task.number == number for task in tasks):
            tasks.pop()
        node = torch._C._current_autograd_node()
        if tasks and tasks[-1].number != number and self._is_new(node, tasks[-1]):
            # A backward pass inside of another one differentiates what that one has just run again.
            facts = tasks[-1].facts
        elif len(tasks) > 1 and tasks[-1].number == number:
            facts = tasks[-1].facts
        else:
            facts = self._of(node)
        if tasks and tasks[-1].number == number:
            tasks[-1].facts = facts
        else:
            tasks.append(_Task(number, facts, torch.autograd._get_sequence_nr()))
            when_backward_ends(partial(_forget, tasks, number))
        return facts  # type: ignore[return-value]

    def _is_new(self, node: torch.autograd.graph.Node | None, outer: _Task) -> bool:
        """Whether the node was made since `outer` ran the layer again. Threads of a GPU's backward make no others."""
        own_forward = self._threads == {self._here.identity}
        return not own_forward or node is None or node._sequence_nr() >= outer.counted

    def _of(self, node: torch.autograd.graph.Node | None) -> F | None:
        if node is None:
            raise StepError(
                "a checkpointed pass is run again by compiled autograd, which does not tell for which part of the "
                "graph. Use it without activation checkpointing around the layer, or compile the model instead."
            )
        if len(self._threads) > 1:
            raise StepError(
                "a checkpointed pass is run again, and the layer has run in several threads since: graphs of different "
                "threads cannot be told apart. Run forward passes in one thread, or call backward (and let go of the "
                "loss) before another thread goes on."
            )
        number = node._sequence_nr()
        for block in self._known:
            if block.start <= number and (block.end is None or number < block.end):
                return block.facts
        if self._forgotten:
            raise StepError(
                f"a checkpointed pass is run again after more than {HELD} blocks whose losses did not come from their "
                "targets, and the pairings of the first of them are forgotten. Call backward more often, or use "
                "targets.loss."
            )
        return None


def _forget(tasks: list[_Task], number: int) -> None:
    tasks[:] = [task for task in tasks if task.number != number]


def keep(block: Block[F] | None, tensor: Tensor) -> None:
    """The graph of `tensor` holds the block from now on. It costs nothing in backward."""
    if block is not None and tensor.grad_fn is not None:
        block.kept = True
        held: dict[str, Any] = tensor.grad_fn.metadata  # pyrefly: ignore[bad-assignment]  a dict, declared as a method
        held.setdefault("momentex", []).append(block)


def when_backward_ends(callback: partial[None]) -> None:
    """Call back when this backward pass is over, also if it fails: the engine then drops what was queued."""

    def end() -> None:
        return None

    weakref.finalize(end, callback)
    torch.autograd.Variable._execution_engine.queue_callback(end)
