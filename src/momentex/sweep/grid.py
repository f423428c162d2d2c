"""A sweep: points, each a recipe with a name, as one frozen value. A function that returns it is all the configuration.

    def mine() -> Sweep:
        lam, p = axis("exchange.lam", 0.5, 0.9), axis("exchange.p", 0.5, 1.0)
        return grid("λ and p", find("digits.resnet_moex"), [lam, p])

`momentex sweep mine.py:mine` runs it. Seeds are not of a sweep, but of how it is run. This module needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from momentex.errors import RecipeError, did_you_mean
from momentex.over import GN, PONO
from momentex.sweep.fields import moved, with_fields
from momentex.train.recipe import Recipe
from momentex.train.resolved import identity, to_json

Group: TypeAlias = Literal["table", "row", "column"]
Changes: TypeAlias = Mapping[str, Any]  # fields by name, and what they become


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One thing that is varied.

    name    as in the names of folders: "lam"
    title   as in tables: "λ"
    values  what it can be, in order: what a table calls it, and the fields that it sets
    """

    name: str
    values: Mapping[str, Changes]
    title: str = ""

    @property
    def heading(self) -> str:
        """What a table calls it."""
        return self.title or self.name

    def spoken(self, label: str) -> str:
        """A value where its axis is not beside it: a number with its name."""
        return f"{self.heading} = {label}" if label[:1].isdigit() else label

    @property
    def fields(self) -> tuple[str, ...]:
        """All that any of its values sets."""
        return tuple(dict.fromkeys(name for changes in self.values.values() for name in changes))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One recipe among others.

    name    of its folder, and as failures have it: "lam=0.5,p=1"
    title   as in tables, where it has a row of its own
    at      where it stands on each axis: {"lam": "0.5", "p": "1"}
    """

    name: str
    recipe: Recipe
    title: str = ""
    at: Mapping[str, str] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """What a table calls it."""
        return self.title or self.name


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is to be run, and how a table of it looks.

    axes      what is varied, in order; none where the points are a list
    base      what the axes change; None for a list
    best      where a table says which one is best: of all, of each row, of each column (of two axes)
    about     what a reader should know
    searched  names of axes of which a table shows the best values only, as the paper does
    """

    title: str
    points: tuple[Point, ...]
    axes: tuple[Axis, ...] = ()
    base: Recipe | None = None
    best: Group = "table"
    about: str = ""
    searched: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_points(self.points)
        for name in self.searched:
            if name not in {axis.name for axis in self.axes}:
                raise RecipeError(f"searched has {name!r}, which is no axis of this sweep.")
        for axis in self.axes:
            for point in self.points:
                if axis.name in point.at and point.at[axis.name] not in axis.values:
                    raise RecipeError(
                        f"the point {point.name} is at {point.at[axis.name]!r} of {axis.name}, which has "
                        f"{', '.join(axis.values)}."
                    )

    def point(self, name: str) -> Point:
        """The point of that name."""
        found = {point.name: point for point in self.points}
        if name not in found:
            raise RecipeError(f"the sweep has no point {name!r}. {did_you_mean(name, found)}".strip())
        return found[name]

    @property
    def whole(self) -> bool:
        """Whether there is a point for every combination of two or more axes."""
        places = {tuple(point.at.get(axis.name) for axis in self.axes) for point in self.points}
        return len(self.axes) > 1 and places == set(product(*(axis.values for axis in self.axes)))


# --- making one ------------------------------------------------------------------------------------------------------


def axis(field: str, *values: Any, name: str = "", title: str = "") -> Axis:
    """An axis of one field.

    >>> axis("exchange.lam", 0.5, 0.9).values
    {'0.5': {'exchange.lam': 0.5}, '0.9': {'exchange.lam': 0.9}}
    """
    labels = [label(value) for value in values]
    if not values:
        raise RecipeError(f"the axis {field} has no values: name one at least.")
    if len(set(labels)) < len(labels):
        twice = next(text for text in labels if labels.count(text) > 1)
        raise RecipeError(f"the axis {field} has {twice} twice: name each value once.")
    found = {text: {field: value} for text, value in zip(labels, values, strict=True)}
    return Axis(name=name or field.rpartition(".")[2], values=found, title=title)


def grid(title: str, base: Recipe, axes: Sequence[Axis], *, best: Group = "table", about: str = "") -> Sweep:
    """A point for every combination of the axes' values.

    >>> [point.name for point in grid("mine", Recipe(), [axis("epochs", 1, 2), axis("clip", 1.0)]).points]
    ['epochs=1,clip=1', 'epochs=2,clip=1']
    """
    _check_axes(axes)
    points = []
    for labels in product(*(each.values for each in axes)):
        at = {each.name: text for each, text in zip(axes, labels, strict=True)}
        changes = {name: value for each in axes for name, value in each.values[at[each.name]].items()}
        name = ",".join(f"{key}={slug(text)}" for key, text in at.items())
        try:
            recipe = with_fields(base, changes)
        except RecipeError as error:
            raise RecipeError(f"the point {name}: {error}") from error
        title_of = ", ".join(each.spoken(at[each.name]) for each in axes)
        points.append(Point(name=name, title=title_of, recipe=replace(recipe, paper=None), at=at))
    return Sweep(title=title, points=tuple(points), axes=tuple(axes), base=base, best=best, about=about)


