"""Comparisons that were never run: numbers that are chosen, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from momentex.comparison.contrasts import of_arms
from momentex.comparison.result import Arm, Comparison, Outcome

OURS = {"is": "Recipe", "model": "cifar:resnet20"}  # whatever it is: a comparison of recipes has one


def comparison(numbers: Mapping[str, Sequence[Any]], **changes: Any) -> Comparison:
    """`numbers` has for each arm what came of the seeds 0, 1, …: an error, metrics, a failure, or None."""
    arms, count = list(numbers), max(map(len, numbers.values()))
    pairs, beforehand = of_arms(arms)
    outcomes = [_outcome(arm, seed, given) for arm in arms for seed, given in enumerate(numbers[arm])]
    settings: dict[str, Any] = {
        "title": "made",
        "arms": tuple(Arm(name=arm) for arm in arms),
        "seeds": tuple(range(count)),
        "outcomes": tuple(outcome for outcome in outcomes if outcome is not None),
        "contrasts": pairs,
        "beforehand": beforehand,
        "recipe": OURS,
    }
    return Comparison(**settings | changes)


def _outcome(arm: str, seed: int, given: Any) -> Outcome | None:
    if given is None or isinstance(given, Outcome):
        return given
    if isinstance(given, str):
        return Outcome(arm=arm, seed=seed, failure=given)
    return Outcome(arm=arm, seed=seed, last=dict(given) if isinstance(given, Mapping) else {"error": float(given)})
