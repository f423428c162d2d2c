"""Recipes by name: the paper's tables, row by row, and small ones for a CPU. This package needs no torch.

| module | names |
| --- | --- |
| `small` | `digits`, `cifar10.resnet20_5k`, `cifar10.wide_5k`, `cifar10.resnet20` |
| `cifar` | the paper's CIFAR table: `cifar100.resnet110` and eleven more; variants where text and script disagree |
| `ablation` | the paper's ablation of design choices: `ablation.design.label_smoothing` and five more; their twins |
| `stacking` | its table of combinations: `stacking.cutmix_moex` and seventeen more; their twins |

Every name of the first two has its arms: `…_moex` is the recipe with Moment Exchange, `…_labels_only` and `…_lam1` are
controls of it.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from momentex.errors import RecipeError, did_you_mean
from momentex.models import load_function
from momentex.recipes import ablation, cifar, small, stacking
from momentex.recipes.arms import Named, Usual
from momentex.train.recipe import Recipe, Reported

__all__ = ["Entry", "Measured", "find", "names", "usual", "yours"]


class Measured(NamedTuple):
    """What was measured here: error in %, its standard error over `seeds` runs, and what a comparison says in words."""

    error: float
    sem: float | None = None
    seeds: int = 1
    verdict: str = ""


@dataclass(frozen=True)
class Entry:
    """A line of the list. `note` is the recipe's lab note; `ours` is None where nothing was measured."""

    name: str
    recipe: Recipe
    note: str
    ours: Measured | None = None

    @property
    def summary(self) -> str:
        return self.note.partition("\n")[0]

    @property
    def reported(self) -> Reported | None:
        return self.recipe.paper


def find(name: str) -> Recipe:
    """The recipe of that name, or the one that a function of yours returns.

    >>> find("cifar100.resnet110_moex").paper.error
    25.47
    """
    if ":" in name or name.endswith(".py"):
        return _yours(name)
    if name not in _table():
        near = did_you_mean(name, _table())
        raise RecipeError(
            f"there is no recipe {name!r}. {near} `momentex recipes` lists them; one of your own is named "
            "path/to/mine.py:FUNCTION.".replace("  ", " ")
        )
    return _table()[name].make()


def usual(name: str) -> Usual:
    """What a comparison of this recipe has, unless others are asked for.

    >>> usual("cifar100.resnet110").seeds, usual("mine.py:recipe").arms
    (5, ('baseline', 'moex', 'labels_only', 'lam1'))
    """
    return _table()[name].usual if name in _table() else Usual()


def names() -> list[Entry]:
    """Every recipe that has a name.

    >>> names()[0].name
    'digits'
    """
    ours = measured(RESULTS)
    return [Entry(named.name, named.make(), named.note, ours.get(named.name)) for named in _table().values()]


@cache
def _table() -> dict[str, Named]:
    return {named.name: named for module in (small, cifar, ablation, stacking) for named in module.table()}


def _yours(name: str) -> Recipe:
    recipe = yours(name)
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{name} returned a {type(recipe).__name__}; it must return a momentex.train.recipe.Recipe. Start from one "
            'that there is: replace(momentex.recipes.find("cifar10.resnet20"), epochs=10)'
        )
    return recipe


def yours(name: str) -> Any:
    """What a function of yours returns, whatever that is; where it fails is said."""
    function = load_function(name)
    try:
        return function()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # without this one
        lines = [f"{frame.filename}, line {frame.lineno}" for frame in frames if frame.filename == frames[0].filename]
        place = f" ({lines[-1]})" if lines else ""
        raise RecipeError(f"{name} failed{place}: {type(error).__name__}: {error}") from error


# --- what was measured -----------------------------------------------------------------------------------------------

# In a checkout: beside src. In an installed package there is no such folder, and the column stays empty.
RESULTS = Path(__file__).resolve().parents[3] / "results"


def measured(folder: Path) -> dict[str, Measured]:
    """Errors by recipe, from the JSON files of a folder that have any: {"errors": {recipe: a Measured}}."""
    found: dict[str, Measured] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document: Any = json.loads(path.read_text(encoding="utf8"))
            rows = document.get("errors", {}) if isinstance(document, dict) else {}
            found |= {name: Measured(**row) for name, row in rows.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise RecipeError(f"{path} cannot be read as results: {type(error).__name__}: {error}") from None
    return found
