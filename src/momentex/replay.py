"""Activation checkpointing runs a layer again in backward, when its block has closed: which block is it running for?

Every node of an autograd graph carries the number up to which its thread had counted when it was made. A block is an
interval of those numbers, and what runs again in backward runs for the node that is being differentiated. So plain
passes, other blocks and losses of any origin can be mixed in one backward pass, in any order.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch

from momentex.errors import StepError

F = TypeVar("F")

REMEMBERED = 128  # blocks before one backward pass; each holds its index, and its mask if it has one


def in_backward() -> bool:
    """Whether this call comes out of a backward pass. torch.utils.module_tracker asks in the same way."""
    return torch._C._current_graph_task_id() != -1


@dataclass
class _Block(Generic[F]):
    facts: F
    start: int
    end: int | None = None  # still open


@dataclass
class _Task(Generic[F]):
    """A backward pass that has called the layer, and for which block it did so last."""

    number: int
    facts: F | None


class Replay(Generic[F]):
    """The facts of the last blocks, found again by the graph node for which a layer runs in backward."""

    def __init__(self) -> None:
        self._blocks: deque[_Block[F]] = deque()
        self._forgotten = 0  # nodes below this number may be of a block that is no longer known
        self._tasks: list[_Task[F]] = []

    def open(self, facts: F) -> None:
        """A block begins: nodes that are made from now on are its own."""
        if torch.compiler.is_compiling():
            return  # then forward and recomputation are in one graph, or both in the compiler's hands
        self._tasks.clear()
        if len(self._blocks) == REMEMBERED:
            oldest = self._blocks.popleft()
            self._forgotten = oldest.end or 0
        self._blocks.append(_Block(facts, torch.autograd._get_sequence_nr()))

    def close(self) -> None:
        """The block ends."""
        if self._blocks and not torch.compiler.is_compiling():
            self._blocks[-1].end = torch.autograd._get_sequence_nr()

    def forward(self) -> None:
        """The layer was called outside of backward: no backward pass is under way, failed ones included."""
        self._tasks.clear()

    def facts(self) -> F | None:
        """Of the block whose graph is being differentiated; None if that was a plain pass."""
        number = torch._C._current_graph_task_id()
        while self._tasks and self._tasks[-1].number != number and any(t.number == number for t in self._tasks):
            self._tasks.pop()
        if not self._tasks or self._tasks[-1].number != number:
            # A backward pass inside of another one differentiates what that one has just run again: its nodes are new
            # and say nothing, but its block is the same.
            self._tasks.append(_Task(number, self._tasks[-1].facts if self._tasks else None))
            when_backward_ends(partial(self._forget, number))
        if len(self._tasks) == 1:
            self._tasks[0].facts = self._of_node()
        return self._tasks[-1].facts

    def _of_node(self) -> F | None:
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        for block in reversed(self._blocks):
            if block.start <= number and (block.end is None or number < block.end):
                return block.facts
        if number < self._forgotten:
            raise StepError(
                f"a checkpointed pass is run again that is older than the last {REMEMBERED} blocks, whose pairings are "
                "forgotten. Call backward more often, or on fewer blocks at once."
            )
        return None

    def _forget(self, number: int) -> None:
        self._tasks[:] = [task for task in self._tasks if task.number != number]


def when_backward_ends(callback: partial[None]) -> None:
    """Call back when this backward pass is over, also if it fails: the engine then drops what was queued."""

    def end() -> None:
        return None

    weakref.finalize(end, callback)
    torch.autograd.Variable._execution_engine.queue_callback(end)
