"""What a comparison says: a mean for every arm, an interval for every difference, and one plain sentence for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from momentex.comparison import sentences
from momentex.comparison.notes import notes
from momentex.comparison.outcomes import Outcomes
from momentex.comparison.result import Comparison
from momentex.comparison.statistics import LEVEL, holm, paired, spread

Which: TypeAlias = Literal["last", "best"]
Verdict: TypeAlias = Literal["better", "worse", "not distinguishable", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds. `sem` is the plain standard error s / √n, and `sem_corrected` that with the small-sample
    correction of s which the paper cites (Gurland and Tripathi 1971); both None with one seed.
    """

    mean: float
    n: int
    sem: float | None = None
    sem_corrected: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """An arm in the table.

    last, best  estimates by metric, after the last epoch and at the best one
    seconds     of a run
    cost        seconds of a run over those of the arm that all are measured against, seed by seed
    failures    by seed, why there are no numbers
    """

    arm: str
    last: Mapping[str, Estimate]
    best: Mapping[str, Estimate]
    seconds: Estimate | None = None
    cost: Estimate | None = None
    failures: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """`arm` minus `against`, paired over the seeds that both have: below 0, `arm` is better (of an error, say; of a
    metric in Comparison.higher it is worse).

    low, high       the 95 % interval; None with fewer than two pairs, or differences that are all the same
    p, p_adjusted   of the paired t-test; adjusted by Holm among the contrasts that were not named beforehand
    seeds_needed    so many would show the difference that was observed, four times out of five; None if none would
    """

    arm: str
    against: str
    metric: str
    which: Which
    primary: bool
    differences: Mapping[int, float]  # by seed
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    seeds_needed: int | None
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that a report says. `notes`: what a reader must know before believing it, failures among them."""

    rows: tuple[Row, ...]
    contrasts: tuple[Contrast, ...]  # of the comparison's own metric, last epoch; in its order
    secondary: tuple[Contrast, ...]  # the same contrasts for other metrics and for the best epoch
    verdict: str  # of the primary contrast, and the one against the baseline, in a sentence or two
    notes: tuple[str, ...]


def analyse(comparison: Comparison) -> Analysis:
    """What the outcomes say. What is missing, failed or not a number is left out, and said in `notes`."""
    outcomes = Outcomes(comparison)
    rows = tuple(_row(comparison, outcomes, arm.name) for arm in comparison.arms)
    families = [(which, metric) for metric in outcomes.metrics for which in _whiches(outcomes, metric)]
    first = ("last", comparison.metric)
    contrasts = _contrasts(comparison, outcomes, comparison.metric, "last")
    secondary = [
        contrast
        for which, metric in families
        if (which, metric) != first
        for contrast in _contrasts(comparison, outcomes, metric, which)
    ]
    verdict = " ".join(contrast.sentence for contrast in contrasts[: max(1, comparison.beforehand)])
    said = notes(comparison, outcomes, [c for c in secondary if c.which == "last" and c.verdict in ("better", "worse")])
    return Analysis(rows=rows, contrasts=contrasts, secondary=tuple(secondary), verdict=verdict, notes=said)


def _whiches(outcomes: Outcomes, metric: str) -> list[Which]:
    return ["last", "best"] if any(metric in outcome.best for outcome in outcomes.whole.values()) else ["last"]


def _row(comparison: Comparison, outcomes: Outcomes, arm: str) -> Row:
    mine = [outcome for outcome in outcomes.whole.values() if outcome.arm == arm]
    times = [outcome.seconds for outcome in mine if outcome.seconds is not None]
    return Row(
        arm=arm,
        last=_estimates(outcomes.metrics, [outcome.last for outcome in mine]),
        best=_estimates(outcomes.metrics, [outcome.best for outcome in mine]),
        seconds=_estimate(times) if times else None,
        cost=_cost(outcomes, arm, outcomes.reference),
        failures=outcomes.failures[arm],
    )


def _estimates(metrics: Sequence[str], rows: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    found = {metric: [row[metric] for row in rows if metric in row] for metric in metrics}
    return {metric: _estimate(values) for metric, values in found.items() if values}


def _estimate(values: Sequence[float]) -> Estimate:
    found = spread(values)
    return Estimate(mean=found.mean, n=len(values), sem=found.sem, sem_corrected=found.sem_corrected)


def _cost(outcomes: Outcomes, arm: str, reference: str) -> Estimate | None:
    ratios = []
    for seed in outcomes.seeds:
        ours, theirs = (outcomes.whole.get((name, seed)) for name in (arm, reference))
        if ours and theirs and ours.seconds is not None and theirs.seconds:
            ratios.append(ours.seconds / theirs.seconds)
    return _estimate(ratios) if ratios else None


# --- contrasts -------------------------------------------------------------------------------------------------------


def _contrasts(comparison: Comparison, outcomes: Outcomes, metric: str, which: Which) -> tuple[Contrast, ...]:
    found = [
        _contrast(comparison, outcomes, arm, against, metric, which, primary=i == 0)
        for i, (arm, against) in enumerate(comparison.contrasts)
    ]
    named, others = found[: comparison.beforehand], found[comparison.beforehand :]
    tested = [contrast for contrast in others if contrast.p is not None]
    adjusted = dict(zip(map(id, tested), holm([c.p for c in tested if c.p is not None]), strict=True))
    corrected = [replace(contrast, p_adjusted=adjusted.get(id(contrast))) for contrast in others]
    return tuple(_spoken(comparison, contrast) for contrast in (*named, *corrected))


def _contrast(
    comparison: Comparison, outcomes: Outcomes, arm: str, against: str, metric: str, which: Which, *, primary: bool
) -> Contrast:
    pairs = outcomes.pairs(arm, against, metric, which)
    found = paired([a for a, _ in pairs.values()], [b for _, b in pairs.values()])
    return Contrast(
        arm=arm,
        against=against,
        metric=metric,
        which=which,
        primary=primary,
        differences={seed: ours - theirs for seed, (ours, theirs) in pairs.items()},
        mean=found.mean,
        low=found.low,
        high=found.high,
        p=found.p,
        p_adjusted=None,
        seeds_needed=found.seeds_needed,
        verdict="unknown",
        sentence="",
    )


def _spoken(comparison: Comparison, contrast: Contrast) -> Contrast:
    """With its verdict and its sentence."""
    if contrast.mean is None or contrast.p is None:
        same = len(contrast.differences) > 1 and contrast.mean == 0
        verdict: Verdict = "not distinguishable" if same else "unknown"
        return replace(contrast, verdict=verdict, sentence=sentences.about(comparison, contrast, None))
    p = contrast.p if contrast.p_adjusted is None else contrast.p_adjusted
    better = None if p >= LEVEL else (contrast.mean < 0) != (contrast.metric in comparison.higher)
    verdict = "not distinguishable" if better is None else "better" if better else "worse"
    return replace(contrast, verdict=verdict, sentence=sentences.about(comparison, contrast, better))
