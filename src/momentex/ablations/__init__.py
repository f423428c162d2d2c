"""Sweeps by name: the paper's ablations and searches, and twins of them of a size for a CPU. Needs no torch.

exchanges  what they vary, as functions of a recipe
named      of which recipes they are
"""

from __future__ import annotations

from functools import cache

from momentex.ablations.named import Named, table
from momentex.errors import RecipeError, did_you_mean
from momentex.sweep.grid import Sweep

__all__ = ["Named", "find", "names"]


def find(name: str) -> Sweep:
    """The sweep of that name.

    >>> len(find("ablation.moments").points)
    8
    """
    if name not in _table():
        raise RecipeError(f"there is no sweep {name!r}. {did_you_mean(name, _table())}".strip())
    return _table()[name].make()


def names() -> list[Named]:
    """Every sweep that has a name.

    >>> names()[0].name
    'ablation.moments'
    """
    return list(_table().values())


@cache
def _table() -> dict[str, Named]:
    return {named.name: named for named in table()}
