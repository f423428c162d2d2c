"""`momentex sweep … --search`: the best point by held-out images, then that point on the test set with fresh seeds."""

from __future__ import annotations

import json as json_
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from momentex.comparison.contrasts import check_seeds
from momentex.errors import RecipeError
from momentex.report import html, markdown
from momentex.report.searched import document
from momentex.sweep.grid import Point, Sweep
from momentex.sweep.places import runner
from momentex.sweep.search import SEEDS, Search, Trial, best, searched
from momentex.swept.result import Swept, to_json
from momentex.train.recipe import Recipe
from momentex.train.whole import write_whole
from momentex.verbs.compare import seeds_of

if TYPE_CHECKING:
    from momentex.verbs.sweep import Sweeping, Trained

FINAL = 5  # seeds


def search(name: str, sweep: Sweep, asked: Sweeping, arguments: Sequence[str], trained: Trained) -> None:
    """Search, test, tell."""
    chosen_with, fresh = seeds_of_search(asked.seeds), seeds_of(asked.final_seeds or (str(FINAL),))
    check_seeds(chosen_with)
    check_seeds(fresh)
    if both := sorted(set(chosen_with) & set(fresh)):
        raise RecipeError(
            f"the seeds {', '.join(map(str, both))} are among --seeds and --final-seeds: what was chosen with a seed "
            "looks better with it than it is. Name others."
        )
    made = Search(
        sweep=sweep,
        seeds=chosen_with,
        trials=asked.trials,
        seed=asked.search_seed,
        at_a_time=asked.at_a_time,
        prune=asked.prune,
    )
    tests = {point.name: _on_test(point) for point in sweep.points}  # what cannot be tested is found now
    folder = asked.to or Path("runs") / "search" / name
    command = shlex.join(["momentex", "sweep", *arguments])
    trials = tuple(_searched(made, folder / "trials", asked, command))
    lowest = best(trials)
    design = Swept(
        sweep=Sweep(title=sweep.title, points=(tests[lowest.point],)),
        seeds=fresh,
        sem=asked.sem,
        split="test",
        facts={"command": command},
    )
    tested = trained(design, folder / "test" / lowest.point, asked)
    told = {"trials": list(map(asdict, trials)), "best": lowest.point, "seeds": chosen_with, "test": to_json(tested)}
    write_whole(folder / "search.json", (json_.dumps(told, indent=1) + "\n").encode())
    found = document(made, trials, tested)
    report = folder / "report.html"
    write_whole(report, html.page([found]).encode())
    print(json_.dumps(told, indent=1) if asked.json else f"{markdown.of(found, whole=False)}\n\nreport: {report}")


def seeds_of_search(words: Sequence[str]) -> tuple[int, ...]:
    """The seeds that are meant; so many are those from 1000 on, which are for choosing.

    >>> seeds_of_search(["3"]), seeds_of_search(["7", "9"]), seeds_of_search([])
    ((1000, 1001, 1002), (7, 9), (1000,))
    """
    if not words:
        return SEEDS
    found = seeds_of(words)
    return tuple(SEEDS[0] + seed for seed in found) if len(words) == 1 and words[0].isdecimal() else found


def _on_test(point: Point) -> Point:
    """The same, trained on the images that were held out too, and measured on the test set."""
    recipe: Recipe = point.recipe
    try:
        return replace(point, recipe=replace(recipe, data=replace(recipe.data, validation=0), paper=None), at={})
    except RecipeError as error:
        raise RecipeError(f"the point {point.name} could not be tested afterwards: {error}") from error


def _searched(made: Search, folder: Path, asked: Sweeping, command: str) -> list[Trial]:
    from momentex.comparison.rehearsed import rehearse_each
    from momentex.sweep.watch import watching

    run = runner(asked.on)
    rehearse_each({point.name: point.recipe for point in made.sweep.points}, made.seeds[0], "the point")
    watch = watching(asked.quiet or asked.json)
    train = partial(
        run,
        workers=asked.workers,
        threads=asked.threads,
        processes=asked.processes,
        watch=watch,
        command=command,
    )
    return searched(made, folder, train)
