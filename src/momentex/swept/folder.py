"""A sweep in its folder: `sweep.json`, written whole or not at all, and a run directory for every point and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from momentex.comparison import gather
from momentex.comparison.runs import folder_of
from momentex.comparison.store import read_document, write_document
from momentex.errors import RunError
from momentex.sweep.grid import Sweep
from momentex.sweep.job import Job
from momentex.swept.result import Swept, from_json, to_json
from momentex.train.record import look
from momentex.train.resolved import differences

FILE = "sweep.json"
SHOWN = 8  # differences in an error


def jobs(sweep: Sweep, seeds: Sequence[int], folder: Path) -> list[Job]:
    """Every run, all points of a seed before the next seed: what is killed early has whole pairs."""
    return [
        Job(replace(point.recipe, seed=seed), folder_of(folder, point.name, seed), f"{point.name}, seed {seed}")
        for seed in seeds
        for point in sweep.points
    ]


def check_folder(sweep: Sweep, seeds: Sequence[int], folder: Path) -> None:
    """Whether this sweep could lie there, found out before anything is trained; nothing is changed.

    One that was there with fewer points is gone on with.
    """
    before = read(folder)
    if before is None:
        points = {point.name for point in sweep.points}
        foreign = [path.name for path in folder.iterdir() if path.name not in points] if folder.is_dir() else []
        if foreign:
            raise RunError(
                f"{folder} is not empty and no sweep (it has {', '.join(sorted(foreign)[:3])}). Name another folder "
                "with --to."
            )
    elif lines := changed(before.sweep, sweep):
        told = "".join(f"\n  {line}" for line in lines[:SHOWN])
        more = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise RunError(f"{folder} holds another sweep:{told}{more}\nName another folder with --to, or remove this one.")
    for job in jobs(sweep, seeds, folder):
        look(job.to, job.recipe)


def changed(there: Sweep, now: Sweep) -> list[str]:
    """A line for each point that is gone, or another one; there may be more points now."""
    mine = {point.name: replace(point.recipe, seed=0) for point in now.points}
    lines: list[str] = []
    for point in there.points:
        if point.name not in mine:
            lines.append(f"{point.name}: a point there, none now")
            continue
        lines += [f"{point.name}: {line}" for line in differences(replace(point.recipe, seed=0), mine[point.name])]
    return lines


def refreshed(swept: Swept, folder: Path) -> Swept:
    """With what came of the runs that have ended since. Nothing that was stored is lost."""
    return swept.with_runs(gather.refreshed(swept.comparison, folder))


def gather_all(folders: Sequence[Path]) -> dict[Path, Swept]:
    """Every sweep that lies in these folders, however deep, with what has been run since; by its folder."""
    places = [path.parent for folder in folders for path in sorted(folder.rglob(FILE))]
    first = {place.resolve(): place for place in reversed(places)}  # a folder may be named twice
    found = {place: read(place) for place in places if first[place.resolve()] is place}
    return {place: refreshed(swept, place) for place, swept in found.items() if swept is not None}


def write(folder: Path, swept: Swept) -> Path:
    """Put it there; where."""
    return write_document(folder / FILE, to_json(swept), "a sweep")


def read(folder: Path) -> Swept | None:
    """The one that is there; None if there is none, and a RunError if it cannot be read."""
    return read_document(folder / FILE, from_json)
