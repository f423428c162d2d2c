"""A comparison out of what lies in a folder: a stored one with what has been run since, or any set of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from momentex.comparison import contrasts, store
from momentex.comparison.design import described, reported
from momentex.comparison.outcomes import failure
from momentex.comparison.result import Arm, Comparison
from momentex.comparison.runs import environment, folder_of, outcome, split_of, time_of
from momentex.errors import RunError
from momentex.recipes.arms import ARMS
from momentex.train.recipe import Recipe
from momentex.train.record import RECIPE, Record
from momentex.train.resolved import differences, identity, to_json


def gather(folder: Path) -> Comparison:
    """What lies there. Runs of one arm are those in one folder, or whose folders differ by their seed alone."""
    folder = Path(folder)
    if (stored := store.read(folder)) is not None:
        return refreshed(stored, folder)
    return _of_runs(folder.resolve().name, _groups(dict.fromkeys(_runs(folder), folder)))


def gather_all(folders: Sequence[Path], apart: Collection[Path] = ()) -> list[Comparison]:
    """Every comparison that lies in these folders, however deep; and one of all runs that belong to none of them.

    What lies in folders that are `apart` belongs to something else.
    """
    stored: dict[Path, Path] = {}
    loose: dict[Path, tuple[Path, Path]] = {}
    for folder in folders:
        mine = [*sorted(path.parent for path in folder.rglob(store.FILE)), *apart]
        others = any(folder == place or folder in place.parents for place in mine)
        runs = _runs(folder) if folder not in mine and (not others or any(folder.rglob(RECIPE))) else list[Path]()
        stored |= {place.resolve(): place for place in mine if place not in apart}
        loose |= {run.resolve(): (run, folder) for run in runs if not any(place in run.parents for place in mine)}
    comparisons = [gather(place) for place in stored.values()]
    if loose:
        rooted = dict(loose.values())
        title = " and ".join(dict.fromkeys(folder.resolve().name for folder in rooted.values()))
        comparisons.append(_of_runs(title, _groups(rooted)))
    return comparisons


def _runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder: name that of a comparison, or one with run directories in it.")
    runs = sorted(path.parent for path in folder.rglob(RECIPE))
    if not runs:
        raise RunError(f"{folder} holds neither a comparison ({store.FILE}) nor any run directory ({RECIPE}).")
    return runs


def refreshed(stored: Comparison, folder: Path) -> Comparison:
    """With the outcomes of runs that have ended since, and what they were run on. Nothing that was stored is lost."""
    there = {(found.arm, found.seed): found for found in stored.outcomes}
    runs = []
    for arm in stored.arms:
        for seed in stored.seeds:
            run = folder_of(folder, arm.name, seed)
            if not (run / RECIPE).exists():
                continue
            before = there.get((arm.name, seed))
            if before is None or failure(before) is not None:
                found = outcome(arm.name, run, Record(run).recipe())
                there |= {} if found is None else {(arm.name, seed): found}
            if (arm.name, seed) in there:
                runs.append(run)
    facts, notes = environment(runs)
    return replace(
        stored,
        outcomes=tuple(there.values()),
        split=split_of(runs) if runs else stored.split,
        facts={**stored.facts, **facts, **time_of(there.values())},
        notes=tuple(dict.fromkeys((*stored.notes, *notes))),
    )


# --- runs that no comparison has made --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ in their seed."""

    name: str
    recipe: Recipe  # that of the first run
    runs: Mapping[int, Path]


