"""What is trained, as values: model, batches, loss, and what is measured. The loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from momentex.targets import Targets


class Batch(NamedTuple):
    """One step's samples: what the model is called with, the labels, and facts for the exchange (mask=, batch=)."""

    inputs: tuple[Any, ...]
    labels: Tensor
    facts: Mapping[str, Tensor]


class Batches(Protocol):
    """The batches of every epoch, a function of its number: what follows `start` does not depend on what came before.

    Under several processes each gets its part of every batch; `sizes` are those of whole batches.
    """

    @property
    def sizes(self) -> list[int]: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]: ...


class Task(NamedTuple):
    """One training problem.

    model        on its device, as plain as its author wrote it
    site         the layer at which moments are exchanged unless the recipe names one; None if nobody has recorded it
    batches      the training samples
    loss         the mean over a batch, of labels that may be mixed
    fits         raises a RecipeError unless an output of the model is what loss and labels need
    evaluate     numbers of a model in evaluation mode; the same on every process. "error" and "nll" are among them
    split        what is evaluated: "test", or "validation" where samples were held out
    facts        what tells these data from others, in JSON's types: a run goes on with the same ones only
    num_classes  of the labels; None where they are no classes
    stages       the model's first layer and its stages by name, in their order; empty if nobody has recorded them
    """

    model: nn.Module
    site: str | None
    batches: Batches
    loss: Callable[[Targets, Any], Tensor]
    fits: Callable[[Any], None]
    evaluate: Callable[[nn.Module], dict[str, float]]
    split: str
    facts: Mapping[str, Any]
    num_classes: int | None = None
    stages: tuple[str, ...] = ()


def take(batch: Batch, rows: slice) -> Batch:
    """A part of a batch: of everything that has an axis for the samples."""
    inputs = tuple(x[rows] if isinstance(x, Tensor) else x for x in batch.inputs)
    return Batch(inputs, batch.labels[rows], {name: fact[rows] for name, fact in batch.facts.items()})