def listed(title: str, recipes: Mapping[str, Recipe], *, best: Group = "table", about: str = "") -> Sweep:
    """Recipes by what a table calls them.

    >>> listed("mine", {"ten epochs": Recipe(epochs=10)}).points[0].name
    'ten-epochs'
    """
    points = (Point(name=slug(text), title=text, recipe=recipe) for text, recipe in recipes.items())
    return Sweep(title=title, points=tuple(points), best=best, about=about)


def flagged(sweep: Sweep, before: Recipe, after: Recipe) -> Sweep:
    """The sweep with what flags have changed from `before` to `after`, in every point that has it."""
    points = tuple(replace(point, recipe=_flagged(point.recipe, before, after)) for point in sweep.points)
    base = None if sweep.base is None else moved(sweep.base, before, after)
    return replace(sweep, points=points, base=base)


def _flagged(recipe: Recipe, before: Recipe, after: Recipe) -> Recipe:
    """What the paper reports is of the recipe as it was."""
    made = moved(recipe, before, after)
    return made if identity(made) == identity(recipe) else replace(made, paper=None)


def swept(sweep: Sweep) -> set[str]:
    """The names of the fields in which the points differ.

    >>> sorted(swept(listed("mine", {"a": Recipe(epochs=1), "b": Recipe(epochs=2)})))
    ['epochs']
    """
    flat = [dict(_leaves(to_json(identity(point.recipe)))) for point in sweep.points]
    names = {name for leaves in flat for name in leaves}
    return {name for name in names if len({repr(leaves.get(name)) for leaves in flat}) > 1}


def _leaves(found: Any, name: str = "") -> list[tuple[str, Any]]:
    """What flags can set: an `over` is one value."""
    if not isinstance(found, dict) or name == "exchange.over":
        return [(name, found)]
    return [leaf for key, item in found.items() if key != "is" for leaf in _leaves(item, f"{name}.{key}".lstrip("."))]


def label(value: Any) -> str:
    """What a table calls a value.

    >>> label(1.0), label(None), label(GN(4)), label(PONO(only="mean"))
    ('1', 'none', 'GN(4)', 'PONO mean')
    """
    if isinstance(value, float):
        return f"{value:g}"
    if is_dataclass(value):
        groups = getattr(value, "groups", 1) if isinstance(value, (PONO, GN)) else 1
        return (
            f"{type(value).__name__}{f'({groups})' if groups > 1 else ''} {getattr(value, 'only', None) or ''}".strip()
        )
    return "none" if value is None else str(value)


def slug(text: str) -> str:
    """A text as part of the name of a folder.

    >>> slug("before stage 1"), slug("LRN (uncentred)")
    ('before-stage-1', 'LRN-uncentred')
    """
    return re.sub(r"[^\w.+=,]+", "-", text).strip("-.") or "none"


# --- what is refused -------------------------------------------------------------------------------------------------


def _check_axes(axes: Sequence[Axis]) -> None:
    if not axes:
        raise RecipeError("the grid is empty: name an axis at least, as in --grid exchange.lam 0.5 0.9.")
    setters: dict[str, Axis] = {}
    for each in axes:
        if not each.values:
            raise RecipeError(f"the axis {each.name} has no values: name one at least.")
        for name in each.fields:
            if name in setters:
                raise RecipeError(f"two axes set {name}: name each field once, with all of its values.")
            setters[name] = each
    names = [each.name for each in axes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"two axes are called {twice}: give one of them another name.")


def _check_points(points: Sequence[Point]) -> None:
    if not points:
        raise RecipeError("the sweep is empty: it needs a point at least.")
    names: dict[str, Point] = {}
    recipes: dict[str, Point] = {}
    for point in points:
        if not point.name or slug(point.name) != point.name:
            raise RecipeError(
                f"a point is called {point.name!r}, which cannot be the name of its folder: {slug(point.name)!r} could."
            )
        if names.setdefault(point.name.casefold(), point) is not point:
            raise RecipeError(f"two points are called {point.name}: every point needs a name of its own.")
        same = recipes.setdefault(repr(replace(identity(point.recipe), seed=0)), point)
        if same is not point:
            raise RecipeError(
                f"the points {same.name} and {point.name} do not differ: both are trained in the same way. Leave "
                "one of them out."
            )
