"""A comparison of a recipe's arms before it is run: what is to be trained, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from momentex.comparison import contrasts, store
from momentex.comparison.contrasts import check_arms, check_seeds
from momentex.comparison.result import Arm, Comparison, Sem
from momentex.comparison.runs import folder_of
from momentex.errors import RunError
from momentex.recipes import arms as known
from momentex.recipes import names
from momentex.sweep.job import Job
from momentex.train.recipe import Recipe
from momentex.train.record import look
from momentex.train.resolved import changed, from_json, identity, to_json


@dataclass(frozen=True)
class Design:
    """What a comparison is before there are outcomes, and the recipe of every arm."""

    comparison: Comparison
    recipes: Mapping[str, Recipe]


def designed(
    title: str,
    recipe: Recipe,
    *,
    arms: Sequence[str] = known.DEFAULT,
    seeds: Sequence[int],
    sem: Sem = "plain",
    command: str = "",
) -> Design:
    """What is wrong with arms and seeds is an error here."""
    check_arms(arms)
    check_seeds(seeds)
    recipes = known.of(recipe, arms)
    plain = replace(identity(known.without(recipe, arms)), seed=seeds[0])
    pairs, beforehand = contrasts.of_arms(arms)
    comparison = Comparison(
        title=title,
        arms=tuple(described(arm, recipes[arm]) for arm in arms),
        seeds=tuple(seeds),
        outcomes=(),
        contrasts=pairs,
        beforehand=beforehand,
        sem=sem,
        split="validation" if recipe.data.validation else "test",
        facts={"command": command} if command else {},
        recipe=to_json(plain),
    )
    return Design(comparison, recipes)


def described(arm: str, recipe: Recipe) -> Arm:
    """The arm as tables have it, with the paper's number if this is a recipe that has one."""
    parts = known.methods(arm)
    what = " Then: ".join(method.what for method in parts)
    how = f" {known.setting(recipe.exchange)}." if recipe.exchange else ""
    return Arm(name=arm, title=known.title(arm), what=f"{what}{how}", paper=reported(recipe))


def reported(recipe: Recipe) -> tuple[float, float | None] | None:
    """What the paper reports for exactly this recipe, whatever the seed."""
    here = replace(identity(recipe), seed=0)
    for entry in names():
        if entry.reported is not None and replace(identity(entry.recipe), seed=0) == here:
            return entry.reported.error, entry.reported.sem
    return None


def jobs(design: Design, folder: Path) -> list[Job]:
    """Every run, all arms of a seed before the next seed: what is killed early has whole pairs."""
    return [
        Job(replace(recipe, seed=seed), folder_of(folder, arm, seed), f"{arm}, seed {seed}")
        for seed in design.comparison.seeds
        for arm, recipe in design.recipes.items()
    ]


def check_folder(design: Design, folder: Path) -> None:
    """Whether this comparison could lie there, found out before anything is trained; nothing is changed."""
    before = store.read(folder)
    if before is None:
        foreign = [p.name for p in folder.iterdir() if p.name not in design.recipes] if folder.is_dir() else []
        if foreign:
            raise RunError(
                f"{folder} is not empty and no comparison (it has {', '.join(sorted(foreign)[:3])}). Name another "
                "folder with --to."
            )
    elif lines := changed({**_today(before.recipe), "seed": 0}, {**design.comparison.recipe, "seed": 0}):
        raise RunError(
            f"{folder} holds a comparison of another recipe:{''.join(f'{chr(10)}  {line}' for line in lines)}\nName "
            "another folder with --to, or remove this one."
        )
    for job in jobs(design, folder):
        look(job.to, job.recipe)


def _today(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recipe as it was written, with the fields that recipes have got since."""
    return to_json(from_json(dict(recipe)))
