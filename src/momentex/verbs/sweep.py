"""`momentex sweep`: many recipes with the same seeds, a table, and a report to look at."""

from __future__ import annotations

import json as json_
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import tyro

from momentex import ablations, flags
from momentex.comparison.contrasts import check_seeds
from momentex.comparison.result import Sem
from momentex.errors import RecipeError, RunError
from momentex.report import html, markdown
from momentex.report.swept import document
from momentex.sweep.job import is_complete
from momentex.sweep.places import runner
from momentex.swept import folder as store
from momentex.swept.result import Swept, to_json
from momentex.swept.table import tabled
from momentex.train.recipe import Recipe
from momentex.train.whole import write_whole
from momentex.verbs import search as searching
from momentex.verbs.compare import seeds_of
from momentex.verbs.grids import asked_sweep

ABOUT = """\
Train every point of a sweep with the same seeds. The sweep is one of the paper's ablations, a function of yours that
returns one (mine.py:FUNCTION), or a recipe with
--grid FIELD VALUE VALUE … for every field that is to be varied
Every field of the recipe is a flag, which holds for all points. A sweep that was stopped goes on.
--search looks for the best point by held-out images, and then measures it on the test set with fresh seeds.
Sweeps:
"""


@dataclass(frozen=True, kw_only=True)
class Sweeping:
    """What `momentex sweep` is asked for."""

    seeds: tuple[str, ...] = ()
    """So many (5 are the seeds 0 to 4), or which ones: 3 7 11, or 1000:1020. Default: 3; 20 on digits."""
    to: Path | None = None
    """The folder of the sweep. Default: runs/sweep/NAME."""
    on: str = "local"
    """Where the runs are trained: local, or a Ray cluster: ray, auto, HOST:PORT, ray://HOST:PORT."""
    sem: Sem = "plain"
    """The standard error behind ±: s / √n, or that with s corrected for small samples, which the paper cites."""
    search: bool = False
    """Choose among the points by held-out images (--data.validation), and test the best one with fresh seeds."""
    trials: int | None = None
    """Of a search: so many points, chosen by Optuna. Default: all of them."""
    final_seeds: tuple[str, ...] = ()
    """Of a search: the seeds of the test. Default: 5, which are 0 to 4. --seeds are those of the search: 1000."""
    search_seed: int = 0
    """Of a search: what Optuna draws with."""
    at_a_time: int = 4
    """Of a search: so many points are chosen before it is known what came of them, and may be trained side by side."""
    prune: bool = True
    """Of a search: end runs early that are worse than half of those before them."""
    workers: int | None = None
    """So many runs side by side. Default: one for each idle core, or for each GPU."""
    threads: int | None = None
    """So many threads for each. Default: the cores, shared out."""
    processes: int = 1
    """So many processes for each run, with threads and a GPU each."""
    quiet: bool = False
    """Tell nothing but the table."""
    json: bool = False
    """Tell the sweep and its table as a JSON object in place of the table."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)


Trained: TypeAlias = Callable[[Swept, Path, Sweeping], Swept]


def sweep(arguments: Sequence[str]) -> None:
    """Train a grid or a list of recipes, the paper's ablations among them: a table, a report."""
    listed = "".join(f"- {named.name}: {named.title}\n" for named in ablations.names())
    name, found, asked = asked_sweep(Sweeping, arguments, ABOUT + listed)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError("a sweep starts its processes by itself, for all cores and GPUs: run it without torchrun.")
    if asked.search:
        searching.search(flags.name_of_folder(name), found, asked, arguments, trained)
        return
    for flag in ("trials", "final_seeds", "search_seed", "at_a_time", "prune"):
        if getattr(asked, flag) != getattr(Sweeping, flag):
            raise RecipeError(f"--{flag.replace('_', '-')} is for a search: add --search, or leave it out.")
    seeds = seeds_of(asked.seeds) if asked.seeds else tuple(range(_seeds(name)))
    check_seeds(seeds, "a sweep")
    folder = asked.to or Path("runs") / "sweep" / flags.name_of_folder(name)
    design = Swept(
        sweep=found,
        seeds=seeds,
        sem=asked.sem,
        split="validation" if found.points[0].recipe.data.validation else "test",
        facts={"command": shlex.join(["momentex", "sweep", *arguments])},
    )
    swept = trained(design, folder, asked)
    report = folder / "report.html"
    write_whole(report, html.page([document(swept)]).encode())
    if asked.json:
        print(json_.dumps({"sweep": to_json(swept), "table": asdict(tabled(swept))}, indent=1))
        return
    print(markdown.of(document(swept), whole=False))
    print(f"\nreport: {report}")


def _seeds(name: str) -> int:
    return next((named.seeds for named in ablations.names() if named.name == name), 3)


def trained(design: Swept, folder: Path, asked: Sweeping) -> Swept:
    """What came of the runs; those that are complete already are not run again."""
    run = runner(asked.on)
    store.check_folder(design.sweep, design.seeds, folder)
    todo = store.jobs(design.sweep, design.seeds, folder)
    lacking = {job.to.parent for job in todo if not is_complete(job)}  # the folders of points
    if lacking:
        from momentex.comparison.rehearsed import rehearse_each
        from momentex.sweep.watch import watching

        recipes = {point.name: point.recipe for point in design.sweep.points if folder / point.name in lacking}
        rehearse_each(recipes, design.seeds[0], "the point")
        store.write(folder, store.refreshed(design, folder))
        try:
            run(
                todo,
                workers=asked.workers,
                threads=asked.threads,
                processes=asked.processes,
                watch=watching(asked.quiet or asked.json),
                command=design.facts["command"],
            )
        finally:
            store.write(folder, store.refreshed(design, folder))
    found = store.refreshed(design, folder)
    store.write(folder, found)
    if all(outcome.failure is not None for outcome in found.outcomes):
        reasons = dict.fromkeys(outcome.failure or "" for outcome in found.outcomes)
        raise RunError(f"no run came to an end, so there is nothing to show: {'; '.join(reasons)}")
    return found
