"""What a difference says, in one plain sentence, and numbers as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from momentex.comparison.result import Comparison

if TYPE_CHECKING:
    from momentex.comparison.analysis import Contrast

PERCENT = ("error", "error_top5", "train_error", "calibration")  # of our own runs; a user's are of a unit of theirs
MOST = 8  # decimals
NAMES = {
    "error": "error",
    "error_top5": "top-5 error",
    "train_error": "error on the training images",
    "nll": "NLL",
    "calibration": "calibration error",
}


def name_of(metric: str) -> str:
    """What people call a metric.

    >>> name_of("nll"), name_of("my_score")
    ('NLL', 'my_score')
    """
    return NAMES.get(metric, metric)


def in_percent(comparison: Comparison, metric: str) -> bool:
    """Whether numbers of this metric are percentages."""
    return bool(comparison.recipe) and metric in PERCENT


def decimals(spread: float | None, percent: bool) -> int:
    """So many that a spread has two digits that count; two for percentages at least.

    >>> decimals(0.0123, percent=False), decimals(3.0, percent=True), decimals(None, percent=False)
    (3, 2, 4)
    """
    fewest = 2 if percent else 0
    if not spread or not math.isfinite(spread):
        return max(fewest, 2 if percent else 4)
    return min(MOST, max(fewest, 1 - math.floor(math.log10(spread))))


def number(value: float, places: int, *, sign: bool = False) -> str:
    """With the sign that a reader sees as one, and none before a zero.

    >>> number(-0.123, 2), number(0.5, 1, sign=True), number(-0.001, 2), number(6.02e23, 2), number(2e-9, MOST)
    ('−0.12', '+0.5', '0.00', '6.02e+23', '2.00e-09')
    """
    readable = abs(value) < 1e7 and (value == 0 or abs(value) >= 10**-5 or places < MOST)
    text = f"{value:.{places}f}" if readable else f"{value:.2e}"
    if float(text) == 0:
        return text.lstrip("-")
    return text.replace("-", "−") if value < 0 else f"{'+' if sign else ''}{text}"


def chance(p: float) -> str:
    """A p-value.

    >>> chance(0.0312), chance(0.00001)
    ('p = 0.031', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def seeds(count: int) -> str:
    """A number of seeds.

    >>> seeds(1), seeds(1200)
    ('1 seed', '1,200 seeds')
    """
    return f"{count:,} seed{'s' * (count != 1)}"


def about(comparison: Comparison, contrast: Contrast, better: bool | None) -> str:
    """What the contrast says; `better` is None where the arms are not distinguishable, or nobody can know."""
    headings = {arm.name: arm.heading for arm in comparison.arms}
    arm, against = headings[contrast.arm], headings[contrast.against]
    metric = f"{name_of(contrast.metric)}{' at the best epoch' if contrast.which == 'best' else ''}"
    percent = in_percent(comparison, contrast.metric)
    if contrast.mean is None:
        return f"{arm} against {against}, {metric}: no seed has a number of both, so nothing can be said."
    if contrast.low is None or contrast.high is None or contrast.p is None:
        return f"{arm} against {against}, {metric}: {_without_interval(contrast, percent)}"
    places = decimals((contrast.high - contrast.low) / 2, percent)
    unit = " points" if percent else ""
    p = chance(contrast.p) if contrast.p_adjusted is None else f"adjusted {chance(contrast.p_adjusted)}"
    if better is None:
        interval = " to ".join(number(edge, places, sign=True) for edge in (contrast.low, contrast.high))
        alone = "; the interval alone excludes 0" if contrast.low * contrast.high > 0 else ""
        return (
            f"{arm} and {against} are not distinguishable with these {seeds(len(contrast.differences))}: {metric} "
            f"differs by {number(contrast.mean, places, sign=True)}{unit} (95 % interval {interval}, {p}){alone}; "
            f"{_needed(contrast.seeds_needed)}."
        )
    near, far = sorted((abs(contrast.low), abs(contrast.high)))
    return (
        f"{arm} is {'better' if better else 'worse'} than {against}: {metric} is "
        f"{'lower' if contrast.mean < 0 else 'higher'} by {number(abs(contrast.mean), places)}{unit} (95 % interval "
        f"{number(near, places)} to {number(far, places)}, {p}, {seeds(len(contrast.differences))}); "
        f"{_needed(contrast.seeds_needed)}."
    )


def _without_interval(contrast: Contrast, percent: bool) -> str:
    assert contrast.mean is not None
    count = len(contrast.differences)
    if count > 1 and contrast.mean == 0:
        return f"exactly the same numbers with each of {seeds(count)}, so there is nothing to tell apart."
    places = decimals(abs(contrast.mean), percent)
    seen = f"{number(contrast.mean, places, sign=True)}{' points' if percent else ''}"
    if count == 1:
        return f"{seen} with the one seed that both have; a single pair has no interval and no verdict."
    return (
        f"{seen} with every one of {seeds(count)}; differences without any spread have no interval, and come from runs "
        "that do not depend on the seed."
    )


def _needed(count: int | None) -> str:
    if count is None:
        return "no number of seeds would show a difference as small as the one observed"
    return f"to see the difference observed, four times out of five, takes {seeds(count)}"
