"""Where the runs of a sweep are trained: `--on`. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from momentex.errors import RunError, did_you_mean
from momentex.sweep.job import Finished, Job
from momentex.sweep.local import run_local
from momentex.sweep.ray_cluster import run_ray
from momentex.sweep.ray_connection import check_address
from momentex.sweep.watch import Watch


class Runner(Protocol):
    """Trains jobs and says what came of them, in their order; `local.run_local` is one."""

    def __call__(
        self,
        jobs: Sequence[Job],
        *,
        workers: int | None = None,
        threads: int | None = None,
        processes: int = 1,
        watch: Watch,
        command: str = "",
    ) -> list[Finished]:
        """Complete jobs are passed over, others go on where they stopped; a failure does not stop the others."""
        ...


PLACES = ("local", "ray", "ray://HOST:PORT", "HOST:PORT", "auto")


def runner(on: str) -> Runner:
    """Who trains the jobs: `local` for this machine, the others for a Ray cluster. An address is not tried here.

    >>> runner("local").__name__, runner("ray://alpha:10001").keywords
    ('run_local', {'address': 'ray://alpha:10001'})
    """
    if on == "local":
        return run_local
    if on in ("ray", "auto") or ":" in on:
        check_address(on)
        return partial(run_ray, address=on)
    near = did_you_mean(on, PLACES)
    raise RunError(f"--on is {on!r}; it is {', '.join(PLACES[:-1])} or {PLACES[-1]}. {near}".strip())
