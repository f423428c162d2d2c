"""Where the runs of a sweep are trained: `--on`. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from momentex.errors import RunError, did_you_mean
from momentex.sweep.job import Finished, Job
from momentex.sweep.local import run_local
from momentex.sweep.watch import Watch


class Runner(Protocol):
    """Trains jobs and says what came of them, in their order; `local.run_local` is one."""

    def __call__(
        self,
        jobs: Sequence[Job],
        *,
        workers: int | None = None,
        threads: int | None = None,
        watch: Watch,
        command: str = "",
    ) -> list[Finished]:
        """Complete jobs are passed over, others go on where they stopped; a failure does not stop the others."""
        ...


Found: TypeAlias = Callable[[str], Runner]  # given the whole of what --on says


def _local(on: str) -> Runner:
    return run_local


PLACES: dict[str, Found] = {"local": _local}  # by what stands before "://"


def runner(on: str) -> Runner:
    """Who trains the jobs: `local` for this machine.

    >>> runner("local").__name__
    'run_local'
    """
    place, _, address = on.partition("://")
    if place not in PLACES or (place == "local" and address):
        near = did_you_mean(place, PLACES)
        raise RunError(f"--on is {on!r}; it is {' or '.join(PLACES)}. {near}".strip())
    return PLACES[place](on)
