"""One run among many: what it is, whether it is complete, why it failed. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from momentex.errors import RecipeError, RunError
from momentex.train.recipe import Recipe
from momentex.train.record import FAILURE, Record
from momentex.train.resolved import differences, from_json, to_json
from momentex.train.whole import write_whole

PRUNED = "pruned after epoch"  # how the reason of a run begins that was ended on purpose
Limits: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Job:
    """A run to be had: of this recipe, in this directory; `label` is what people are told about it.

    limits  errors above which it is ended early, by epoch: see `pruning`
    """

    recipe: Recipe
    to: Path
    label: str
    limits: Limits = ()


@dataclass(frozen=True)
class Finished:
    """What came of a job: `failure` says why there is no result. `seconds` are those spent on it now; 0 of a job that
    was complete already.
    """

    job: Job
    failure: str | None
    seconds: float

    @property
    def pruned(self) -> bool:
        """Whether it was ended on purpose, which is no fault of it."""
        return self.failure is not None and self.failure.startswith(PRUNED)


def encoded(job: Job) -> dict[str, Any]:
    """In JSON's types."""
    return {"recipe": to_json(job.recipe), "to": str(job.to), "label": job.label, "limits": job.limits}


def decoded(found: Mapping[str, Any]) -> Job:
    """What `encoded` was given.

    >>> decoded(encoded(Job(Recipe(), Path("runs/1"), "the first")))
    Job(recipe=Recipe(...), to=PosixPath('runs/1'), label='the first', limits=())
    """
    bounds = tuple((epoch, error) for epoch, error in found["limits"])
    return Job(from_json(found["recipe"]), Path(found["to"]), found["label"], bounds)


def is_complete(job: Job) -> bool:
    """Whether the run's directory holds all epochs, of this recipe."""
    record = Record(job.to)
    rows = record.metrics()
    if not rows or rows[-1].get("epoch") != job.recipe.epochs:
        return False
    try:
        return not differences(record.recipe(), job.recipe)
    except RunError:
        return False


def failure_of(job: Job) -> str | None:
    """Why the run failed when it was last tried; None if it did not, or is complete since."""
    with suppress(OSError):
        if not is_complete(job):
            return (job.to / FAILURE).read_text(encoding="utf8").strip()
    return None


def note(job: Job, failure: str | None) -> None:
    """Keep the reason in the run's directory, or forget one that is of the past."""
    if failure is None:
        (job.to / FAILURE).unlink(missing_ok=True)
        return
    with suppress(OSError, RunError):  # the reason may be that nothing can be written there, and it is told anyway
        job.to.mkdir(parents=True, exist_ok=True)
        write_whole(job.to / FAILURE, f"{failure}\n".encode())


def check_apart(jobs: Sequence[Job]) -> None:
    """Every job has a directory of its own."""
    first: dict[Path, Job] = {}
    for job in jobs:
        other = first.setdefault(job.to.absolute(), job)
        if other is not job:
            raise RecipeError(
                f"{other.label!r} and {job.label!r} have one run directory, {job.to}: every run needs one of its own."
            )
