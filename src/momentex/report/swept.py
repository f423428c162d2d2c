"""The document of a sweep: the lowest, the paper's table with ours beside it, what each axis does, what was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from momentex.comparison.sentences import in_percent, name_of, number, seeds
from momentex.report import cells, compared, figures
from momentex.report.document import (
    Cell,
    Claim,
    Column,
    Document,
    Figure,
    Group,
    Items,
    Section,
    Table,
)
from momentex.report.heat import Heat, heat
from momentex.report.markup import Markup
from momentex.report.strips import Strip, strips
from momentex.swept import table as tables
from momentex.swept.result import Swept
from momentex.swept.table import Marginal, marginals, tabled

FEW = 16  # points whose runs are drawn


def document(swept: Swept) -> Document:
    """Everything that a sweep says."""
    sections = (
        Section(title="Results", parts=(_table(swept), *_maps(swept), *_runs(swept))),
        *_over_each(swept),
        Section(title="What to know", parts=(Items((*_about_choosing(swept), *swept.analysis.notes)),)),
        Section(title="What was run", parts=tuple(compared.run(swept.comparison))),
        *compared.more(swept.comparison, swept.analysis),
    )
    return Document(title=swept.sweep.title, about=_about(swept), lead=tuple(_lead(swept)), sections=sections)


def _about(swept: Swept) -> str:
    count = len(swept.sweep.points)
    return (
        f"{count} point{'s' * (count != 1)}, {seeds(len(swept.seeds))}, the same in every point, measured on "
        f"{swept.split} images"
    )


def _unit(swept: Swept) -> str:
    return "%" if in_percent(swept.comparison, swept.comparison.metric) else ""


# --- what was lowest -------------------------------------------------------------------------------------------------


def _lead(swept: Swept) -> Iterator[Claim]:
    metric = swept.comparison.metric
    found = {row.arm: row.last[metric] for row in swept.analysis.rows if metric in row.last}
    if len(found) < 2:
        return
    lowest = min(found, key=lambda name: found[name].mean)
    value = cells.with_error(found[lowest].mean, cells.sem_of(found[lowest], swept.sem), tables.PLACES)
    figure = f"{value} {_unit(swept)}".strip()
    heading = swept.sweep.point(lowest).heading
    yield Claim(
        tone="none",
        badge="lowest",
        title=heading,
        figure=figure,
        text=f"The lowest {name_of(metric)} of {len(found)} points is that of {heading}, {figure} over "
        f"{seeds(found[lowest].n)}. It was chosen by what it is measured with: run again with fresh seeds, it is "
        "expected to be higher.",
    )


def _about_choosing(swept: Swept) -> Iterator[str]:
    if swept.sweep.about:
        yield swept.sweep.about
    if swept.split == "test":
        yield (
            "This is a table of the test images. A setting that is chosen by it is chosen on the test images, and its "
            "number flatters it: hold images out of the training set (--data.validation) to choose, and test what was "
            "chosen with fresh seeds."
        )


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(swept: Swept) -> Table:
    """A heading for the paper's numbers stands beside that of ours, where it has any."""
    found = tabled(swept)
    unit = _unit(swept)
    columns = [Column(heading, number=False) for heading in found.corner]
    for heading in found.columns:
        columns += [Column(heading, unit), *([Column("paper", unit)] if found.has_paper else [])]
    rows = []
    for row in found.rows:
        line = [Cell(label) for label in row.labels]
        for cell in row.cells:
            line.append(Cell(_ours(cell, len(swept.seeds)), strong=cell.best))
            if found.has_paper:
                line.append(Cell(_paper(cell, found.decimals), strong=cell.paper_best))
        rows.append(tuple(line))
    return Table(columns=tuple(columns), rows=tuple(rows), caption=_caption(swept))


def _ours(cell: tables.Cell, wanted: int) -> str:
    if cell.ours is None:
        return cells.NOTHING
    text = cells.with_error(cell.ours.mean, cell.sem, tables.PLACES)
    text = f"{text} ({wanted - cell.missing} of {wanted})" if cell.missing else text
    return f"{text}: {cell.setting}" if cell.setting else text


def _paper(cell: tables.Cell, places: int) -> str:
    if cell.paper is None:
        return cells.NOTHING
    mean, sem = cell.paper
    return number(mean, places) if sem is None else f"{number(mean, places)} ± {number(sem, tables.PLACES)}"


