"""Numbers of a comparison as the cells of its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from momentex.comparison.analysis import Estimate
from momentex.comparison.result import Comparison, Sem
from momentex.comparison.sentences import decimals, number

NOTHING = "—"


def sem_of(estimate: Estimate, sem: Sem) -> float | None:
    """The standard error that stands behind ±."""
    return estimate.sem if sem == "plain" else estimate.sem_corrected


def places_of(estimates: Iterable[Estimate | None], sem: Sem, *, percent: bool = False) -> int:
    """As many decimals for all numbers of a column as most of them need."""
    found = [sem_of(estimate, sem) for estimate in estimates if estimate is not None]
    spreads = [value for value in found if value]
    return decimals(median(spreads) if spreads else None, percent)


def column(estimates: Sequence[Estimate | None], sem: Sem, *, percent: bool = False) -> list[str]:
    """mean ± standard error, with the same number of decimals; a dash where there is no number.

    >>> column([Estimate(mean=6.0312, n=3, sem=0.24), None, Estimate(mean=7.0, n=1)], "plain", percent=True)
    ['6.03 ± 0.24', '—', '7.00']
    """
    places = places_of(estimates, sem, percent=percent)
    return [NOTHING if one is None else with_error(one.mean, sem_of(one, sem), places) for one in estimates]


def with_error(mean: float, sem: float | None, places: int) -> str:
    """`6.03 ± 0.24`."""
    return number(mean, places) if sem is None else f"{number(mean, places)} ± {number(sem, places)}"


def duration(seconds: float) -> str:
    """How long, as people say it.

    >>> duration(3.21), duration(41.6), duration(754), duration(9000)
    ('3.2 s', '42 s', '12.6 min', '2.5 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def cost(estimate: Estimate | None, sem: Sem) -> str:
    """Of a run against the arm that all are measured against: `1.02 ± 0.01`."""
    return NOTHING if estimate is None else with_error(estimate.mean, sem_of(estimate, sem), 2)


def paper(reported: tuple[float, float | None] | None) -> str:
    """What the paper reports."""
    return NOTHING if reported is None else with_error(*reported, 2)


def interval(low: float | None, high: float | None, percent: bool) -> str:
    """`−1.20 to +0.34`."""
    if low is None or high is None:
        return NOTHING
    places = decimals((high - low) / 2, percent)
    return f"{number(low, places, sign=True)} to {number(high, places, sign=True)}"


def difference(mean: float | None, low: float | None, high: float | None, percent: bool) -> str:
    """A mean difference, with as many digits as its interval."""
    if mean is None:
        return NOTHING
    reach = abs(mean) if low is None or high is None else (high - low) / 2
    return number(mean, decimals(reach, percent), sign=True)


def unit(comparison: Comparison, *, difference: bool = False) -> str:
    """Of the metric that verdicts are about."""
    from momentex.comparison.sentences import in_percent

    if not in_percent(comparison, comparison.metric):
        return ""
    return "points" if difference else "%"


def finite(values: Iterable[float]) -> list[float]:
    """Those that can be drawn."""
    return [value for value in values if math.isfinite(value)]
