"""A sweep as a table: ours beside the paper's, and which is best, as the paper shows it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from momentex.comparison.analysis import Estimate, Row
from momentex.comparison.outcomes import Outcomes
from momentex.comparison.sentences import name_of
from momentex.comparison.statistics import spread
from momentex.sweep.grid import Axis, Group, Point
from momentex.swept.result import Swept
from momentex.train.recipe import Reported

PLACES = 2  # decimals of our errors in %
WIDEST = 6  # columns of a matrix


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a table says at one place.

    point       its name
    ours        its mean over the seeds that came to an end
    sem         the standard error that the sweep shows
    paper       what the paper reports there: the number and its standard error
    best        ours is the best of its group; `paper_best` likewise of the paper's
    missing     so many seeds have no number
    setting     what the point has of the axes that were searched
    """

    point: str
    ours: Estimate | None = None
    sem: float | None = None
    paper: tuple[float, float | None] | None = None
    best: bool = False
    paper_best: bool = False
    missing: int = 0
    setting: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row: what stands to its left, and its cells."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    corner    headings of what stands to the left
    columns   headings of the cells: the labels of the second axis, or metrics
    decimals  of the paper's numbers
    """

    corner: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Line, ...]
    decimals: int = PLACES

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a number at any place."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells)


def tabled(swept: Swept) -> Table:
    """Two whole axes as a matrix, as the paper has moments × layer; anything else with a row for each point."""
    rows = {row.arm: row for row in swept.analysis.rows}
    shown = _shown(swept, rows)
    axes = shown_axes(swept)
    if len(axes) == 2 and len(axes[1].values) <= WIDEST and shown.keys() == set(product(*(a.values for a in axes))):
        return _marked(_matrix(swept, axes, shown, rows), swept.sweep.best)
    return _marked(_list(swept, axes, shown, rows), "column")  # a column of a list is a metric


def shown_axes(swept: Swept) -> tuple[Axis, ...]:
    """Those along which a table goes, which are not searched."""
    return tuple(axis for axis in swept.sweep.axes if axis.name not in swept.sweep.searched)


def _shown(swept: Swept, rows: Mapping[str, Row]) -> dict[tuple[str, ...], Point]:
    """By where it stands on these axes, or by its heading: a point, the best of those that were searched."""
    found: dict[tuple[str, ...], Point] = {}
    axes, metric = shown_axes(swept), swept.comparison.metric

    def mean(point: Point) -> float:
        ours = rows[point.name].last.get(metric)
        return math.inf if ours is None else ours.mean

    for point in swept.sweep.points:
        place = tuple(point.at.get(axis.name, "") for axis in axes) or (point.heading,)
        if place not in found or mean(point) < mean(found[place]):
            found[place] = point
    return found


Shown: TypeAlias = Mapping[tuple[str, ...], Point]


def _matrix(swept: Swept, axes: Sequence[Axis], shown: Shown, rows: Mapping[str, Row]) -> Table:
    down, across = axes
    metric = swept.comparison.metric
    lines = tuple(
        Line(labels=(one,), cells=tuple(_cell(swept, shown[one, other], rows, metric) for other in across.values))
        for one in down.values
    )
    return Table(corner=(down.heading,), columns=tuple(across.spoken(label) for label in across.values), rows=lines)


def _list(swept: Swept, axes: Sequence[Axis], shown: Shown, rows: Mapping[str, Row]) -> Table:
    """Of a grid with holes and of more than two axes, an axis is a column."""
    metrics = [swept.comparison.metric]
    if any(point.recipe.paper and point.recipe.paper.top5 is not None for point in shown.values()):
        metrics.append("error_top5")
    lines = tuple(
        Line(labels=place, cells=tuple(_cell(swept, point, rows, metric) for metric in metrics))
        for place, point in shown.items()
    )
    corner = tuple(axis.heading for axis in axes) or ("point",)
    return Table(corner=corner, columns=tuple(name_of(metric) for metric in metrics), rows=lines)


def _cell(swept: Swept, point: Point, rows: Mapping[str, Row], metric: str) -> Cell:
    row = rows[point.name]
    ours = row.last.get(metric)
    sem = None if ours is None else ours.sem if swept.sem == "plain" else ours.sem_corrected
    missing = len(swept.seeds) - (0 if ours is None else ours.n)
    searched = (axis for axis in swept.sweep.axes if axis.name in swept.sweep.searched)
    return Cell(
        point=point.name,
        ours=ours,
        sem=sem,
        paper=_paper(point.recipe.paper, metric),
        missing=missing,
        setting=", ".join(f"{axis.heading} {point.at[axis.name]}" for axis in searched),
    )


def _paper(reported: Reported | None, metric: str) -> tuple[float, float | None] | None:
    if reported is None:
        return None
    if metric == "error_top5":
        return None if reported.top5 is None else (reported.top5, None)
    return (reported.error, reported.sem) if metric == "error" else None


# --- which is best ---------------------------------------------------------------------------------------------------


def _marked(table: Table, best: Group) -> Table:
    """With the best of every group marked, ties among them: what is printed alike is marked alike."""
    height, width = len(table.rows), len(table.columns)
    every = [(i, j) for i in range(height) for j in range(width)]
    if best == "row":
        groups = [[(i, j) for j in range(width)] for i in range(height)]
    elif best == "column":
        groups = [[(i, j) for i in range(height)] for j in range(width)]
    else:
        groups = [every]
    cells = {(i, j): table.rows[i].cells[j] for i, j in every}
    for group in groups:
        for place in _least({at: round(ours.mean, PLACES) for at in group if (ours := cells[at].ours) is not None}):
            cells[place] = replace(cells[place], best=True)
        for place in _least({at: paper[0] for at in group if (paper := cells[at].paper) is not None}):
            cells[place] = replace(cells[place], paper_best=True)
    rows = (replace(row, cells=tuple(cells[i, j] for j in range(width))) for i, row in enumerate(table.rows))
    return replace(table, rows=tuple(rows), decimals=_decimals(cells.values()))


def _least(numbers: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Where the lowest number is; nowhere, if there is nothing that it is lower than."""
    return [at for at, number in numbers.items() if number == min(numbers.values())] if len(numbers) > 1 else []


