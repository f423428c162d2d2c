"""What came of a comparison, as values: its arms, the outcome of every arm with every seed, and what was run.

Nothing here averages: that is `analysis`. A comparison goes to JSON and back without loss, so that a table can be made
again from what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar

from momentex.errors import RunError

Metrics: TypeAlias = Mapping[str, float]
Sem: TypeAlias = Literal["plain", "corrected"]


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

    contrasts   (arm, against): the first is the primary one
    beforehand  so many of the contrasts were named beforehand; all others are corrected for being several
    metric      what verdicts are about; lower is better
    higher      the metrics of which higher is better
    sem         which standard error stands behind ±: the plain one, or that with the small-sample correction
    split       what was measured: "test", "validation"
    facts       what was run, to be read by people: {"command": …, "hardware": …, "torch": …}
    notes       what a reader must know and the numbers do not show
    recipe      the resolved recipe of the baseline, in JSON's types; empty for a `fit` of the user's own
    """

    title: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    contrasts: tuple[tuple[str, str], ...]
    beforehand: int = 1
    metric: str = "error"
    higher: tuple[str, ...] = ()
    sem: Sem = "plain"
    split: str = "test"
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """In JSON's types.

    >>> arms = (Arm(name="baseline"), Arm(name="moex"))
    >>> some = Comparison(title="mine", arms=arms, seeds=(0,), outcomes=(), contrasts=(("moex", "baseline"),))
    >>> from_json(to_json(some)) == some
    True
    """
    return asdict(comparison)


def from_json(found: Any) -> Comparison:
    """What `to_json` gave."""
    try:
        given: dict[str, Any] = dict(found)
        for name in ("seeds", "higher", "notes"):
            given[name] = tuple(given.get(name, ()))
        given["contrasts"] = tuple((arm, against) for arm, against in given["contrasts"])
        given["arms"] = tuple(_arm(row) for row in given["arms"])
        given["outcomes"] = tuple(_made(Outcome, row | {"curve": tuple(row["curve"])}) for row in given["outcomes"])
        return _made(Comparison, given)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"this is no comparison: {type(error).__name__}: {error}") from None


T = TypeVar("T")


def _arm(row: dict[str, Any]) -> Arm:
    return _made(Arm, row | {"paper": None if row.get("paper") is None else tuple(row["paper"])})


def _made(kind: type[T], given: dict[str, Any]) -> T:
    if unknown := given.keys() - {f.name for f in fields(kind)}:  # pyrefly: ignore[bad-argument-type]
        raise ValueError(f"{kind.__name__} has {', '.join(sorted(unknown))}, which this version does not know")
    return kind(**given)
