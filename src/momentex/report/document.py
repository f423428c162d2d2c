"""What a report says, before it has a form. Markdown, LaTeX and HTML say the same because they are made of the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from momentex.report.markup import Markup

Tone: TypeAlias = Literal["good", "bad", "open", "none"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What was found about two things, in a sentence.

    badge   the verdict in a word or two
    title   what is held against what
    rank    what makes it stand where it does: "primary contrast"
    figure  the number that it is about, with its unit; empty where there is none
    text    the whole sentence, which needs nothing of the above
    """

    tone: Tone
    badge: str
    title: str
    rank: str = ""
    figure: str = ""
    text: str


@dataclass(frozen=True)
class Cell:
    """What stands in a place of a table. `key` is the number of the series in figures: it gets that colour."""

    text: str
    strong: bool = False
    key: int | None = None


@dataclass(frozen=True)
class Column:
    """`unit` stands behind the heading; texts stand at the left, numbers at the right."""

    heading: str
    unit: str = ""
    number: bool = True

    @property
    def whole(self) -> str:
        """The heading with its unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of as many cells as there are columns; the first cell says what the row is about."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing. `alt` says what is to be seen, for whoever cannot see it: forms without drawings say it in its place.

    legend  names of series with their numbers, in the drawing's colours
    """

    title: str
    alt: str
    svg: Markup
    caption: str = ""
    legend: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Claims:
    """Several claims, in their order."""

    items: tuple[Claim, ...]


@dataclass(frozen=True)
class Items:
    """Sentences that stand for themselves."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """A name and what it is; `code` is to be typed as it stands."""

    name: str
    text: str
    code: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with what they are."""

    items: tuple[Fact, ...]


@dataclass(frozen=True)
class Group:
    """Small figures beside each other, where there is room."""

    figures: tuple[Figure, ...]


Part: TypeAlias = Claims | Table | Figure | Group | Items | Facts


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a heading. An aside is for who wants to know more: a page folds it, a short form leaves it out."""

    title: str
    parts: tuple[Part, ...]
    aside: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """`lead` is what was found, before anything else; `about` says what this is in a line."""

    title: str
    about: str = ""
    lead: tuple[Claim, ...] = ()
    sections: tuple[Section, ...] = field(default_factory=tuple)
