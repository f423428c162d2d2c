"""What a reader must know before believing a table: gaps, failures, corrections, arms that are one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from momentex.comparison.outcomes import MISSING, Outcomes
from momentex.comparison.result import Comparison
from momentex.comparison.sentences import name_of, seeds

if TYPE_CHECKING:
    from momentex.comparison.analysis import Contrast

SEM = {
    "plain": "± is the plain standard error over seeds, s / √n.",
    "corrected": (
        "± is the standard error over seeds with the small-sample correction of s (Gurland and Tripathi 1971), "
        "which is larger than the plain one."
    ),
}


def notes(comparison: Comparison, outcomes: Outcomes, others: Sequence[Contrast]) -> tuple[str, ...]:
    """`others` are contrasts of other metrics in which the arms do differ."""
    said = [*comparison.notes, *_gaps(comparison, outcomes), *_lacking(comparison, outcomes), *_suspicious(outcomes)]
    if len(comparison.seeds) == 1:
        said.append("There is one seed: no standard error, no interval, no verdict. Take five seeds or more.")
    else:
        said.append(SEM[comparison.sem])
    named = comparison.contrasts[: comparison.beforehand]
    said += [f"In another metric: {c.sentence}" for c in others if (c.arm, c.against) in named]
    said += _correction(comparison)
    if any(outcome.best for outcome in outcomes.whole.values()):
        said.append(
            f"The best epoch is chosen on the {comparison.split} images that it is measured on, which flatters every "
            "arm. Verdicts are about the last one."
        )
    return tuple(said)


def _gaps(comparison: Comparison, outcomes: Outcomes) -> list[str]:
    said = []
    for arm in comparison.arms:
        failures = outcomes.failures[arm.name]
        if not failures:
            continue
        left = len(comparison.seeds) - len(failures)
        by_reason: dict[str, list[int]] = {}
        for seed, reason in failures.items():
            by_reason.setdefault(reason, []).append(seed)
        told = "; ".join(
            f"{'' if reason == MISSING else 'failed: '}{reason} (seed {', '.join(map(str, which))})"
            for reason, which in by_reason.items()
        )
        rest = (
            f"Its numbers are over {left} of {seeds(len(comparison.seeds))}, and its differences over those that the "
            "other arm has too."
        )
        said.append(f"{arm.heading}: {told}. {rest if left else 'There are no numbers of it.'}")
    return said


def _lacking(comparison: Comparison, outcomes: Outcomes) -> list[str]:
    """Metrics that some outcomes have and others have not."""
    said = []
    for metric in outcomes.metrics:
        without = [f"{arm} with seed {seed}" for (arm, seed), o in outcomes.whole.items() if metric not in o.last]
        if without:
            more = f" and {len(without) - 3} more" if len(without) > 3 else ""
            said.append(
                f"{name_of(metric)} is missing for {', '.join(without[:3])}{more}: it is over the others alone."
            )
    if comparison.metric not in outcomes.metrics and outcomes.metrics:
        said.append(f"Nothing has a number of {comparison.metric!r}; there are {', '.join(outcomes.metrics)}.")
    return said


def _suspicious(outcomes: Outcomes) -> list[str]:
    """Arms that are one arm, and seeds that do nothing."""
    said = []
    rows = {
        arm: [outcomes.whole[arm, seed].last for seed in outcomes.seeds if (arm, seed) in outcomes.whole]
        for arm in outcomes.failures
    }
    for one, other in combinations(rows, 2):
        both = [seed for seed in outcomes.seeds if (one, seed) in outcomes.whole and (other, seed) in outcomes.whole]
        if both and all(outcomes.whole[one, seed].last == outcomes.whole[other, seed].last for seed in both):
            said.append(
                f"{one} and {other} have exactly the same numbers with every seed: whatever tells these arms apart "
                "has no effect."
            )
    for arm, found in rows.items():
        if len(found) > 1 and all(row == found[0] for row in found):
            said.append(f"{arm} has exactly the same numbers with all of {seeds(len(found))}: the seed has no effect.")
    return said


def _correction(comparison: Comparison) -> list[str]:
    headings = {arm.name: arm.heading for arm in comparison.arms}
    named = [f"{headings[a]} against {headings[b]}" for a, b in comparison.contrasts[: comparison.beforehand]]
    others = len(comparison.contrasts) - len(named)
    if not named or len(comparison.seeds) == 1:
        return []
    rest = f" The other {others} are corrected for being several (Holm); intervals are not." if others > 1 else ""
    return [f"Named beforehand: {', and '.join(named)}.{rest}"]
