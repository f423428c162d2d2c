"""Documents in markdown. Drawings are told in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from momentex.comparison.analysis import Analysis
from momentex.comparison.result import Comparison
from momentex.report.compared import document
from momentex.report.document import Cell, Claims, Document, Facts, Group, Items, Part, Table


def render(comparison: Comparison, analysis: Analysis, *, whole: bool = False) -> str:
    """A comparison in markdown; `whole` has the asides too."""
    return of(document(comparison, analysis), whole=whole)


def of(found: Document, *, whole: bool = True) -> str:
    """A document; with its asides, if it is to be whole."""
    blocks = [f"# {text(found.title)}", text(found.about), *(f"**{text(claim.text)}**" for claim in found.lead)]
    for section in found.sections:
        if whole or not section.aside:
            told = [block for part in section.parts for block in _part(part, whole)]
            blocks += [f"## {text(section.title)}", *told] if told else []
    return "\n\n".join(filter(None, blocks))


def _part(part: Part, whole: bool) -> Iterator[str]:
    if isinstance(part, Table):
        yield table(part)
        if part.caption:
            yield text(part.caption)
    elif isinstance(part, Claims):
        yield _items([claim.text for claim in part.items])
    elif isinstance(part, Items):
        yield _items(part.texts)
    elif isinstance(part, Facts):
        yield "\n".join(f"- {text(one.name)}: {code(one.text) if one.code else text(one.text)}" for one in part.items)
    elif whole:
        for figure in part.figures if isinstance(part, Group) else (part,):
            yield f"{text(figure.title)}: {text(figure.alt)}"


def _items(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text(one)}" for one in texts)


def table(found: Table) -> str:
    """A table, its columns under each other as far as it can be read as text.

    >>> from momentex.report.document import Cell, Column
    >>> print(table(Table(columns=(Column("arm", number=False), Column("error", "%")), rows=((Cell("a"), Cell("6")),))))
    | arm | error (%) |
    | :-- | --------: |
    | a   |         6 |
    """
    rows = [[text(column.whole) for column in found.columns], *([_cell(c) for c in row] for row in found.rows)]
    numbers = [column.number for column in found.columns]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    ruler = [f"{'-' * (w - 1)}:" if n else f":{'-' * (w - 1)}" for w, n in zip(widths, numbers, strict=True)]
    lines = [
        [one.rjust(w) if n else one.ljust(w) for one, w, n in zip(row, widths, numbers, strict=True)] for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:]))


def _cell(cell: Cell) -> str:
    return f"**{text(cell.text)}**" if cell.strong else text(cell.text)


def text(given: str) -> str:
    """Any text, in one line, so that it is read as text.

    >>> print(text("a|b *c* <d>"))
    a\\|b \\*c\\* \\<d>
    """
    return re.sub(r"([\\`*\[\]<|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(given.split()))


def code(given: str) -> str:
    """What is to be typed as it stands, whatever is in it."""
    longest = max(map(len, re.findall("`+", given)), default=0)
    fence, edge = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{edge}{' '.join(given.split())}{edge}{fence}"
