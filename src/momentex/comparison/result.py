"""What came of a comparison, as values: its arms, the outcome of every arm with every seed, and what was run.

Nothing here averages: that is `analysis`. A comparison goes to JSON and back without loss, so that a table can be made
again from what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

Metrics: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    name    as in `--arms` and in the names of folders: "labels_only"
    title   as in tables: "label interpolation only"
    what    what it does, in a sentence
    paper   the error in % that the paper reports for it, with its standard error; None where it reports none
    """

    name: str
    title: str = ""
    what: str = ""
    paper: tuple[float, float | None] | None = None

    @property
    def heading(self) -> str:
        """What a table calls it."""
        return self.title or self.name


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An arm trained with a seed.

    last     numbers after the last epoch: "error" in %, "nll", "calibration", …; empty if it failed
    best     those of the epoch with the lowest error; empty where nothing is measured in between
    curve    a row for each epoch, as in metrics.jsonl
    seconds  of training and evaluation; None if that is not known
    failure  why there are no numbers
    """

    arm: str
    seed: int
    last: Metrics = field(default_factory=dict)
    best: Metrics = field(default_factory=dict)
    curve: tuple[Metrics, ...] = ()
    seconds: float | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms and seeds, what came of them, and which differences were to be looked at before anything was run.

    contrasts  (arm, against): the first is the primary one; all others are corrected for being several
    metric     what verdicts are about; lower is better
    split      what was measured: "test", "validation"
    facts      what was run, to be read by people: {"command": …, "hardware": …, "torch": …}
    recipe     the resolved recipe of the baseline, in JSON's types; empty for a `fit` of the user's own
    """

    title: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    contrasts: tuple[tuple[str, str], ...]
    metric: str = "error"
    split: str = "test"
    facts: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """In JSON's types.

    >>> arms = (Arm(name="baseline"), Arm(name="moex"))
    >>> some = Comparison(title="mine", arms=arms, seeds=(0,), outcomes=(), contrasts=(("moex", "baseline"),))
    >>> from_json(to_json(some)) == some
    True
    """
    return asdict(comparison)


def from_json(found: Mapping[str, Any]) -> Comparison:
    """What `to_json` gave."""
    outcomes = (Outcome(**{**row, "curve": tuple(row["curve"])}) for row in found["outcomes"])
    arms = (Arm(**{**row, "paper": None if row["paper"] is None else tuple(row["paper"])}) for row in found["arms"])
    contrasts = tuple((arm, against) for arm, against in found["contrasts"])
    changed = {"arms": tuple(arms), "seeds": tuple(found["seeds"]), "outcomes": tuple(outcomes), "contrasts": contrasts}
    return Comparison(**{**found, **changed})
