"""The figures of a comparison: every run, the paired differences, the learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from momentex.comparison.analysis import Analysis, Contrast
from momentex.comparison.outcomes import Outcomes
from momentex.comparison.result import Comparison
from momentex.comparison.sentences import in_percent, name_of, number
from momentex.comparison.statistics import spread
from momentex.report import cells, marks
from momentex.report.document import Figure
from momentex.report.scale import Scale, around
from momentex.report.strips import Strip, strips

CURVES = ("error", "nll", "calibration", "loss")  # of the curves of our own runs
HEIGHT, TOP, BOTTOM = 250, 8, 220
MOST = 200  # epochs that a curve is drawn with: there are hardly more pixels


def named(comparison: Comparison, metric: str) -> str:
    """The metric with its unit."""
    name = "training loss" if metric == "loss" and comparison.recipe else name_of(metric)
    return f"{name} (%)" if in_percent(comparison, metric) else name


# --- every run -------------------------------------------------------------------------------------------------------


def runs(comparison: Comparison, analysis: Analysis) -> Iterator[Figure]:
    """The metric that verdicts are about, of every run."""
    metric, outcomes = comparison.metric, Outcomes(comparison)
    rows = []
    for key, (arm, row) in enumerate(zip(comparison.arms, analysis.rows, strict=True)):
        found, estimate = outcomes.of(arm.name, metric), row.last.get(metric)
        if not found or estimate is None:
            continue
        sem = cells.sem_of(estimate, comparison.sem)
        told = cells.column([estimate], comparison.sem, percent=in_percent(comparison, metric))[0]
        rows.append(
            Strip(
                name=arm.heading,
                told=told,
                key=key,
                points=tuple((value, f"seed {seed}: {_value(comparison, value)}") for seed, value in found.items()),
                mean=estimate.mean,
                low=None if sem is None else estimate.mean - sem,
                high=None if sem is None else estimate.mean + sem,
            )
        )
    if rows:
        what = f"{named(comparison, metric)} of every run"
        yield Figure(
            title=f"{what[0].upper()}{what[1:]}",
            alt="; ".join(f"{row.name} {row.told}" for row in rows),
            svg=strips(rows, alt=what),
            caption="A dot for each seed; the bar is the mean ± its standard error."
            if any(row.low is not None for row in rows)
            else "One seed: a dot for each arm.",
        )


def _value(comparison: Comparison, value: float) -> str:
    return number(value, 2 if in_percent(comparison, comparison.metric) else 4)


# --- differences -----------------------------------------------------------------------------------------------------


def differences(comparison: Comparison, contrasts: Sequence[Contrast]) -> Iterator[Figure]:
    """Of one metric, every contrast: a dot for each seed, and the mean with its interval."""
    drawn = [contrast for contrast in contrasts if contrast.differences]
    if not drawn:
        return
    metric = drawn[0].metric
    percent = in_percent(comparison, metric)
    headings = {arm.name: arm.heading for arm in comparison.arms}
    keys = {arm.name: key for key, arm in enumerate(comparison.arms)}
    rows = [
        Strip(
            name=f"{headings[one.arm]} − {headings[one.against]}",
            told=_told(one, percent),
            key=keys[one.arm],
            points=tuple((value, f"seed {seed}: {number(value, 2 if percent else 4, sign=True)}")
                         for seed, value in one.differences.items()),
            mean=one.mean,
            low=one.low,
            high=one.high,
        )
        for one in drawn
    ]  # fmt: skip
    sides = ("← worse", "better →") if metric in comparison.higher else ("← better", "worse →")
    unit = " (points)" if percent else ""
    title = f"Differences in {name_of(metric)}{unit}, seed by seed"
    bar = "the bar is the mean with its 95 % interval" if any(one.low is not None for one in drawn) else "no interval"
    yield Figure(
        title=title,
        alt="; ".join(f"{row.name}: {row.told}" for row in rows),
        svg=strips(rows, alt=title, zero="|".join(sides), sign=True),
        caption=f"A dot for each seed; {bar}.",
    )


def _told(contrast: Contrast, percent: bool) -> str:
    value = cells.difference(contrast.mean, contrast.low, contrast.high, percent)
    if contrast.low is None:
        return value
    return f"{value} ({cells.interval(contrast.low, contrast.high, percent)})"


# --- learning curves -------------------------------------------------------------------------------------------------


def curves(comparison: Comparison) -> Iterator[Figure]:
    """A figure for each metric that was measured while training."""
    outcomes = Outcomes(comparison)
    for metric in CURVES if comparison.recipe else ():
        lines = {arm.name: line for arm in comparison.arms if (line := _line(outcomes, arm.name, metric))}
        if any(len(line) > 1 for line in lines.values()):
            yield _curves(comparison, metric, lines)


Line = Sequence[tuple[int, float, float]]  # epoch, mean, standard error


def _line(outcomes: Outcomes, arm: str, metric: str) -> Line:
    """Over all seeds of the arm that came to an end; an epoch that one of them lacks is left out."""
    mine = [
        {int(row["epoch"]): row[metric] for row in outcome.curve if math.isfinite(row.get(metric, math.nan))}
        for (name, _), outcome in outcomes.whole.items()
        if name == arm
    ]
    epochs = sorted(set.intersection(*map(set, mine))) if mine else []
    found = [(epoch, spread([curve[epoch] for curve in mine])) for epoch in _drawn(epochs)]
    return [(epoch, one.mean, one.sem or 0.0) for epoch, one in found]


def _drawn(epochs: Sequence[int]) -> list[int]:
    """Not more than `MOST` of them, at equal distances, the last one among them.

    >>> _drawn(range(1, 1001))[:3], _drawn(range(1, 1001))[-2:]
    ([5, 10, 15], [995, 1000])
    """
    step = math.ceil(len(epochs) / MOST)
    return list(epochs[::-1][::step][::-1]) if step > 1 else list(epochs)


def _curves(comparison: Comparison, metric: str, lines: dict[str, Line]) -> Figure:
    epochs = [epoch for line in lines.values() for epoch, _, _ in line]
    across = Scale(min(epochs), max(epochs))
    up, cut = _height(lines, across)
    ticks = up.ticks(5)
    labels = list(zip(ticks, up.labels(ticks), strict=True))
    whole = [round(tick) for tick in across.ticks(5) if tick == round(tick)]
    height = BOTTOM - TOP
    paths = []
    for key, arm in enumerate(comparison.arms):
        if line := lines.get(arm.name):
            low, mean, high = (
                [(across.share(epoch), up.share(value + side * sem)) for epoch, value, sem in line]
                for side in (-1, 0, 1)
            )
            paths.append((marks.band(low, high, height, class_=marks.series(key)),
                          marks.curve(mean, height, class_=marks.series(key), title=arm.heading)))  # fmt: skip
    drawn = [band for band, _ in paths] + [curve for _, curve in paths]
    name = named(comparison, metric)
    several = len(comparison.seeds) > 1
    return Figure(
        title=f"{name[0].upper()}{name[1:]} by epoch",
        alt=_ends(comparison, metric, lines),
        svg=marks.drawing(
            marks.axis_down(up, labels, top=TOP, bottom=BOTTOM),
            marks.axis_across(across, [(epoch, str(epoch)) for epoch in whole], top=TOP, bottom=BOTTOM),
            marks.stretched(*drawn, top=TOP, bottom=BOTTOM),
            height=HEIGHT,
            alt=f"{name} by epoch. {_ends(comparison, metric, lines)}",
            gutter=max((len(text) for _, text in labels), default=1),
        ),
        caption=f"{'Mean over seeds ± one standard error. ' if several else ''}"
        f"{'The first epochs lie above the drawing.' if cut else ''}".strip(),
        legend=tuple((arm.heading, key) for key, arm in enumerate(comparison.arms) if arm.name in lines),
    )


def _height(lines: dict[str, Line], across: Scale) -> tuple[Scale, bool]:
    """So much that what follows the first fifth of the epochs can be seen well; whether the beginning is cut off."""
    ends = [(epoch, end) for line in lines.values() for epoch, mean, sem in line for end in (mean - sem, mean + sem)]
    later = [end for epoch, end in ends if across.share(epoch) >= 0.2]
    whole, part = around([end for _, end in ends]), around(later)
    cut = whole.high - part.low > 1.5 * (part.high - part.low)
    return (part, True) if cut else (whole, False)


def _ends(comparison: Comparison, metric: str, lines: dict[str, Line]) -> str:
    percent = in_percent(comparison, metric)
    return "; ".join(
        f"{arm.heading} from {number(lines[arm.name][0][1], 2 if percent else 3)} to "
        f"{number(lines[arm.name][-1][1], 2 if percent else 3)}"
        for arm in comparison.arms
        if lines.get(arm.name)
    )
