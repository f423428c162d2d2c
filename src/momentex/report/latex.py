"""Documents in LaTeX, to be taken into a paper: \\usepackage{booktabs}. Drawings are told in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from momentex.comparison.analysis import Analysis
from momentex.comparison.result import Comparison
from momentex.report.compared import document
from momentex.report.document import Cell, Claims, Document, Fact, Facts, Group, Items, Part, Table
from momentex.report.markup import FORBIDDEN

LETTERS = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # behind \\ or \item it would open an argument
    "]": "{]}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "√": r"$\surd$",
    "≈": r"$\approx$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "χ": r"$\chi$",
    "→": r"$\rightarrow$",
    "←": r"$\leftarrow$",
    "²": r"$^2$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
}


def render(comparison: Comparison, analysis: Analysis) -> str:
    """A comparison in LaTeX."""
    return of(document(comparison, analysis))


def of(found: Document) -> str:
    """A document, as something to be \\input."""
    blocks = [
        r"% needs \usepackage{booktabs}",
        rf"\section*{{{text(found.title)}}}",
        text(found.about),
        *(rf"\textbf{{{text(claim.text)}}}" for claim in found.lead),
    ]
    for section in found.sections:
        told = [block for part in section.parts for block in _part(part)]
        blocks += [rf"\subsection*{{{text(section.title)}}}", *told] if told else []
    return "\n\n".join(filter(None, blocks))


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield table(part)
    elif isinstance(part, Claims):
        yield from _items([text(claim.text) for claim in part.items])
    elif isinstance(part, Items):
        yield from _items([text(one) for one in part.texts])
    elif isinstance(part, Facts):
        yield from _items([f"{text(one.name)}: {_fact(one)}" for one in part.items])
    else:
        for figure in part.figures if isinstance(part, Group) else (part,):
            yield f"{text(figure.title)}: {text(figure.alt)}"


def _fact(one: Fact) -> str:
    return rf"\texttt{{{text(one.text)}}}" if one.code else text(one.text)


def _items(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield "\n".join([r"\begin{itemize}", *(rf"\item {one}" for one in texts), r"\end{itemize}"])


def table(found: Table) -> str:
    """A table with the lines of booktabs."""
    columns = "".join("r" if column.number else "l" for column in found.columns)
    rows = [" & ".join(map(_cell, row)) for row in found.rows]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        *([rf"\caption{{{text(found.caption)}}}"] if found.caption else []),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(text(column.whole) for column in found.columns) + r" \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    return rf"\textbf{{{text(cell.text)}}}" if cell.strong else text(cell.text)


def text(given: str) -> str:
    """Any text, in one line, so that it is read as text.

    >>> print(text("6.03 ± 0.24 % of a_b"))
    6.03 $\\pm$ 0.24 \\% of a\\_b
    """
    return "".join(LETTERS.get(letter, letter) for letter in " ".join(FORBIDDEN.sub("", given).split()))
