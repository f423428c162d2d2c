"""A grid of two axes with its numbers, the lower the deeper in colour: a figure of boxes, which needs no table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from momentex.report.markup import Markup, tag


@dataclass(frozen=True)
class Heat:
    """A place: its number, what stands there, what it says when it is pointed at, whether it is the best."""

    value: float
    text: str
    told: str
    best: bool = False


def heat(
    corner: str, down: Sequence[str], across: Sequence[str], found: Mapping[tuple[str, str], Heat], *, alt: str
) -> Markup:
    """Boxes in rows `down` and columns `across`; one that is not there is empty."""
    values = [place.value for place in found.values() if math.isfinite(place.value)]
    head = (tag("div", label, class_="head") for label in across)
    boxes = [tag("div", corner, class_="corner"), *head]
    for row in down:
        boxes.append(tag("div", row, class_="side"))
        boxes += [_box(found.get((row, column)), values, f"{row}, {column}") for column in across]
    return tag("div", *boxes, class_="heat", style=f"--columns:{len(across)}", role="img", aria_label=alt)


def _box(place: Heat | None, values: Sequence[float], where: str) -> Markup:
    if place is None:
        return tag("div", "·", class_="box none", title=f"{where}: no point")
    share = depth(place.value, values)
    style = None if share is None else f"--depth:{share:.2f}"
    return tag("div", place.text, class_="box best" if place.best else "box", style=style, title=place.told)


def depth(value: float, values: Sequence[float]) -> float | None:
    """1 for the lowest number, 0 for the highest; None where that says nothing.

    >>> depth(2.0, [1.0, 2.0, 3.0]), depth(1.0, [1.0, 1.0])
    (0.5, None)
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (high - value) / (high - low) if low < high and math.isfinite(value) else None