def _caption(swept: Swept) -> str:
    metric = name_of(swept.comparison.metric)
    where = list(dict.fromkeys(p.recipe.paper.where for p in swept.sweep.points if p.recipe.paper))
    bold = {"table": "the lowest", "row": "the lowest of each row", "column": "the lowest of each column"}
    table = f"{swept.split} {metric} after the last epoch".capitalize()
    which = "plain, s / √n" if swept.sem == "plain" else "with the small-sample correction of s"
    sem = f", mean ± standard error ({which}) over seeds" if len(swept.seeds) > 1 else ""
    paper = f" Paper: {'; '.join(where)}." if any(where) else ""
    gaps = " In brackets, over how many of the seeds, where some have no number." if _gaps(swept) else ""
    return f"{table}{sem}.{gaps} Bold: {bold[swept.sweep.best]}.{paper}"


def _gaps(swept: Swept) -> bool:
    return any(cell.missing for row in tabled(swept).rows for cell in row.cells)


# --- figures ---------------------------------------------------------------------------------------------------------


def _maps(swept: Swept) -> Iterator[Figure]:
    """Of two axes, whole or with holes: the points that the table shows."""
    axes = tables.shown_axes(swept)
    if len(axes) != 2:
        return
    down, across = axes
    found: dict[tuple[str, str], Heat] = {}
    for row in tabled(swept).rows:
        for cell in row.cells:
            point = swept.sweep.point(cell.point)
            if cell.ours is not None and down.name in point.at and across.name in point.at:
                text = number(cell.ours.mean, tables.PLACES)
                told = f"{point.heading}: {cells.with_error(cell.ours.mean, cell.sem, tables.PLACES)} {_unit(swept)}"
                place = point.at[down.name], point.at[across.name]
                found.setdefault(place, Heat(cell.ours.mean, text, told.strip(), cell.best))
    if len(found) > 1:
        columns = list(across.values)
        title = f"{name_of(swept.comparison.metric)} by {down.heading} and {across.heading}"
        alt = "; ".join(place.told for place in found.values())
        corner = f"{down.heading} ╲ {across.heading}"
        svg = heat(corner, list(down.values), columns, found, alt=alt)
        caption = "The deeper the colour, the lower." + (" The best are framed." if _framed(found) else "")
        yield Figure(title=f"{title[0].upper()}{title[1:]}{f' ({_unit(swept)})' if _unit(swept) else ''}", alt=alt,
                     svg=svg, caption=caption)  # fmt: skip


def _runs(swept: Swept) -> Iterator[Figure]:
    """Of every point, where they are few; more have their numbers over each axis."""
    if len(swept.sweep.points) <= FEW:
        yield from figures.runs(swept.comparison, swept.analysis)


def _framed(found: Mapping[tuple[str, str], Heat]) -> bool:
    return any(place.best for place in found.values())


def _over_each(swept: Swept) -> Iterator[Section]:
    drawn = tuple(_marginal(swept, heading, rows) for heading, rows in marginals(swept).items())
    if drawn:
        yield Section(title="Over each axis", parts=(Group(drawn),))


def _marginal(swept: Swept, heading: str, rows: Sequence[Marginal]) -> Figure:
    texts = cells.column([row.estimate for row in rows], swept.sem, percent=bool(_unit(swept)))
    drawn = [_strip(swept, row, text, key) for key, (row, text) in enumerate(zip(rows, texts, strict=True))]
    what = f"{name_of(swept.comparison.metric)} by {heading}"
    return Figure(
        title=f"{what[0].upper()}{what[1:]}",
        alt="; ".join(f"{row.label}: {text}" for row, text in zip(rows, texts, strict=True)),
        svg=strips([one for one in drawn if one.points], alt=what) if any(one.points for one in drawn) else Markup(),
        caption="The mean over all points with this value, a dot for each seed; the bar is the mean ± its standard "
        "error over seeds.",
    )


def _strip(swept: Swept, row: Marginal, text: str, key: int) -> Strip:
    sem = None if row.estimate is None else cells.sem_of(row.estimate, swept.sem)
    mean = None if row.estimate is None else row.estimate.mean
    points = tuple((value, f"seed {seed}: {number(value, tables.PLACES)}") for seed, value in row.numbers.items())
    return Strip(
        name=row.label,
        told=text,
        key=key,
        points=points,
        mean=mean,
        low=None if sem is None or mean is None else mean - sem,
        high=None if sem is None or mean is None else mean + sem,
    )
