"""Fields of a recipe by their names, as flags have them: "exchange.lam", "model_options.depth". Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from momentex.errors import RecipeError, did_you_mean
from momentex.train.recipe import Exchange, Recipe

OPTIONS = "model_options"
APART = ("seed", "paper")  # a sweep has its own seeds, and what is reported is no setting


def names_of(recipe: Recipe) -> list[str]:
    """Every field that can be set, those of an exchange too where there is none yet.

    >>> [name for name in names_of(Recipe()) if name.startswith("optimizer")]
    ['optimizer', 'optimizer.lr', 'optimizer.momentum', 'optimizer.nesterov', 'optimizer.weight_decay']
    """
    found: list[str] = []
    for field in fields(Recipe):
        part = getattr(recipe, field.name)
        if field.name not in (*APART, "data", "augment", "evaluation", OPTIONS):
            found.append(field.name)
        if field.name == "exchange" and part is None:
            part = Exchange()
        if field.name not in APART and is_dataclass(part):
            found += [f"{field.name}.{inner.name}" for inner in fields(part)]
        if field.name == OPTIONS:
            found += [f"{OPTIONS}.{key}" for key in recipe.model_options]
    return found


def check_field(recipe: Recipe, name: str) -> None:
    """Whether a recipe has such a field; an option of its model may be new to it."""
    if name in APART:
        raise RecipeError(
            f"{name} is no field of a sweep's points: a sweep runs each of them with the seeds of --seeds."
        )
    known = names_of(recipe)
    if name not in known and not (name.startswith(f"{OPTIONS}.") and name != f"{OPTIONS}."):
        near = did_you_mean(name, known)
        ends = [k for k in known if k.rpartition(".")[2] == name]
        near = near or (f"Did you mean {' or '.join(map(repr, ends[:3]))}?" if ends else "")
        raise RecipeError(f"a recipe has no field {name!r}. {near}".strip())


def value_at(recipe: Recipe, name: str) -> Any:
    """What a recipe has there.

    >>> value_at(Recipe(), "optimizer.lr")
    0.1
    """
    check_field(recipe, name)
    found: Any = recipe
    for part in name.split("."):
        found = Exchange() if found is None else found  # nothing else is left out of a recipe
        found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
    return found


def with_fields(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with these fields, all set at once; a field of the exchange adds one where there is none.

    >>> with_fields(Recipe(), {"exchange.lam": 0.7, "epochs": 10}).exchange.lam
    0.7
    """
    for name in changes:
        check_field(recipe, name)
    return _set(recipe, {tuple(name.split(".")): value for name, value in changes.items()})


def _set(part: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    mine: dict[str, Any] = {path[0]: value for path, value in changes.items() if len(path) == 1}
    for name in dict.fromkeys(path[0] for path in changes if len(path) > 1):
        inner = mine.get(name, part.get(name) if isinstance(part, Mapping) else getattr(part, name))
        if inner is None and name == "exchange":
            inner = Exchange()
        mine[name] = _set(inner, {path[1:]: value for path, value in changes.items() if path[0] == name and path[1:]})
    return {**part, **mine} if isinstance(part, Mapping) else replace(part, **mine)


def moved(recipe: Recipe, before: Recipe, after: Recipe) -> Recipe:
    """A recipe with what was changed from `before` to `after`; what is without the exchange of `before` stays without.

    >>> moved(Recipe(epochs=5), Recipe(), Recipe(clip=1.0))
    Recipe(...epochs=5,...clip=1.0,...)
    """
    return _moved(recipe, before, after)


def _moved(part: Any, before: Any, after: Any) -> Any:
    changes: dict[str, Any] = {}
    for field in fields(part):
        here, old, new = (getattr(value, field.name) for value in (part, before, after))
        if old == new or (field.name == "exchange" and here is None and old is not None):
            continue
        opened = is_dataclass(old) and type(old) is type(new)
        if opened and type(here) is not type(old):
            raise RecipeError(
                f"the flags change the {field.name} of points that have a {type(old).__name__}, and one has a "
                f"{type(here).__name__}: leave these flags out, or make the points alike."
            )
        changes[field.name] = _moved(here, old, new) if opened else new
    return replace(part, **changes)
