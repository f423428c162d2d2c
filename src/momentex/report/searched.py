"""The document of a search: what the best setting does on the test set, and what all of them did on held-out images."""

from __future__ import annotations

from dataclasses import replace

from momentex.comparison.sentences import seeds
from momentex.report import swept as of_sweep
from momentex.report.document import Cell, Column, Document, Items, Section, Table
from momentex.sweep.search import Search, Trial, best
from momentex.swept.result import Swept


def document(search: Search, trials: tuple[Trial, ...], tested: Swept) -> Document:
    """Everything that a search says; `tested` is the best setting with fresh seeds."""
    found = of_sweep.document(tested)
    first, *others = found.sections
    sections = (
        replace(first, title="The best setting on test images"),
        Section(title="Settings on held-out images", parts=(_table(search, trials), Items(_notes(search, tested)))),
        *others,
    )
    return replace(found, title=search.sweep.title, about=_about(search, trials), sections=sections)


def _about(search: Search, trials: tuple[Trial, ...]) -> str:
    points = len(search.sweep.points)
    return f"{len(trials)} of {points} settings, each with {seeds(len(search.seeds))}, measured on held-out images"


def _table(search: Search, trials: tuple[Trial, ...]) -> Table:
    lowest = best(trials)
    order = sorted(trials, key=lambda trial: (trial.error is None, trial.error or 0.0))
    rows = tuple(
        (
            Cell(search.sweep.point(trial.point).heading, strong=trial is lowest),
            Cell("" if trial.error is None else f"{trial.error:.2f}", strong=trial is lowest),
            Cell(trial.why or trial.state),
        )
        for trial in order
    )
    columns = (Column("setting", number=False), Column("error", unit="%"), Column("what came of it", number=False))
    return Table(columns=columns, rows=rows, caption="Errors after the last epoch, the mean over seeds.")


def _notes(search: Search, tested: Swept) -> tuple[str, ...]:
    searched, fresh = (", ".join(map(str, numbers)) for numbers in (search.seeds, tested.seeds))
    return (
        f"Settings were chosen with the seeds {searched} and by held-out images. The best one was then trained on all "
        f"training images and measured on the test set once, with the seeds {fresh}, which the search had not seen.",
    )
