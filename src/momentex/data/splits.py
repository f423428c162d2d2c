"""Subsets that keep the balance of the classes: pure functions of labels and a generator, giving ascending indices."""

from __future__ import annotations

import torch
from torch import Tensor

from momentex.errors import DataError, ShapeError, check_fraction


def balanced_subset(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """`size` indices into `labels`, of every class equally many, or one more of some that are drawn.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    >>> index = balanced_subset(labels, 6, torch.Generator().manual_seed(0))
    >>> labels[index]
    tensor([0, 0, 1, 1, 2, 2])
    """
    classes, place, counts = _classes(labels)
    if not len(classes) <= size <= len(labels):
        raise DataError(
            f"A balanced subset of {size} was asked for; there are {len(labels)} samples of {len(classes)} classes, "
            f"so it must be {len(classes)} to {len(labels)}."
        )
    each, more = divmod(size, len(classes))
    lacking = (counts < each).nonzero().squeeze(1).tolist()
    able = (counts > each).nonzero().squeeze(1)
    if lacking or len(able) < more:
        lacking = lacking or (counts == each).nonzero().squeeze(1).tolist()
        short = ", ".join(f"class {classes[c]} has {counts[c]}" for c in lacking[:5])
        needed = f"{each}" if not more else f"{each}, and {more} of them {each + 1}"
        raise DataError(
            f"A balanced subset of {size} needs of each of {len(classes)} classes {needed}: {short}"
            f"{', …' if len(lacking) > 5 else ''}. Ask for fewer."
        )
    quota = torch.full_like(counts, each)
    quota[able[torch.randperm(len(able), generator=generator)[:more]]] += 1
    return _taken(place, counts, quota, generator)


def held_out(labels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices to train on, and `size` indices, balanced as `balanced_subset` does it, to validate on.

    >>> train, validation = held_out(torch.tensor([0, 0, 0, 1, 1, 1]), 2, torch.Generator().manual_seed(0))
    >>> len(train), sorted(torch.cat([train, validation]).tolist())
    (4, [0, 1, 2, 3, 4, 5])
    """
    validation = balanced_subset(labels, size, generator)
    return _without(labels, validation, f"Holding {size} out"), validation


def stratified(labels: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices to train on, and a `share` of every class (rounded, at least one sample), to test on.

    >>> labels = torch.tensor([0] * 10 + [1] * 5)
    >>> train, test = stratified(labels, 0.2, torch.Generator().manual_seed(0))
    >>> labels[test]
    tensor([0, 0, 1])
    """
    check_fraction("share", share)
    _, place, counts = _classes(labels)
    test = _taken(place, counts, (counts * share).round().long().clamp(min=1), generator)
    return _without(labels, test, f"Holding {share:g} of every class out"), test


def _classes(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The classes that occur, for each sample the place of its class among them, and how many there are of each."""
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        raise ShapeError(
            f"labels are {labels.dtype} {tuple(labels.shape)}; they must be one class for each sample: (N,)."
        )
    return torch.unique(labels.cpu(), return_inverse=True, return_counts=True)


def _taken(place: Tensor, counts: Tensor, quota: Tensor, generator: torch.Generator) -> Tensor:
    """Of every class the first `quota` in an order that is drawn."""
    order = torch.randperm(len(place), generator=generator)
    order = order[place[order].argsort(stable=True)]  # class by class, each in its drawn order
    rank = torch.arange(len(place)) - (counts.cumsum(0) - counts)[place[order]]
    return order[rank < quota[place[order]]].sort().values


def _without(labels: Tensor, taken: Tensor, what: str) -> Tensor:
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[taken] = False
    gone = sorted(set(labels.tolist()) - set(labels.cpu()[rest].tolist()))
    if gone:
        raise DataError(f"{what} leaves nothing to train on of class {', '.join(map(str, gone[:5]))}. Hold fewer out.")
    return rest.nonzero().squeeze(1)
