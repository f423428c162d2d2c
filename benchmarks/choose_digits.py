"""Chooses what the recipe `digits` is: python -m benchmarks.choose_digits [--workers 1] [--runs FOLDER]

Nothing here sees a test image. Every run is measured on 500 images that are held out of the training half, with seeds
from 1000 on, which no table reports. The rule was written before the first run. Only the numbers of seeds and of
settings that go on were cut afterwards, for want of time, while stage 1 was running and before any stage was judged:

0. Without exchange, on 100 images: the learning rate and the weight decay of the lowest mean error, so that the
   baseline is one that somebody has tuned. Every arm has them.
1. All settings of the exchange (moments, site, λ, p) on 100 images, two seeds: the six best go on.
2. These on 50, 100 and 200 images, with five other seeds: the three best pairs of setting and size go on.
3. These with sixteen other seeds: the best one is the recipe, whatever the sign of what it does.

"Best" in stages 1 and 2 is the smallest of this: of the mean paired differences of the error, MoEx minus label
interpolation only and MoEx minus baseline, the larger one. In stage 3, with enough seeds for it, it is the larger one
of the upper ends of the two 95 % intervals. Ties are decided by the NLL in the same way. A stage sees its own seeds
alone.

Whoever takes the best of many has taken one that was lucky as well as good: what stages 1 and 2 show of their winners
is better than these are, and so, by a little, is stage 3, where the best of three is taken. The numbers to believe are
those of `momentex compare digits`, with seeds from 0 on and test images, and they can be expected to be smaller.

The learning rate and the weight decay that stage 0 took are both the largest of its grid: a baseline with still larger
ones may be better. They were taken on 100 images, and the recipe has fifty.

Not searched are the network, the steps and the batches: 160 steps of 25 images for every size, about a second a run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from momentex.comparison.result import Metrics
from momentex.comparison.runs import environment, outcome
from momentex.comparison.statistics import paired
from momentex.flags import over, short
from momentex.recipes import find
from momentex.sweep.job import Job
from momentex.sweep.local import run_local
from momentex.sweep.watch import watching
from momentex.train.recipe import SGD, Data, Evaluation, Exchange, Recipe

RESULT = Path(__file__).parent.parent / "results" / "digits_choice.json"

VALIDATION = 500
STEPS = 160
RATES = tuple(product((0.03, 0.1, 0.2), (1e-3, 3e-3, 1e-2)))  # learning rate, weight decay
MOMENTS = ("pono", "in", "ln", "gn4")
SITES = ("layer1", "layer2", "layer3")
LAMS = (0.9, 0.7, 0.5)
PS = (0.5, 1.0)
SIZE, SIZES = 100, (50, 100, 200)
SEEDS = (range(1000, 1006), range(1000, 1002), range(1002, 1007), range(1007, 1023))
GO_ON = (6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="so many runs side by side, each with one thread")
    parser.add_argument("--runs", type=Path, default=Path("runs/choose_digits"), help="the folder of the runs")
    options = parser.parse_args()
    runs = Runs(options.runs, options.workers)
    found = chosen(runs)
    facts, _ = environment(options.runs.glob("*/seed-*"))
    about = {"command": "python -m benchmarks.choose_digits", "facts": facts, "runs": runs.count}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(about | found, indent=1, ensure_ascii=False) + "\n", encoding="utf8")
    print(json.dumps(found["chosen"]))


# --- the rule --------------------------------------------------------------------------------------------------------

Rows = Mapping[int, Metrics]  # what was measured, by seed
Judge = Callable[[Sequence[float], Sequence[float]], float]


def mean(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the paired differences."""
    return fmean(a - b for a, b in zip(ours, theirs, strict=True))


