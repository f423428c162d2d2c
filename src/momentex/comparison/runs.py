"""Run directories as the outcomes of a comparison, and what they were run on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from momentex.comparison.result import Metrics, Outcome
from momentex.errors import RunError
from momentex.sweep.job import Job, failure_of
from momentex.train.progress import clock
from momentex.train.recipe import Recipe
from momentex.train.record import Record

ABOUT = ("epoch", "loss", "lr")  # of a row, what is no result


def folder_of(comparison: Path, arm: str, seed: int) -> Path:
    """Where the run of an arm with a seed lies."""
    return comparison / arm / f"seed-{seed}"


def outcome(arm: str, run: Path, recipe: Recipe) -> Outcome | None:
    """What came of a run; None if it is not complete and has not failed either."""
    record = Record(run)
    rows = record.metrics()
    if not rows or rows[-1].get("epoch") != recipe.epochs:
        failure = failure_of(Job(recipe, run, arm))
        return None if failure is None else Outcome(arm=arm, seed=recipe.seed, failure=failure)
    curve = [_numbers(row) for row in rows]
    return Outcome(
        arm=arm,
        seed=recipe.seed,
        last=_results(curve[-1], but=ABOUT),
        best=_results(_best(curve), but=("loss", "lr")),
        curve=tuple(curve),
        seconds=_seconds(record.times(), recipe.epochs),
    )


def _numbers(row: Mapping[str, Any]) -> Metrics:
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def _best(curve: Sequence[Metrics]) -> Metrics:
    """The row with the lowest error, the first of several; nothing where only the last epoch was measured."""
    measured = [row for row in curve if math.isfinite(row.get("error", math.nan))]
    return min(measured, key=lambda row: row["error"]) if len(measured) > 1 else {}


def _results(row: Metrics, *, but: Iterable[str]) -> Metrics:
    return {name: value for name, value in row.items() if name not in but}


def _seconds(times: Sequence[Mapping[str, Any]], epochs: int) -> float | None:
    """Of training and evaluation, if that of every epoch is known."""
    if [row.get("epoch") for row in times] != list(range(1, epochs + 1)):
        return None
    return math.fsum(row.get("seconds", 0.0) + row.get("seconds_of_evaluation", 0.0) for row in times)


def split_of(runs: Iterable[Path]) -> str:
    """What the runs were measured on; a RunError if that is not one thing."""
    found = {row["split"] for run in runs for row in Record(run).metrics()[-1:] if "split" in row}
    if len(found) > 1:
        raise RunError(f"some of these runs were measured on {' images and some on '.join(sorted(found))} images.")
    return found.pop() if found else "test"


# --- what they were run on -------------------------------------------------------------------------------------------


def environment(runs: Iterable[Path]) -> tuple[dict[str, str], list[str]]:
    """Facts for people, of all runs together, and a note for each in which runs differ."""
    described = [_described(start) for run in runs if (start := (Record(run).starts() or [{}])[-1])]
    facts: dict[str, str] = {}
    notes = []
    for name in dict.fromkeys(name for one in described for name in one):
        values = list(dict.fromkeys(one[name] for one in described if name in one))
        facts[name] = "; ".join(values)
        if len(values) > 1:
            notes.append(
                f"The runs differ in {name}: {facts[name]}. Arms of one seed may not be comparable to the bit."
            )
    return facts, notes


def time_of(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """A fact: how long all of them took together."""
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    runs = f"{len(seconds)} run{'s' * (len(seconds) != 1)}"
    return {"time": f"{clock(math.fsum(seconds))} of training and evaluation, {runs} together"} if seconds else {}


def _described(start: Mapping[str, Any]) -> dict[str, str]:
    versions = start.get("versions") or {}
    device, cores = start.get("device"), start.get("cores")
    hardware = f"{start.get('cpu')}, {cores} cores" if device == "cpu" else f"{device} ({start.get('cpu')})"
    found = {
        "hardware": hardware if device else None,
        "threads of a run": start.get("threads"),
        "momentex": versions.get("momentex"),
        "commit": start.get("commit"),
        "torch": versions.get("torch"),
        "torchvision": versions.get("torchvision"),
        "python": start.get("python"),
        "system": start.get("system"),
        "file of the model": start.get("model_file"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}
