"""A recipe as JSON and back, and what differs between two: how a run directory knows what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from momentex import over
from momentex.augment.values import CutMix, Cutout, Mixup
from momentex.errors import RecipeError
from momentex.train import recipe as parts
from momentex.train.recipe import Recipe
from momentex.train.regularizers import DropBlock, ManifoldMixup, ShakeDrop, StochasticDepth

_VALUES = (
    *(over.PONO, over.IN, over.LN, over.GN, over.LRN),
    *(parts.Data, parts.Augment, parts.Exchange, parts.SGD, parts.Adam, parts.Evaluation, parts.Reported, Recipe),
    *(Cutout, Mixup, CutMix, ManifoldMixup, DropBlock, ShakeDrop, StochasticDepth),
    *(parts.Constant, parts.Steps, parts.Cosine, parts.Plateau, parts.InverseSqrt),
)
_BY_NAME = {kind.__name__: kind for kind in _VALUES}

R = TypeVar("R")


def to_json(value: Any) -> Any:
    """A recipe or a part of it in JSON's types; `is` names the kind of a part.

    >>> to_json(parts.SGD(lr=0.5))
    {'is': 'SGD', 'lr': 0.5, 'momentum': 0.9, 'nesterov': False, 'weight_decay': 0.0001}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_json(value: Any) -> Any:
    """The value that `to_json` was given.

    >>> from_json(to_json(Recipe(epochs=3))) == Recipe(epochs=3)
    True
    """
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "is" not in value:
        return {key: from_json(item) for key, item in value.items()}
    kind = _BY_NAME.get(value["is"])
    if kind is None:
        raise RecipeError(f"a recipe has a part {value['is']!r}, which this version does not know.")
    found = {key: from_json(item) for key, item in value.items() if key != "is"}
    if unknown := found.keys() - {f.name for f in fields(kind)}:
        raise RecipeError(
            f"a recipe's {value['is']} has {', '.join(sorted(unknown))}, which this version does not know."
        )
    for name in ("root", "folder") if kind is parts.Data else ():
        found[name] = None if found.get(name) is None else Path(found[name])
    return kind(**found)


def identity(recipe: Recipe) -> Recipe:
    """The recipe without what does not change its result."""
    return replace(recipe, data=replace(recipe.data, root=None), checkpoint_steps=None, paper=None)


def differences(there: Recipe, now: Recipe) -> list[str]:
    """A line for each field in which two recipes would give another result.

    >>> differences(Recipe(), Recipe(epochs=10, optimizer=parts.SGD(lr=0.2)))
    ['epochs: 200 there, 10 now', 'optimizer.lr: 0.1 there, 0.2 now']
    """
    return changed(to_json(identity(there)), to_json(identity(now)))


def changed(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each leaf in which two documents differ.

    >>> changed({"threads": 1, "versions": {"torch": "2.6"}}, {"threads": 2, "versions": {"torch": "2.6"}})
    ['threads: 1 there, 2 now']
    """
    a, b = dict(_flat(there)), dict(_flat(now))
    names = [*a, *(name for name in b if name not in a)]
    return [f"{n}: {_show(a, n)} there, {_show(b, n)} now" for n in names if a.get(n, _absent) != b.get(n, _absent)]


_absent = object()


def _show(flat: Mapping[str, Any], name: str) -> str:
    return str(flat[name]) if name in flat else "nothing"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every leaf, in the order of the fields."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        if name or key != "is":
            yield from _flat(item, f"{name}.{key}" if name else key)
