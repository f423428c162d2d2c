"""The document of a sweep: the lowest, the paper's table with ours beside it, what each axis does, what was run."""

from __future__ import annotations

from collections.abc import Iterator

from momentex.comparison.sentences import in_percent, name_of, number, seeds
from momentex.report import cells
from momentex.report.document import Cell, Claim, Column, Document, Fact, Facts, Items, Section, Table
from momentex.swept import table as tables
from momentex.swept.result import Swept
from momentex.swept.table import Marginal, marginals, tabled


def document(swept: Swept) -> Document:
    """Everything that a sweep says."""
    sections = (
        Section(title="Results", parts=(_table(swept),)),
        *_over_each(swept),
        Section(title="What to know", parts=(Items((*_about_choosing(swept), *swept.analysis.notes)),)),
        Section(title="What was run", parts=(Facts(tuple(_facts(swept))),)),
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
    value = cells.column([found[lowest]], swept.sem, percent=bool(_unit(swept)))[0]
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
    gaps = any(cell.missing for row in found.rows for cell in row.cells)
    columns = [Column(heading, number=False) for heading in found.corner]
    for heading in found.columns:
        columns += [Column(heading, unit), *([Column(f"paper: {heading}", unit)] if found.has_paper else [])]
    rows = []
    for row in found.rows:
        line = [Cell(label) for label in row.labels]
        for cell in row.cells:
            line.append(Cell(_ours(cell, len(swept.seeds), gaps), strong=cell.best))
            if found.has_paper:
                line.append(Cell(_paper(cell, found.decimals), strong=cell.paper_best))
        rows.append(tuple(line))
    return Table(columns=tuple(columns), rows=tuple(rows), caption=_caption(swept))


def _ours(cell: tables.Cell, wanted: int, gaps: bool) -> str:
    if cell.ours is None:
        return cells.NOTHING
    text = cells.with_error(cell.ours.mean, cell.sem, tables.PLACES)
    text = f"{text} ({wanted - cell.missing} of {wanted} seeds)" if gaps and cell.missing else text
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
    return f"{table}{sem}. Bold: {bold[swept.sweep.best]}.{paper}"


# --- over each axis --------------------------------------------------------------------------------------------------


def _over_each(swept: Swept) -> Iterator[Section]:
    found = marginals(swept)
    if found:
        yield Section(
            title="Over each axis", parts=tuple(_marginal(swept, heading, rows) for heading, rows in found.items())
        )


def _marginal(swept: Swept, heading: str, rows: tuple[Marginal, ...]) -> Table:
    texts = cells.column([row.estimate for row in rows], swept.sem, percent=bool(_unit(swept)))
    return Table(
        columns=(Column(heading, number=False), Column(name_of(swept.comparison.metric), _unit(swept))),
        rows=tuple((Cell(row.label), Cell(text)) for row, text in zip(rows, texts, strict=True)),
        caption=f"The mean over all points with this {heading}; the standard error is over seeds.",
    )


# --- what was run ----------------------------------------------------------------------------------------------------


def _facts(swept: Swept) -> Iterator[Fact]:
    facts = dict(swept.facts)
    if command := facts.pop("command", ""):
        yield Fact("command to repeat it", command, code=True)
    yield Fact("seeds", ", ".join(map(str, swept.seeds)))
    for name, text in facts.items():
        yield Fact(name, text)
