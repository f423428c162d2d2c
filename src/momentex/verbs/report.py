"""`momentex report`: whatever lies in folders of runs, as a page, in markdown or in LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from momentex import flags
from momentex.comparing import Compared
from momentex.comparison.gather import gather_all
from momentex.comparison.result import Comparison, Sem
from momentex.errors import RunError
from momentex.report import html, latex, markdown, swept
from momentex.report.compared import document
from momentex.report.document import Document
from momentex.swept import folder
from momentex.swept.result import Swept
from momentex.train.whole import write_whole

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Tell what came of runs: every comparison and sweep in these folders, and beside each other the runs of none."""

    runs: tuple[Path, ...]
    """Folders: of comparisons, of sweeps, of runs, or with such folders in them."""
    format: Literal["html", "markdown", "latex"] | None = None
    """Default: what the ending of --to says, and html without it."""
    to: Path | None = None
    """The file. Default: html goes to report.html in the folder, other forms are printed."""
    sem: Sem | None = None
    """The standard error behind ±, if it is to be another one than the comparison has."""


def report(arguments: Sequence[str]) -> None:
    """Render any set of runs as a page, in markdown or in LaTeX."""
    asked = flags.parse(Report, arguments, prog="momentex report")
    if not asked.runs:
        raise RunError("no folder was named: momentex report runs/compare/digits")
    sweeps = folder.gather_all(asked.runs)
    found = [_as_asked(comparison, asked.sem) for comparison in gather_all(asked.runs, sweeps)]
    documents = [document(one, Compared(one).analysis) for one in found]
    documents += [swept.document(_as_asked(one, asked.sem)) for one in sweeps.values()]
    form = asked.format or _form(asked.to)
    text = rendered(documents, form)
    to = asked.to or (_page(asked.runs) if form == "html" else None)
    if to is None:
        print(text)
        return
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        write_whole(to, text.encode())
    except OSError as error:
        raise RunError(f"{to} cannot be written: {error.strerror or error}.") from error
    print(f"report: {to}")


def rendered(documents: Sequence[Document], form: str) -> str:
    """All of them in one text."""
    if form == "html":
        return html.page(documents)
    one = latex.of if form == "latex" else markdown.of
    return "\n\n".join(one(found) for found in documents) + "\n"


T = TypeVar("T", Comparison, Swept)


def _as_asked(found: T, sem: Sem | None) -> T:
    return found if sem is None else replace(found, sem=sem)


ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".tex": "latex"}


def _form(to: Path | None) -> str:
    if to is None:
        return "html"
    if to.suffix not in ENDINGS:
        raise RunError(
            f"--to is {to}: what form that is, its ending does not say. Give --format html, markdown or latex."
        )
    return ENDINGS[to.suffix]


def _page(folders: Sequence[Path]) -> Path:
    return folders[0] / PAGE if len(folders) == 1 else Path(PAGE)
