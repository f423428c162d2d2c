"""Sweeps that were never run: numbers that are chosen, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from momentex.comparison.result import Outcome
from momentex.sweep.grid import Point, Sweep
from momentex.swept.result import Swept


def swept(sweep: Sweep, number: Callable[[Point, int], Any], seeds: int = 3, **changes: Any) -> Swept:
    """`number` says what came of a point with a seed: an error, a failure, or None."""
    found = [_outcome(point.name, seed, number(point, seed)) for seed in range(seeds) for point in sweep.points]
    outcomes = tuple(outcome for outcome in found if outcome is not None)
    return Swept(sweep=sweep, seeds=tuple(range(seeds)), outcomes=outcomes, **changes)


def _outcome(point: str, seed: int, given: Any) -> Outcome | None:
    if given is None:
        return None
    if isinstance(given, str):
        return Outcome(arm=point, seed=seed, failure=given)
    return Outcome(arm=point, seed=seed, last={"error": float(given), "error_top5": float(given) / 3, "nll": 1.0})
