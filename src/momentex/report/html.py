"""Documents as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from momentex.comparison.analysis import Analysis
from momentex.comparison.result import Comparison
from momentex.report import marks
from momentex.report.compared import document
from momentex.report.document import (
    Cell,
    Claim,
    Claims,
    Column,
    Document,
    Facts,
    Figure,
    Group,
    Items,
    Part,
    Section,
    Table,
)
from momentex.report.markup import Markup, joined, tag

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # the browser sees to it, whatever a name holds
SIGNS = {"good": "✓", "bad": "✗", "open": "≈", "none": "–"}


def render(comparison: Comparison, analysis: Analysis) -> str:
    """A comparison as a page."""
    return page([document(comparison, analysis)])


def page(documents: Sequence[Document]) -> str:
    """One document after the other on one page."""
    title = ", ".join(found.title for found in documents)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"{title} · momentex"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(STYLE.read_text(encoding="utf8"))),
    )
    several = len(documents) > 1
    links = (tag("li", tag("a", found.title, href=f"#{place}")) for place, found in enumerate(documents, 1))
    contents = tag("nav", tag("ul", *links), aria_label="contents") if several else ""
    articles = (tag("article", of(found), id=str(place)) for place, found in enumerate(documents, 1))
    body = tag("body", contents, tag("main", *articles))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def of(found: Document) -> Markup:
    """A document, without the page around it."""
    header = tag(
        "header",
        tag("h1", found.title),
        tag("p", found.about, class_="about"),
        tag("div", *map(_claim, found.lead), class_="lead"),
    )
    return joined(header, *map(_section, found.sections))


def _section(section: Section) -> Markup:
    inside = [_part(part) for part in section.parts]
    if section.aside:
        return tag("details", tag("summary", tag("h2", section.title)), *inside)
    return tag("section", tag("h2", section.title), *inside)


def _part(part: Part) -> Markup:
    if isinstance(part, Table):
        return table(part)
    if isinstance(part, Figure):
        return _figure(part)
    if isinstance(part, Group):
        return tag("div", *map(_figure, part.figures), class_="group")
    if isinstance(part, Claims):
        return tag("div", *map(_claim, part.items), class_="claims")
    if isinstance(part, Items):
        return tag("ul", *(tag("li", text) for text in part.texts))
    return _facts(part)


def _claim(claim: Claim) -> Markup:
    badge = tag("span", tag("span", SIGNS[claim.tone], aria_hidden="true"), f" {claim.badge}", class_="badge")
    return tag(
        "div",
        tag("p", badge, tag("span", claim.rank, class_="rank") if claim.rank else "", class_="verdict"),
        tag("p", claim.title, class_="against"),
        tag("p", claim.figure, class_="figure") if claim.figure else "",
        tag("p", claim.text, class_="sentence"),
        class_=f"claim {claim.tone}",
    )


def table(found: Table) -> Markup:
    """A table; on a narrow screen every row is a block, its cells beside their headings."""
    heads = (tag("th", *_heading(one), scope="col", role="columnheader", class_=_kind(one)) for one in found.columns)
    head = tag("thead", tag("tr", *heads, role="row"), role="rowgroup")
    rows = (tag("tr", *map(_cell, row, found.columns, range(len(row))), role="row") for row in found.rows)
    whole = tag("table", head, tag("tbody", *rows, role="rowgroup"), role="table", aria_label=found.caption or None)
    scrolled = tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label="table")
    return joined(scrolled, tag("p", found.caption, class_="caption") if found.caption else "")


def _heading(column: Column) -> tuple[str, ...]:
    return (column.heading, *((" ", tag("span", column.unit, class_="unit")) if column.unit else ()))


def _kind(column: Column) -> str | None:
    return "number" if column.number else None


def _cell(cell: Cell, column: Column, place: int) -> Markup:
    text = tag("b", cell.text) if cell.strong else cell.text
    key = "" if cell.key is None else marks.key(cell.key)
    if place == 0:
        return tag("th", key, text, scope="row", role="rowheader")
    return tag("td", key, text, data_label=column.whole, role="cell", class_=_kind(column))


def _figure(figure: Figure) -> Markup:
    told = tag("span", figure.caption, class_="caption") if figure.caption else ""
    names = (tag("li", marks.key(key), name, title=name) for name, key in figure.legend)
    legend = tag("ul", *names, class_="legend") if figure.legend else ""
    return tag("figure", tag("figcaption", tag("b", figure.title), " ", told), legend, figure.svg)


def _facts(facts: Facts) -> Markup:
    rows = (
        joined(tag("dt", one.name), tag("dd", tag("code", one.text) if one.code else one.text)) for one in facts.items
    )
    return tag("dl", *rows)
