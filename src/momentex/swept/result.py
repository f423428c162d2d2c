"""What came of a sweep, as a value: its points, the outcome of each with every seed, and what was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from momentex.comparison.analysis import Analysis, analyse
from momentex.comparison.result import Arm, Comparison, Outcome, Sem
from momentex.comparison.result import from_json as comparison_from_json
from momentex.comparison.result import to_json as comparison_to_json
from momentex.errors import RunError
from momentex.sweep.grid import Axis, Point, Sweep
from momentex.train import resolved
from momentex.train.resolved import identity


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep with outcomes; an outcome's `arm` is the name of a point.

    sem    which standard error stands behind ±: the plain one, or that with the small-sample correction
    split  what was measured: "test", "validation"
    facts  what was run, to be read by people: {"command": …, "hardware": …, "torch": …}
    notes  what a reader must know and the numbers do not show
    """

    sweep: Sweep
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...] = ()
    sem: Sem = "plain"
    split: str = "test"
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def comparison(self) -> Comparison:
        """The points as the arms of a comparison between which no differences were named beforehand."""
        return Comparison(
            title=self.sweep.title,
            arms=tuple(_arm(point) for point in self.sweep.points),
            seeds=self.seeds,
            outcomes=self.outcomes,
            contrasts=(),
            sem=self.sem,
            split=self.split,
            facts=self.facts,
            notes=self.notes,
            recipe=resolved.to_json(replace(identity(self.sweep.base or self.sweep.points[0].recipe), seed=0)),
        )

    @cached_property
    def analysis(self) -> Analysis:
        """Means, standard errors, and what a reader must know."""
        return analyse(self.comparison)

    def with_runs(self, found: Comparison) -> Swept:
        """With what came of its runs: `found` is `comparison`, brought up to date."""
        return replace(self, outcomes=found.outcomes, split=found.split, facts=found.facts, notes=found.notes)


def _arm(point: Point) -> Arm:
    paper = point.recipe.paper
    return Arm(name=point.name, title=point.heading, paper=None if paper is None else (paper.error, paper.sem))


# --- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(swept: Swept) -> dict[str, Any]:
    """In JSON's types."""
    came = comparison_to_json(swept.comparison)
    return {"sweep": _sweep_to_json(swept.sweep)} | {name: came[name] for name in _OTHERS}


def from_json(found: Any) -> Swept:
    """What `to_json` gave."""
    try:
        sweep = _sweep(found["sweep"])
        empty = comparison_to_json(Swept(sweep=sweep, seeds=()).comparison)
        came = comparison_from_json(empty | {name: value for name, value in found.items() if name != "sweep"})
        return Swept(sweep=sweep, **{name: getattr(came, name) for name in _OTHERS})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"this is no sweep: {type(error).__name__}: {error}") from None


_OTHERS = tuple(each.name for each in fields(Swept) if each.name != "sweep")


def _sweep_to_json(sweep: Sweep) -> dict[str, Any]:
    found: dict[str, Any] = resolved.to_json(sweep)
    del found["is"]
    for row in (*found["axes"], *found["points"]):
        del row["is"]
    return found


def _sweep(row: Mapping[str, Any]) -> Sweep:
    found: dict[str, Any] = resolved.from_json(dict(row))
    found["axes"] = tuple(Axis(**axis) for axis in found["axes"])
    found["points"] = tuple(Point(**point) for point in found["points"])
    return Sweep(**found)
