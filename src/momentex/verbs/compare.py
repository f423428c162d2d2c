"""`momentex compare`: the arms of a recipe over paired seeds, a table, and a report to look at."""

from __future__ import annotations

import json as json_
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from momentex import flags
from momentex.comparing import Compared
from momentex.comparison import store
from momentex.comparison.design import Design, check_folder, designed, jobs
from momentex.comparison.gather import refreshed
from momentex.comparison.result import Comparison, Sem, to_json
from momentex.errors import RecipeError, RunError
from momentex.recipes import arms as known
from momentex.recipes import usual
from momentex.sweep.job import is_complete
from momentex.train.recipe import Recipe

ABOUT = f"""\
Train the arms of a recipe with the same seeds, and say what they differ by. Every field of the recipe is a flag, which
holds for all arms, those of the exchange for the arms that exchange. A comparison that was stopped goes on.
Arms: {", ".join(known.ARMS)}; a+b is both. MoEx against label interpolation only is what is looked at first.
"""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """What `momentex compare` is asked for."""

    arms: tuple[str, ...] = known.Usual().arms
    """What is compared; a+b is one method, then the other."""
    seeds: tuple[str, ...] = (str(known.Usual().seeds),)
    """So many (5 are the seeds 0 to 4), or which ones: 3 7 11, or 1000:1020. A recipe may have its own default."""
    to: Path | None = None
    """The folder of the comparison. Default: runs/compare/RECIPE."""
    sem: Sem = "plain"
    """The standard error behind ±: s / √n, or that with s corrected for small samples, which the paper cites."""
    workers: int | None = None
    """So many runs side by side. Default: one for each idle core, or for each GPU."""
    threads: int | None = None
    """So many threads for each. Default: the cores, shared out."""
    quiet: bool = False
    """Tell nothing but the table."""
    json: bool = False
    """Tell the comparison and its analysis as a JSON object in place of the table."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)


def compare(arguments: Sequence[str]) -> None:
    """Compare MoEx with its controls: paired seeds, a table, a report."""
    name, asked = parsed(arguments)
    design = designed(
        name,
        asked.recipe,
        arms=asked.arms,
        seeds=seeds_of(asked.seeds),
        sem=asked.sem,
        command=shlex.join(["momentex", "compare", *arguments]),
    )
    folder = asked.to or Path("runs") / "compare" / flags.name_of_folder(name)
    found = Compared(trained(design, folder, asked))
    found.save(folder)
    if asked.json:
        print(json_.dumps({"comparison": to_json(found.comparison), "analysis": asdict(found.analysis)}, indent=1))
        return
    print(found)
    print(f"\nreport: {folder / 'report.html'}")


def parsed(arguments: Sequence[str]) -> tuple[str, Compare]:
    """The recipe's name, and what is asked."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag == "--seed":
            raise RecipeError("--seed is that of one run; a comparison takes --seeds 5, or --seeds 3 7 11.")
        if flag == "--exchange":
            raise RecipeError(
                "--exchange is decided by the arms: leave it out, and name the arms with --arms. Its fields are flags: "
                "--exchange.lam 0.7 holds for every arm that exchanges."
            )
    return flags.asked_of_recipe("compare", Compare, arguments, ABOUT, usual)


def seeds_of(words: Sequence[str]) -> tuple[int, ...]:
    """The seeds that are meant.

    >>> seeds_of(["3"]), seeds_of(["3", "7"]), seeds_of(["1000:1003"])
    ((0, 1, 2), (3, 7), (1000, 1001, 1002))
    """
    found: list[int] = []
    for word in words:
        first, colon, end = word.partition(":")
        if not first.isdecimal() or (colon and not end.isdecimal()):
            raise RecipeError(f"--seeds has {word!r}; it is a number, as in 5 or 3 7 11, or a range: 1000:1020.")
        found += range(int(first), int(end)) if colon else [int(first)]
    return tuple(range(found[0])) if len(words) == 1 and words[0].isdecimal() else tuple(found)


def trained(design: Design, folder: Path, asked: Compare) -> Comparison:
    """What came of the runs; those that are complete already are not run again."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError("a comparison starts its processes by itself, for all cores and GPUs: run it without torchrun.")
    check_folder(design, folder)
    todo = jobs(design, folder)
    if not all(map(is_complete, todo)):
        from momentex.comparison.rehearsed import rehearse_arms
        from momentex.sweep.local import run_local
        from momentex.sweep.watch import watching

        rehearse_arms(design)
        store.write(folder, refreshed(design.comparison, folder))
        try:
            run_local(
                todo,
                workers=asked.workers,
                threads=asked.threads,
                watch=watching(asked.quiet or asked.json),
                command=design.comparison.facts["command"],
            )
        finally:
            store.write(folder, refreshed(design.comparison, folder))
    found = refreshed(design.comparison, folder)
    if all(outcome.failure is not None for outcome in found.outcomes):
        reasons = dict.fromkeys(outcome.failure or "" for outcome in found.outcomes)
        raise RunError(f"no run came to an end, so there is nothing to compare: {'; '.join(reasons)}")
    return found