def _groups(runs: Mapping[Path, Path]) -> list[Group]:
    """Of runs, each with the folder in which it was looked for."""
    found: dict[str, dict[int, Path]] = {}
    recipes: dict[str, tuple[Path, Recipe]] = {}
    several = len(set(runs.values())) > 1
    for run, folder in runs.items():
        above = run.parent if run.name.startswith("seed-") else run
        inner = above in (folder, folder.parent)
        name = above.resolve().name if inner else above.relative_to(folder).as_posix()
        name = name if inner or not several else f"{folder.resolve().name}/{name}"
        recipe = Record(run).recipe()
        first, before = recipes.setdefault(name, (run, recipe))
        if lines := differences(replace(before, seed=0), replace(recipe, seed=0)):
            raise RunError(
                f"{first} and {run} would be seeds of one arm, and their recipes differ: {'; '.join(lines)}. Runs of "
                "several recipes are not averaged: give each recipe a folder of its own."
            )
        mine = found.setdefault(name, {})
        if recipe.seed in mine:
            raise RunError(f"{mine[recipe.seed]} and {run} have the same recipe and seed: a run counts once.")
        mine[recipe.seed] = run
    groups = [Group(name, recipes[name][1], mine) for name, mine in found.items()]
    for one, other in combinations(groups, 2):
        if not differences(replace(one.recipe, seed=0), replace(other.recipe, seed=0)):
            raise RunError(
                f"the runs of {one.name} and {other.name} are of one recipe, and would be compared with themselves. "
                "Leave one of these folders out."
            )
    return sorted(groups, key=lambda group: _kind(group.recipe) != "baseline")


def _of_runs(title: str, groups: Sequence[Group]) -> Comparison:
    apart = _beyond_arms(groups)
    groups = groups if apart else _by_arm(groups)
    names = [group.name for group in groups]
    runs = [run for group in groups for run in group.runs.values()]
    facts, notes = environment(runs)
    if apart:
        notes.append(
            f"These runs differ in more than what an arm is: {'; '.join(apart)}. They stand side by side, and no "
            "differences are drawn between them."
        )
    pairs, beforehand = ((), 1) if apart or len(names) < 2 else contrasts.of_arms(names)
    found = (outcome(g.name, run, replace(g.recipe, seed=seed)) for g in groups for seed, run in g.runs.items())
    outcomes = tuple(one for one in found if one is not None)
    return Comparison(
        title=title,
        arms=tuple(_arm(group) for group in groups),
        seeds=tuple(sorted({seed for group in groups for seed in group.runs})),
        outcomes=outcomes,
        contrasts=pairs,
        beforehand=beforehand,
        split=split_of(runs),
        facts={**facts, **time_of(outcomes)},
        notes=tuple(notes),
        recipe=to_json(_plain(groups[0].recipe)),
    )


def _plain(recipe: Recipe) -> Recipe:
    """Without anything that an arm could add."""
    fields = {method.field for method in ARMS.values() if method.field is not None}
    return replace(identity(recipe), seed=0, **{field: getattr(Recipe(), field) for field in fields})


def _beyond_arms(groups: Sequence[Group]) -> list[str]:
    """In what recipes differ that no arm sets."""
    first = _plain(groups[0].recipe)
    lines = (line for group in groups[1:] for line in differences(first, _plain(group.recipe)))
    return list(dict.fromkeys(lines))


def _by_arm(groups: Sequence[Group]) -> list[Group]:
    """By the names of arms, where all are known, in the order of ARMS; as they are, where one is not."""
    kinds = [_kind(group.recipe) for group in groups]
    if None in kinds or len(set(kinds)) < len(kinds):
        return list(groups)
    named = [replace(group, name=kind) for group, kind in zip(groups, kinds, strict=True) if kind is not None]
    return sorted(named, key=lambda group: list(ARMS).index(group.name))


def _kind(recipe: Recipe) -> str | None:
    """The one arm that a recipe is, whatever λ and layer are; None if it is of several methods."""
    touched = [m.field for m in ARMS.values() if m.field and getattr(recipe, m.field) != getattr(Recipe(), m.field)]
    if not touched:
        return "baseline"
    if set(touched) != {"exchange"} or recipe.exchange is None:
        named = [name for name, method in ARMS.items() if method.field == touched[0]]
        return named[0] if len(set(touched)) == len(named) == 1 else None
    if not recipe.exchange.features:
        return "labels_only"
    return "lam1" if recipe.exchange.lam == 1 else "moex"


def _arm(group: Group) -> Arm:
    if group.name in ARMS:
        return described(group.name, group.recipe)
    return Arm(name=group.name, paper=reported(group.recipe))
