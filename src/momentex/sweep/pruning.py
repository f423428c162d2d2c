"""Runs that are ended early because others were better at that epoch: the rule, and who sees to it. Needs no torch.

The rule is Optuna's MedianPruner: a run ends when the lowest error that it has had so far is above the median of what
complete ones had at the same epoch. It is told to a run as numbers, so that a run needs no store and no clock: whether
it is pruned is a function of its errors, wherever and however often it is started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from momentex.sweep.job import PRUNED, Job, Limits
from momentex.train.progress import Reporter
from momentex.train.record import Record

STARTUP = 5  # complete ones, before which nothing is pruned
WARMUP = 4  # in the first of so many parts of its epochs, no run is: what is slow to begin may be good in the end


class Pruned(Exception):
    """A run was ended early; the text says why."""


def curve(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The errors of a run, by epoch; of epochs that were measured.

    >>> curve([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "error": 20.0}])
    {2: 20.0}
    """
    return {row["epoch"]: row["error"] for row in rows if "error" in row}


def limits(complete: Sequence[Mapping[int, float]], epochs: int) -> Limits:
    """The median error of complete ones, for the epochs between the first quarter and the last; none of a few runs.

    >>> limits([{1: 30.0, 2: 20.0, 3: 10.0}, {1: 30.0, 2: 28.0}, {1: 20.0, 2: 31.0, 3: 12.0}] * 2, epochs=4)
    ((2, 28.0), (3, 11.0))
    """
    if len(complete) < STARTUP:
        return ()
    first = 1 + epochs // WARMUP
    measured = sorted({epoch for errors in complete for epoch in errors if first <= epoch < epochs})
    return tuple((epoch, median(errors[epoch] for errors in complete if epoch in errors)) for epoch in measured)


def crossed(errors: Mapping[int, float], bounds: Limits) -> str | None:
    """Why a run of these errors is ended; None if it goes on.

    >>> crossed({1: 30.0, 2: 27.5}, ((1, 31.0), (2, 25.0)))
    'pruned after epoch 2: its lowest error was 27.50 %, half of the others were at 25.00 % or below'
    """
    at, lowest = dict(bounds), math.inf
    for epoch in sorted(errors):
        lowest = min(lowest, errors[epoch])
        if lowest > at.get(epoch, math.inf):
            return (
                f"{PRUNED} {epoch}: its lowest error was {lowest:.2f} %, half of the others were at {at[epoch]:.2f} % "
                "or below"
            )
    return None


def pruned(job: Job) -> str | None:
    """Why this run is ended as far as it is now; None if it goes on."""
    return crossed(curve(Record(job.to).metrics()), job.limits) if job.limits else None


class Pruning:
    """A reporter that ends the run, after an epoch, when it is time; what it is told it tells another one."""

    def __init__(self, job: Job, told: Reporter) -> None:
        self._job, self._told = job, told
        self._errors = curve(Record(job.to).metrics())

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        self._told.start(steps, epochs, first_epoch)

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        self._told.step(epoch, step, loss, images)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._told.epoch(metrics)
        self._errors |= curve([metrics])  # all processes are told the same, while the first one may still be writing
        if why := crossed(self._errors, self._job.limits):
            raise Pruned(why)

    def say(self, text: str) -> None:
        self._told.say(text)

    def close(self) -> None:
        self._told.close()
