"""Strips of dots above each other on one axis: a name, a dot for each number, and a mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from momentex.report import marks
from momentex.report.markup import Markup, joined, tag
from momentex.report.scale import Scale, around

HEIGHT = 46
DOTS, BAR = 15, 36  # down: where the dots lie, and their mean with its interval
RADIUS = 4
APART = 0.012  # of the width: dots that are closer stand above and below each other


@dataclass(frozen=True, kw_only=True)
class Strip:
    """`points` are numbers with what they are; `mean` and its interval are None where there are none."""

    name: str
    told: str = ""  # behind the name: what the numbers say
    key: int
    points: tuple[tuple[float, str], ...]
    mean: float | None = None
    low: float | None = None
    high: float | None = None


def strips(found: Sequence[Strip], *, alt: str, zero: str = "", sign: bool = False) -> Markup:
    """All of them. `zero` says what the sides of 0 mean, left and right, and 0 is then on the axis."""
    scale = around([*_values(found), *([0.0] if zero else [])])
    ticks = scale.ticks(5)
    labels = list(zip(ticks, scale.labels(ticks, sign=sign), strict=True))
    rows = (
        tag(
            "div",
            tag("p", tag("b", marks.key(one.key), one.name), tag("span", one.told, class_="told"), class_="name"),
            marks.drawing(_grid(scale, ticks, zero), _marks(one, scale), height=HEIGHT, alt=_alt(one)),
            class_="strip",
        )
        for one in found
    )
    axis = tag("svg", marks.axis_across(scale, labels, top=0, bottom=4), width="100%", height=24, aria_hidden="true")
    sides = tag("p", *(tag("span", side) for side in zero.split("|")), class_="sides") if zero else ""
    return tag("div", sides, *rows, tag("div", axis, class_="drawing"), class_="strips", role="group", aria_label=alt)


def _values(found: Sequence[Strip]) -> list[float]:
    ends = (end for one in found for end in (one.low, one.high, one.mean) if end is not None)
    return [*(value for one in found for value, _ in one.points), *ends]


def _alt(one: Strip) -> str:
    return f"{one.name}: {one.told}" if one.told else one.name


def _grid(scale: Scale, ticks: Sequence[float], zero: str) -> Markup:
    lines = (marks.plumb(scale.share(tick), 0, HEIGHT, class_="grid") for tick in ticks)
    return joined(*lines, marks.plumb(scale.share(0), 0, HEIGHT, class_="zero") if zero else "")


def _marks(one: Strip, scale: Scale) -> Markup:
    look = marks.series(one.key)
    drawn = [marks.dots(_apart(one, scale), radius=RADIUS, class_=look)]
    if one.low is not None and one.high is not None:
        low, high = scale.share(one.low), scale.share(one.high)
        drawn.append(marks.level(low, high, BAR, class_=f"interval {look}"))
        drawn += [marks.plumb(end, BAR - 5, BAR + 5, class_=f"end {look}") for end in (low, high)]
    if one.mean is not None and len(one.points) > 1:
        drawn.append(marks.plumb(scale.share(one.mean), BAR - 8, BAR + 8, class_="mean"))
    return joined(*drawn)


def _apart(one: Strip, scale: Scale) -> list[tuple[float, float, str]]:
    """Places across and down, and titles: dots that would lie on each other make room."""
    placed: list[tuple[float, float, str]] = []
    lanes = [DOTS, *(DOTS + side * step * 5.0 for step in (1, 2) for side in (-1, 1))]
    for value, title in sorted(one.points):
        across = scale.share(value)
        taken = {down for other, down, _ in placed if abs(other - across) < APART}
        placed.append((across, next((down for down in lanes if down not in taken), DOTS), title))
    return placed
