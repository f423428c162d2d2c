"""From numbers to places in a drawing, and the round numbers that stand at its edge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from momentex.comparison.sentences import number


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high`, which is more."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """How far up: 0 at `low`, 1 at `high`.

        >>> Scale(10, 20).share(15)
        0.5
        """
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within, `about` so many.

        >>> Scale(0.3, 4.2).ticks()
        [1.0, 2.0, 3.0, 4.0]
        """
        step = self._step(about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def labels(self, ticks: Iterable[float], *, sign: bool = False) -> list[str]:
        """The ticks as texts, with as many decimals as tell them apart.

        >>> Scale(0, 1).labels([0, 0.25], sign=True)
        ['0.00', '+0.25']
        """
        ticks = list(ticks)
        step = min((b - a for a, b in pairwise(ticks)), default=self.high - self.low)
        places = next((n for n in range(9) if abs(step * 10**n - round(step * 10**n)) < 1e-6 * step * 10**n), 8)
        return [number(tick, places, sign=sign) for tick in ticks]

    def _step(self, about: int) -> float:
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def around(values: Iterable[float], *, margin: float = 0.06) -> Scale:
    """One that holds all of these and a little more; whatever they are, it has a length.

    >>> around([2.0, 4.0], margin=0.5)
    Scale(low=1.0, high=5.0)
    >>> around([3.0])
    Scale(low=2.7, high=3.3)
    """
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    length = high - low
    if length <= 1e-9 * max(abs(low), abs(high)):
        reach = max(abs(low), abs(high)) / 10 or 1.0
        return Scale(low - reach, high + reach)
    return Scale(low - margin * length, high + margin * length)
