"""Compare training functions of your own: `momentex.compare(fit, arms=…, seeds=…)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path

from momentex.comparison import calls, store
from momentex.comparison import contrasts as of
from momentex.comparison.analysis import Analysis, analyse
from momentex.comparison.calls import Fit
from momentex.comparison.contrasts import check_arms, check_seeds
from momentex.comparison.outcomes import failure
from momentex.comparison.result import Arm, Comparison, Outcome, Sem
from momentex.errors import RecipeError, RunError
from momentex.train.whole import write_whole


@dataclass(frozen=True)
class Compared:
    """What came of a comparison. It prints as a table in markdown; `html` is the report, and `save` writes it."""

    comparison: Comparison

    @cached_property
    def analysis(self) -> Analysis:
        """Means, differences, verdicts."""
        return analyse(self.comparison)

    def __str__(self) -> str:
        from momentex.report import markdown

        return markdown.render(self.comparison, self.analysis)

    def _repr_markdown_(self) -> str:
        """What notebooks show."""
        return str(self)

    @cached_property
    def html(self) -> str:
        """The report: one page that needs nothing else."""
        from momentex.report import html

        return html.render(self.comparison, self.analysis)

    def save(self, folder: Path | str) -> Path:
        """Write comparison.json and report.html into a folder; where the report is."""
        store.write(Path(folder), self.comparison)
        report = Path(folder) / "report.html"
        write_whole(report, self.html.encode())
        return report


def compare(
    fit: Fit,
    *,
    arms: Sequence[str],
    seeds: int | Sequence[int] = 5,
    metric: str | None = None,
    higher_is_better: Collection[str] = (),
    contrasts: Sequence[tuple[str, str]] | None = None,
    sem: Sem = "plain",
    title: str = "",
    to: Path | str | None = None,
    say: Callable[[str], None] | None = None,
) -> Compared:
    """Call `fit(arm, seed)` for every arm with every seed, and say what the arms differ by.

    `fit` trains and measures, and returns its metrics: {"error": 6.03, "nll": 0.21}. Differences are paired, so let a
    seed decide the same in every arm: initial weights, data, order. Nothing is seeded here.

    Args:
        arms: whatever names `fit` understands, two or more.
        seeds: 5 are the seeds 0 to 4; or which ones.
        metric: what verdicts are about; "error" by default, or the only metric that there is.
        higher_is_better: the metrics of which that is true.
        contrasts: pairs (arm, against). The first is the primary one, the others are corrected for being several. By
            default, each arm against the first.
        to: a folder. Every outcome is kept there as it comes, and those that are there are not run again. Whether `fit`
            still is what it was then, nobody can know but you.
        say: is told of every outcome: `say=print`.

    Raises:
        RunError: no call of `fit` gave numbers. A call that fails or gives other metrics than the first one is a gap in
            the table, with its reason, and does not end the others.

    >>> def fit(arm, seed):
    ...     return {"error": {"plain": 9.0, "mine": 8.0}[arm] + seed % 3 * 0.5 + (arm == "mine") * seed * 0.01}
    >>> compare(fit, arms=["plain", "mine"], seeds=4).analysis.contrasts[0].verdict
    'better'
    """
    arms, seeds = _names(arms), _seeds(seeds)
    pairs, beforehand = of.of_names(arms, contrasts)
    comparison = Comparison(
        title=title or getattr(fit, "__name__", "comparison"),
        arms=tuple(Arm(name=arm) for arm in arms),
        seeds=seeds,
        outcomes=(),
        contrasts=pairs,
        beforehand=beforehand,
        metric=metric or "",
        higher=tuple(higher_is_better),
        sem=sem,
    )
    comparison = _run(comparison, fit, None if to is None else Path(to), say or (lambda text: None))
    reasons = [failure(outcome) for outcome in comparison.outcomes]
    if all(reasons):
        told = "; ".join(dict.fromkeys(reason or "" for reason in reasons))
        raise RunError(f"no call of fit gave numbers, so there is nothing to compare: {told}")
    return Compared(comparison)


def _names(arms: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arms, str) or not all(isinstance(arm, str) and arm for arm in arms):
        raise RecipeError(f"arms is {arms!r}; it is a list of names, each a text that is not empty.")
    check_arms(arms)
    if len(set(arms)) < len(arms):
        raise RecipeError(f"arms is {list(arms)}: an arm is there twice, and would be compared with itself.")
    return tuple(arms)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(map(index, range(seeds) if isinstance(seeds, int) else seeds))
    except TypeError:
        raise RecipeError(f"seeds is {seeds!r}; it is how many, or a list of whole numbers.") from None
    check_seeds(found)
    return found


def _run(comparison: Comparison, fit: Fit, to: Path | None, say: Callable[[str], None]) -> Comparison:
    """All arms of a seed before the next seed: what is stopped early has whole pairs."""
    there: dict[tuple[str, int], Outcome] = {} if to is None else calls.kept(to, comparison)
    expected = next((outcome.last for outcome in there.values()), None)
    if expected is not None:
        comparison = calls.decided(comparison, expected)
    wanted = [(arm.name, seed) for seed in comparison.seeds for arm in comparison.arms]
    for number, (arm, seed) in enumerate(wanted, 1):
        if (arm, seed) in there:
            continue
        outcome = there[arm, seed] = calls.call(fit, arm, seed, expected)
        if expected is None and outcome.failure is None:
            expected = outcome.last
            comparison = calls.decided(comparison, expected)
        say(f"{arm}, seed {seed}: {calls.spoken(outcome)} ({number} of {len(wanted)})")
        if to is not None:
            store.write(to, replace(comparison, outcomes=tuple(there.values())))
    return replace(comparison, outcomes=tuple(there[key] for key in wanted))