def upper_end(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the 95 % interval of their mean; the mean where there is no interval."""
    found = paired(ours, theirs)
    return mean(ours, theirs) if found.high is None else found.high


def judged(judge: Judge, moex: Rows, *controls: Rows) -> tuple[float, float]:
    """Error and NLL, each against the control that MoEx does worse against: smaller is better."""
    error, nll = (
        max(judge([moex[seed][metric] for seed in moex], [rows[seed][metric] for seed in moex]) for rows in controls)
        for metric in ("error", "nll")
    )
    return error, nll


# --- what is tried ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is chosen; without `over`, there is no exchange."""

    train_size: int = SIZE
    lr: float
    weight_decay: float
    over: str = ""
    layer: str | None = None
    lam: float = 1.0
    p: float = 1.0

    @property
    def exchange(self) -> Exchange | None:
        return Exchange(over=over(self.over), layer=self.layer, lam=self.lam, p=self.p) if self.over else None

    def recipe(self, exchange: Exchange | None) -> Recipe:
        """On images that are held out, evaluated at the end."""
        start = find("digits")
        epochs = STEPS * start.batch_size // self.train_size
        return replace(
            start,
            data=Data(name="digits", train_size=self.train_size, validation=VALIDATION),
            optimizer=SGD(lr=self.lr, nesterov=True, weight_decay=self.weight_decay),
            evaluation=Evaluation(every=epochs),
            epochs=epochs,
            exchange=exchange,
        )


class Runs:
    """Runs in a folder; those that are there are not run again."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self.count = 0

    def of(self, recipes: Sequence[Recipe], seeds: Sequence[int]) -> list[Rows]:
        """What every recipe gives with every seed; all recipes of a seed before the next seed."""
        names = [named(recipe) for recipe in recipes]
        jobs = {
            (name, seed): Job(replace(recipe, seed=seed), self._folder / name / f"seed-{seed}", f"{name}, {seed}")
            for seed in seeds
            for name, recipe in zip(names, recipes, strict=True)
        }
        self.count += len(jobs)
        for finished in run_local(list(jobs.values()), workers=self._workers, threads=1, watch=watching()):
            if finished.failure is not None:
                raise SystemExit(f"{finished.job.label}: {finished.failure}")
        return [{seed: self._last(jobs[name, seed]) for seed in seeds} for name in names]

    def _last(self, job: Job) -> Metrics:
        found = outcome(job.label, job.to, job.recipe)
        assert found is not None  # since no run has failed
        return found.last


def named(recipe: Recipe) -> str:
    """A folder for the runs of a recipe.

    >>> named(Setting(lr=0.1, weight_decay=0.003).recipe(Exchange(layer="layer2", lam=0.7)))
    '100-0.1-0.003-pono-layer2-0.7-0.5'
    """
    exchange, rate = recipe.exchange, recipe.optimizer
    words = [recipe.data.train_size, rate.lr, rate.weight_decay]
    if exchange is not None:
        where = [short(exchange.over), exchange.layer] if exchange.features else ["labels_only"]
        words += [*where, exchange.lam, exchange.p]
    return "-".join(map(str, words))


# --- the stages ------------------------------------------------------------------------------------------------------


def chosen(runs: Runs) -> dict[str, Any]:
    """What every stage saw, best first, and what is chosen."""
    rates = [Setting(lr=lr, weight_decay=decay) for lr, decay in RATES]
    measured = zip(rates, runs.of([rate.recipe(None) for rate in rates], SEEDS[0]), strict=True)
    stages = [sorted((_baseline(rate, rows) for rate, rows in measured), key=_mark)]
    rate = _setting(stages[0][0])
    some = [
        replace(rate, over=over, layer=layer, lam=lam, p=p) for over, layer, lam, p in product(MOMENTS, SITES, LAMS, PS)
    ]
    stages.append(stage(runs, some, SEEDS[1], mean))
    best = map(_setting, stages[1][: GO_ON[0]])
    stages.append(stage(runs, [replace(s, train_size=n) for s in best for n in SIZES], SEEDS[2], mean))
    stages.append(stage(runs, [_setting(row) for row in stages[2][: GO_ON[1]]], SEEDS[3], upper_end))
    return {
        "chosen": asdict(_setting(stages[3][0])),
        "stages": [{"seeds": list(s), "rows": rows} for s, rows in zip(SEEDS, stages, strict=True)],
    }


def stage(runs: Runs, settings: Sequence[Setting], seeds: Sequence[int], judge: Judge) -> list[dict[str, Any]]:
    """The settings with what was measured, best first."""
    recipes: dict[str, Recipe] = {}
    arms: dict[Setting, list[str]] = {}
    for setting in settings:
        exchange = setting.exchange
        assert exchange is not None
        # label interpolation has neither moments nor a site: there is one for all settings of this λ and p
        labels_only = Exchange(lam=exchange.lam, p=exchange.p, features=False)
        made = [setting.recipe(each) for each in (exchange, labels_only, None)]
        arms[setting] = [named(recipe) for recipe in made]
        recipes |= zip(arms[setting], made, strict=True)
    found = dict(zip(recipes, runs.of(list(recipes.values()), seeds), strict=True))
    rows = []
    for setting, names in arms.items():
        measured = dict(zip(("moex", "labels_only", "baseline"), (found[name] for name in names), strict=True))
        rows.append({**asdict(setting), "judged": judged(judge, *measured.values()), **_means(measured)})
    return sorted(rows, key=_mark)


def _baseline(setting: Setting, rows: Rows) -> dict[str, Any]:
    means = _means({"baseline": rows})
    return {**asdict(setting), "judged": [means["error"]["baseline"], means["nll"]["baseline"]], **means}


def _means(arms: Mapping[str, Rows]) -> dict[str, Any]:
    return {m: {arm: fmean(row[m] for row in rows.values()) for arm, rows in arms.items()} for m in ("error", "nll")}


def _mark(row: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(row["judged"])


def _setting(row: Mapping[str, Any]) -> Setting:
    return Setting(**{name: row[name] for name in Setting.__dataclass_fields__})


if __name__ == "__main__":
    main()