def _decimals(cells: Iterable[Cell]) -> int:
    """As many as the paper prints."""
    return max([1, *(len(f"{cell.paper[0]:.6g}".partition(".")[2]) for cell in cells if cell.paper is not None)])


# --- over one axis ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Marginal:
    """The mean over all points with one value of an axis; its standard error is over seeds."""

    label: str
    numbers: Mapping[int, float]  # by seed
    estimate: Estimate | None


def marginals(swept: Swept) -> Mapping[str, tuple[Marginal, ...]]:
    """By the heading of an axis, of whole grids; over the seeds that all points with a value of it have."""
    if not swept.sweep.whole:
        return {}
    outcomes, metric = Outcomes(swept.comparison), swept.comparison.metric
    numbers = {point.name: outcomes.of(point.name, metric) for point in swept.sweep.points}
    found: dict[str, tuple[Marginal, ...]] = {}
    for axis in swept.sweep.axes:
        rows: list[Marginal] = []
        for text in axis.values:
            mine = [numbers[point.name] for point in swept.sweep.points if point.at[axis.name] == text]
            rows.append(_over(text, mine, swept.seeds))
        found[axis.heading] = tuple(rows)
    return found


def _over(label: str, points: Sequence[Mapping[int, float]], seeds: Sequence[int]) -> Marginal:
    whole = [seed for seed in seeds if all(seed in numbers for numbers in points)]
    means = {seed: math.fsum(numbers[seed] for numbers in points) / len(points) for seed in whole}
    if not means:
        return Marginal(label=label, numbers={}, estimate=None)
    s = spread(list(means.values()))
    estimate = Estimate(mean=s.mean, n=len(means), sem=s.sem, sem_corrected=s.sem_corrected)
    return Marginal(label=label, numbers=means, estimate=estimate)
