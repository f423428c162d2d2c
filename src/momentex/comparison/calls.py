"""Calls of a user's own `fit(arm, seed)` as the outcomes of a comparison."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

from momentex.comparison import store
from momentex.comparison.outcomes import failure
from momentex.comparison.result import Comparison, Metrics, Outcome
from momentex.comparison.sentences import number
from momentex.errors import RecipeError, RunError, did_you_mean

Fit: TypeAlias = Callable[[str, int], Mapping[str, float]]

# Words in the names of metrics of which more is better: taken for an error, every verdict would be turned around.
HIGHER = {"acc", "accuracy", "auc", "auroc", "bleu", "f1", "iou", "map", "miou", "precision", "recall"}


def call(fit: Fit, arm: str, seed: int, expected: Metrics | None) -> Outcome:
    """What `fit` gives, or why that cannot be used; `expected` has the metrics of the calls before."""
    began = time.perf_counter()
    try:
        given: Any = fit(arm, seed)
    except Exception as error:  # noqa: BLE001  whatever it is, the others are still to be run
        frames = traceback.extract_tb(error.__traceback__)[1:]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        return Outcome(arm=arm, seed=seed, failure=f"{type(error).__name__}: {error}{place}")
    seconds = time.perf_counter() - began
    if problem := _problem(given, expected):
        return Outcome(arm=arm, seed=seed, seconds=seconds, failure=problem)
    last = {name: real for name, value in given.items() if (real := _real(value)) is not None}
    return Outcome(arm=arm, seed=seed, last=last, seconds=seconds)


def _problem(given: Any, expected: Metrics | None) -> str:
    """Why this cannot be what `fit` measured."""
    if not isinstance(given, Mapping) or not given:
        what = "an empty dict" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        return f"fit returned {what}; it must return its metrics, as in {{'error': 6.03}}"
    for name, value in given.items():
        if not isinstance(name, str):
            return f"fit returned a metric whose name is {name!r}; names are texts"
        real = _real(value)
        if real is None:
            return f"fit returned {name} = {value!r}, which is no number"
        if not math.isfinite(real):
            return f"{name} is {real}"
    if expected is not None and given.keys() != expected.keys():
        return (
            f"fit returned {', '.join(sorted(given))} here and {', '.join(sorted(expected))} before; what is compared "
            "must have been measured every time"
        )
    return ""


def _real(value: Any) -> float | None:
    """A number of Python, numpy or torch."""
    if isinstance(value, (bool, str)):
        return None
    try:
        return float(value) if isinstance(value, Real) else float(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def spoken(outcome: Outcome) -> str:
    """An outcome in a line."""
    if outcome.failure is not None:
        return f"FAILED: {outcome.failure}"
    return ", ".join(f"{name} {number(value, 4)}" for name, value in outcome.last.items())


def decided(comparison: Comparison, found: Metrics) -> Comparison:
    """With the metric that verdicts are about, now that there are metrics."""
    listed = ", ".join(found)
    for name in (*((comparison.metric,) if comparison.metric else ()), *comparison.higher):
        if name not in found:
            near = did_you_mean(name, found)
            raise RecipeError(f"fit returns no metric {name!r}. {near} It returns {listed}.".replace("  ", " "))
    wrong = [n for n in found if n not in comparison.higher and HIGHER & set(n.lower().replace("-", "_").split("_"))]
    if wrong:
        raise RecipeError(
            f"of {', '.join(wrong)} more is better, by the name, and lower is taken for better: say "
            f"higher_is_better={[*comparison.higher, *wrong]}, or call it something else."
        )
    metric = comparison.metric or ("error" if "error" in found else next(iter(found)) if len(found) == 1 else "")
    if not metric:
        raise RecipeError(f"fit returns {listed}: say what the verdict is about, as in metric={next(iter(found))!r}.")
    return replace(comparison, metric=metric)


def kept(folder: Path, comparison: Comparison) -> dict[tuple[str, int], Outcome]:
    """The outcomes that lie there, but for those that failed: they are tried again."""
    before = store.read(folder)
    if before is None:
        foreign = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if foreign:
            raise RunError(
                f"{folder} is not empty and no comparison (it has {', '.join(sorted(foreign)[:3])}): name another "
                "folder."
            )
        return {}
    if before.recipe or before.title != comparison.title:
        raise RunError(
            f"{folder} holds the comparison {before.title!r}, and this one is {comparison.title!r}: name another "
            "folder."
        )
    there = {(outcome.arm, outcome.seed): outcome for outcome in before.outcomes}
    return {key: outcome for key, outcome in there.items() if failure(outcome) is None}
