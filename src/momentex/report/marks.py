"""What drawings are made of. Across, places are shares of the width, so that a drawing fits any screen and its letters
stay as large as they are; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from momentex.report.markup import Markup, joined, tag
from momentex.report.scale import Scale

COLOURS = 8  # in page.css: s0 to s7


def series(key: int) -> str:
    """The class of a series; there are eight colours with a dash each, and then they come again, thinner."""
    return f"s{key % COLOURS}{' again' if key >= COLOURS else ''}"


def key(number: int) -> Markup:
    """A short line as the series is drawn."""
    line = tag("line", x1=1, x2=25, y1=6, y2=6)
    return tag("svg", line, class_=f"key {series(number)}", width=26, height=12, aria_hidden="true")


def percent(share: float) -> str:
    """A place across."""
    return f"{100 * share:.2f}%"


def drawing(*marks: str, height: float, alt: str, gutter: int = 0) -> Markup:
    """The whole of it. `gutter` is the room for letters at the left, in their number."""
    svg = tag("svg", *marks, width="100%", height=height, role="img", aria_label=alt)
    return tag("div", svg, class_="drawing", style=f"padding-left:{gutter + 1}ch" if gutter else None)


def dots(points: Iterable[tuple[float, float, str]], *, radius: float, class_: str) -> Markup:
    """Points across and down, each of which says what it is when it is pointed at."""
    drawn = (
        tag("circle", tag("title", title), cx=percent(across), cy=down, r=radius) for across, down, title in points
    )
    return tag("g", *drawn, class_=f"dots {class_}")


def level(start: float, end: float, down: float, *, class_: str) -> Markup:
    """A line across."""
    return tag("line", x1=percent(start), x2=percent(end), y1=down, y2=down, class_=class_)


def plumb(across: float, top: float, bottom: float, *, class_: str) -> Markup:
    """A line down."""
    return tag("line", x1=percent(across), x2=percent(across), y1=top, y2=bottom, class_=class_)


def word(text: str, across: float | str, down: float, *, anchor: str = "start", class_: str = "tick") -> Markup:
    """Letters; `across` in pixels is written as a text."""
    place = across if isinstance(across, str) else percent(across)
    return tag("text", text, x=place, y=down, text_anchor=anchor, class_=class_)


def axis_across(scale: Scale, labels: Sequence[tuple[float, str]], *, top: float, bottom: float) -> Markup:
    """Fine lines down, with their numbers below; those at the edges stay within."""
    shares = [(scale.share(value), text) for value, text in labels]
    lines = (plumb(share, top, bottom, class_="grid") for share, _ in shares)
    words = (word(text, share, bottom + 16, anchor=_anchor(share)) for share, text in shares)
    return joined(*lines, *words)


def _anchor(share: float) -> str:
    return "start" if share < 0.03 else "end" if share > 0.97 else "middle"


def axis_down(scale: Scale, labels: Sequence[tuple[float, str]], *, top: float, bottom: float) -> Markup:
    """Fine lines across, with their numbers in the gutter at the left."""
    places = [(bottom - scale.share(value) * (bottom - top), text) for value, text in labels]
    lines = (level(0, 1, down, class_="grid") for down, _ in places)
    words = (word(text, "-8", down + 4, anchor="end") for down, text in places)
    return joined(*lines, *words)


# Paths have no shares of the width: they are drawn 1000 wide, and stretched.
WIDTH = 1000


def stretched(*paths: str, top: float, bottom: float) -> Markup:
    """Paths across the whole width, cut off at the top and the bottom."""
    height = bottom - top
    return tag(
        "svg", *paths, x=0, y=top, width="100%", height=height, viewBox=f"0 0 {WIDTH} {height:g}",
        preserveAspectRatio="none",
    )  # fmt: skip


Points = Sequence[tuple[float, float]]  # shares across and up


def curve(points: Points, height: float, *, class_: str, title: str = "") -> Markup:
    """A line through points; where one is not finite it is interrupted."""
    inside = (tag("title", title),) if title else ()
    return tag("path", *inside, d=" ".join(_line(run, height) for run in _runs(points)), class_=f"curve {class_}")


def band(low: Points, high: Points, height: float, *, class_: str) -> Markup:
    """What lies between two lines that have the same places across."""
    pairs = [(a, b) for a, b in zip(low, high, strict=True) if math.isfinite(a[1]) and math.isfinite(b[1])]
    around = [a for a, _ in pairs] + [b for _, b in reversed(pairs)]
    return tag("path", d=f"{_line(around, height)} Z" if around else "", class_=f"band {class_}")


def _line(points: Points, height: float) -> str:
    return "M" + " L".join(f"{WIDTH * x:.1f} {height * (1 - y):.1f}" for x, y in points)


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
