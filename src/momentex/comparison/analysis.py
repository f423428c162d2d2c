"""What a comparison says: a mean for every arm, an interval for every difference, and one plain sentence for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
    """An arm in the table: estimates by metric, for the last epoch and for the best one; mean seconds of a run."""

    arm: str
    last: Mapping[str, Estimate]
    best: Mapping[str, Estimate]
    seconds: Estimate | None = None
    failures: Mapping[int, str] = field(default_factory=dict)  # by seed


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """`arm` minus `against`, paired over the seeds that both have: below 0, `arm` is better.

    low, high       the 95 % interval; None with fewer than two pairs
    p, p_adjusted   of the paired t-test; adjusted by Holm among the contrasts that are not the primary one
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
