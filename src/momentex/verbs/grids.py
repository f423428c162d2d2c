"""Which sweep is meant: one that has a name, a function of the user's own, or a recipe and `--grid FIELD VALUE …`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from momentex import ablations, flags, recipes
from momentex.errors import RecipeError, did_you_mean
from momentex.sweep.fields import check_field, value_at
from momentex.sweep.grid import Axis, Sweep, flagged, grid, label, swept
from momentex.train.recipe import Recipe

TITLES = {"exchange.lam": "λ", "exchange.over": "moments"}
NO_FIELD = "the grid is empty: name a field and its values, as in --grid exchange.lam 0.5 0.9."


class Asked(Protocol):
    """What a verb is asked for."""

    @property
    def recipe(self) -> Recipe: ...


T = TypeVar("T", bound=Asked)
Grids = Sequence[tuple[str, Sequence[str]]]


def asked_sweep(kind: type[T], arguments: Sequence[str], about: str) -> tuple[str, Sweep, T]:
    """Its name, the sweep with all flags in it, and what else is asked."""
    grids, rest = _taken(list(arguments))
    _check_seed(rest, grids)
    named = rest[0] if rest and not rest[0].startswith("-") else ""
    if not named and not {"-h", "--help"} & {*rest} and not any(word.startswith("--data.folder") for word in rest):
        raise RecipeError(
            "momentex sweep needs a sweep (`momentex sweep --help` lists them, mine.py:FUNCTION is one of yours), or "
            "a recipe and what is to be varied: momentex sweep digits --grid exchange.lam 0.5 0.9."
        )
    found = _looked_up(named, rest) if named else None
    if isinstance(found, Sweep):
        if grids:
            raise RecipeError(
                f"{named} is a sweep already, and --grid {grids[0][0]} would make another one: name a recipe, or write "
                "a function that returns the sweep."
            )
        return _of_sweep(kind, named, found, rest, about)
    name, asked = _asked(kind, rest, about, found)
    if not grids:
        raise RecipeError(
            f"{name} is a recipe, which is one point: name what is to be varied, as in --grid exchange.lam 0.5 0.9."
        )
    axes = [_axis(kind, rest, asked.recipe, found, field, words) for field, words in grids]
    counts = Counter(axis.name for axis in axes)
    axes = [axis if counts[axis.name] == 1 else _renamed(axis) for axis in axes]
    stem = "_".join([name, *(axis.name for axis in axes)])
    return stem, grid(f"{name}: {' × '.join(axis.heading for axis in axes)}", asked.recipe, axes), asked


def _asked(kind: type[T], rest: Sequence[str], about: str, found: Recipe | None) -> tuple[str, T]:
    finder = recipes.find if found is None else lambda name: found
    return flags.asked_of_recipe("sweep", kind, rest, about, finder=finder)


def _looked_up(name: str, rest: Sequence[str]) -> Sweep | Recipe:
    if ":" in name or name.endswith(".py"):
        found = recipes.yours(name)
        if not isinstance(found, (Sweep, Recipe)):
            raise RecipeError(
                f"{name} returned a {type(found).__name__}; it must return a momentex.sweep.grid.Sweep (grid and "
                "listed make one), or a recipe, which --grid makes one of."
            )
        return found
    known = {named.name for named in ablations.names()}
    if name in known:
        return ablations.find(name)
    if name not in (known_recipes := {entry.name for entry in recipes.names()}):
        near = did_you_mean(name, known | known_recipes)
        raise RecipeError(
            f"there is no sweep and no recipe {name!r}. {near} `momentex sweep --help` lists the sweeps, `momentex "
            "recipes` the recipes; a function of your own is named path/to/mine.py:FUNCTION.".replace("  ", " ")
        )
    return recipes.find(name)


def _check_seed(rest: Sequence[str], grids: Grids) -> None:
    if "--seed" in {argument.partition("=")[0] for argument in rest} or "seed" in {field for field, _ in grids}:
        raise RecipeError("--seed is that of one run; a sweep takes --seeds 5, or --seeds 3 7 11.")


# --- a sweep, and flags that hold for all of its points --------------------------------------------------------------


def _of_sweep(kind: type[T], name: str, found: Sweep, rest: Sequence[str], about: str) -> tuple[str, Sweep, T]:
    varied = swept(found)
    for argument in rest[1:]:
        field = argument.partition("=")[0].removeprefix("--").replace("-", "_") if argument.startswith("--") else ""
        field = "data.root" if field == "data" else field
        clash = next((one for one in sorted(varied) if field and f"{one}.".startswith(f"{field}.")), None)
        if clash is not None:
            raise RecipeError(f"{argument.partition('=')[0]} holds for all points, and this sweep varies {clash}.")
    like = next((point.recipe for point in found.points if point.recipe.exchange is not None), found.points[0].recipe)
    _, asked = _asked(kind, rest, about, like)
    return name, flagged(found, like, asked.recipe), asked


# --- a grid ----------------------------------------------------------------------------------------------------------


def _taken(arguments: list[str]) -> tuple[Grids, list[str]]:
    """Every `--grid FIELD VALUE …`, and the other arguments."""
    grids: list[tuple[str, list[str]]] = []
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        if arguments[i] != "--grid" and not arguments[i].startswith("--grid="):
            rest.append(arguments[i])
            i += 1
            continue
        words = [word for word in [arguments[i].partition("=")[2]] if word]
        i += 1
        while i < len(arguments) and not arguments[i].startswith("--"):
            words.append(arguments[i])
            i += 1
        if not words:
            raise RecipeError(NO_FIELD)
        field, values = words[0].replace("-", "_"), words[1:]
        if not values:
            raise RecipeError(f"--grid {field} has no values: name one at least, as in --grid exchange.lam 0.5 0.9.")
        if field in {known for known, _ in grids}:
            raise RecipeError(f"--grid {field} is there twice: name each field once, with all of its values.")
        grids.append((field, values))
    return grids, rest


def _axis(
    kind: type[Any], rest: Sequence[str], base: Recipe, found: Recipe | None, field: str, words: Sequence[str]
) -> Axis:
    """Every value is read as that of a flag is."""
    check_field(base, field)
    values: dict[str, dict[str, Any]] = {}
    for word in words:
        value = _value(kind, rest, base, found, field, word)
        if label(value) in values:
            raise RecipeError(f"--grid {field} has {label(value)} twice: name each value once.")
        values[label(value)] = {field: value}
    return Axis(name=field.rpartition(".")[2], title=TITLES.get(field, ""), values=values)


def _value(kind: type[Any], rest: Sequence[str], base: Recipe, found: Recipe | None, field: str, word: str) -> Any:
    if isinstance(value_at(base, field), bool):
        if word.lower() not in ("true", "false"):
            raise RecipeError(f"--grid {field} has {word!r}; it is true or false.")
        return word.lower() == "true"
    flag = f"--{field.replace('_', '-')}"
    _, asked = _asked(kind, [*rest, flag, *shlex.split(word)], "", found)
    return value_at(asked.recipe, field)


def _renamed(axis: Axis) -> Axis:
    """Where two fields end alike, by the whole of them."""
    (field,) = axis.fields
    return Axis(name=field, title=axis.title, values=axis.values)
