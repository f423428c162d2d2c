"""Means, paired differences and what they show: small functions of numbers. scipy is imported when it is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from momentex.errors import MomentexError

LEVEL = 0.05  # two-sided
POWER = 0.8
ROUNDING = 1e-9  # of the numbers that are compared: differences whose spread is below that have none


class Spread(NamedTuple):
    """Mean and standard errors; None with a single value."""

    mean: float
    sem: float | None
    sem_corrected: float | None


def spread(values: Sequence[float]) -> Spread:
    """The mean, its plain standard error s / √n, and that with s corrected for small samples.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, sem=0.577..., sem_corrected=0.651...)
    """
    if len(values) < 2:
        return Spread(fmean(values), None, None)
    sem = stdev(values) / math.sqrt(len(values))
    return Spread(fmean(values), sem, sem * correction(len(values)))


def correction(n: int) -> float:
    """By how much s is too small on average in normal samples of n (Gurland and Tripathi, The American Statistician
    25(4), 1971): √((n−1)/2) · Γ((n−1)/2) / Γ(n/2).

    >>> round(correction(3), 3)
    1.128
    """
    half = (n - 1) / 2
    return math.sqrt(half) * math.exp(math.lgamma(half) - math.lgamma(n / 2))


class Paired(NamedTuple):
    """The mean of paired differences, its 95 % interval and the p of the two-sided t-test; None if they have none."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds_needed: int | None = None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """`ours` minus `theirs`, pair by pair. One pair has no interval; differences without any spread have none either.

    >>> paired([1.0, 2.0, 4.0], [1.5, 3.0, 4.0])
    Paired(mean=-0.5, low=-1.74..., high=0.74..., p=0.2254..., seeds_needed=10)
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return Paired(differences[0] if differences else None)
    mean, s = fmean(differences), stdev(differences)
    rounding = ROUNDING * max(map(abs, (*ours, *theirs)))
    if s <= rounding:
        return Paired(0.0 if abs(mean) <= rounding else mean)
    special = _special()
    degrees, sem = len(differences) - 1, s / math.sqrt(len(differences))
    reach = sem * float(special.stdtrit(degrees, 1 - LEVEL / 2))
    p = 2 * float(special.stdtr(degrees, -abs(mean) / sem))
    return Paired(mean, mean - reach, mean + reach, p, pairs_needed(mean / s))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted for being several: below 0.05, the chance that any of them is there by accident is below 0.05.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    adjusted = [0.0] * len(ps)
    so_far = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        so_far = max(so_far, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = so_far
    return adjusted


def power(effect: float, pairs: int) -> float:
    """How often so many pairs show a true mean difference of `effect` standard deviations: noncentral t, both sides.

    >>> round(power(0.5, 34), 3)
    0.808
    """
    special = _special()
    degrees, shift = pairs - 1, abs(effect) * math.sqrt(pairs)
    edge = float(special.stdtrit(degrees, 1 - LEVEL / 2))
    # Far out, scipy's series give NaN here and there. There, the other side is never reached, ...
    other_side = float(special.nctdtr(degrees, shift, -edge)) if shift < 5 else 0.0
    if shift > 35:  # ... and what decides is the deviation alone, and not the mean
        return float(special.chdtr(degrees, degrees * (shift / edge) ** 2))
    return 1 - float(special.nctdtr(degrees, shift, edge)) + other_side


MOST = 10**7


def pairs_needed(effect: float) -> int | None:
    """The smallest number of pairs that shows a difference of `effect` standard deviations four times out of five; None
    if not even ten million would.

    >>> pairs_needed(0.5), pairs_needed(0.0)
    (34, None)
    """
    enough = 2
    while power(effect, enough) < POWER:
        enough *= 2
        if enough > MOST:
            return None
    low, high = enough // 2, enough  # more pairs never show less
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle) >= POWER else (middle, high)
    return max(high, 2)


def _special() -> Any:
    try:
        from scipy import special
    except ModuleNotFoundError:
        raise MomentexError(
            "intervals need scipy, which is not installed. Do: pip install 'momentex[train]', or pip install scipy"
        ) from None
    return special
