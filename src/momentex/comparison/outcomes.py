"""The outcomes of a comparison as it can be calculated with: what is whole, what is missing and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from momentex.comparison.result import Comparison, Metrics, Outcome

MISSING = "has not been run"


class Outcomes:
    """Nothing here is averaged over what is not there: whoever averages sees who is left.

    whole      by arm and seed, those whose numbers are all finite
    failures   by arm and seed, why there are no numbers
    metrics    of which there are numbers; that of the verdicts first
    reference  the arm against which costs are counted
    """

    def __init__(self, comparison: Comparison) -> None:
        self.seeds = comparison.seeds
        names = [arm.name for arm in comparison.arms]
        self.reference = "baseline" if "baseline" in names else names[0]
        self.whole: dict[tuple[str, int], Outcome] = {}
        self.failures: dict[str, Mapping[int, str]] = {}
        found = {(outcome.arm, outcome.seed): outcome for outcome in comparison.outcomes}
        for arm in names:
            failed: dict[int, str] = {}
            for seed in comparison.seeds:
                outcome = found.get((arm, seed))
                reason = MISSING if outcome is None else failure(outcome)
                if outcome is None or reason is not None:
                    failed[seed] = reason or MISSING
                else:
                    self.whole[arm, seed] = replace(outcome, best=_finite(outcome.best))
            self.failures[arm] = failed
        there = [metric for outcome in self.whole.values() for metric in outcome.last]
        self.metrics = sorted(dict.fromkeys(there), key=lambda metric: metric != comparison.metric)

    def of(self, arm: str, metric: str, which: Literal["last", "best"] = "last") -> dict[int, float]:
        """The numbers of an arm, by seed."""
        found: dict[int, float] = {}
        for seed in self.seeds:
            outcome = self.whole.get((arm, seed))
            row = {} if outcome is None else outcome.last if which == "last" else outcome.best
            if metric in row:
                found[seed] = row[metric]
        return found

    def pairs(
        self, arm: str, against: str, metric: str, which: Literal["last", "best"] = "last"
    ) -> dict[int, tuple[float, float]]:
        """The numbers of two arms with the seeds that both have."""
        ours, theirs = self.of(arm, metric, which), self.of(against, metric, which)
        return {seed: (ours[seed], theirs[seed]) for seed in ours if seed in theirs}


def failure(outcome: Outcome) -> str | None:
    """Why an outcome has no numbers to calculate with; None if it has."""
    if outcome.failure is not None:
        return outcome.failure
    if not outcome.last:
        return "there are no numbers"
    wrong = [f"{name} is {value}" for name, value in outcome.last.items() if not math.isfinite(value)]
    return None if not wrong else ", ".join(wrong)


def _finite(row: Metrics) -> Metrics:
    return row if all(math.isfinite(value) for value in row.values()) else {}
