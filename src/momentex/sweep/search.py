"""Searches: Optuna chooses among the points of a sweep by their error on held-out images, and keeps what came of it.

What is found is a function of the search: the sampler of a trial has a seed of its own, and a trial is chosen by what
came of whole batches before it, whoever of its own batch is ready first. So a search that was stopped goes on to what
it would have found, on any number of workers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from momentex.errors import RecipeError, RunError
from momentex.sweep.grid import Point, Sweep
from momentex.sweep.job import Finished, Job
from momentex.sweep.pruning import curve, limits
from momentex.train.record import Record, locked
from momentex.train.resolved import differences, from_json, identity, to_json

STORE = "optuna.journal"
STUDY = "search"
SEEDS = (1000,)  # those from 1000 on are for choosing, and no table reports them
POINT = "point"  # the parameter of a sweep that is a list
AGAIN = 20  # times as many asked for as wanted, before it is believed that nothing new will come

State = Literal["complete", "pruned", "failed"]
Train = Callable[[Sequence[Job]], list[Finished]]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how.

    seeds      of the runs of every setting; its error is their mean
    trials     so many settings; None: all of them
    seed       of the sampler
    at_a_time  so many settings are chosen before it is known what came of them; `--workers` does not change a search
    prune      end runs early that are worse than half of those before them
    """

    sweep: Sweep
    seeds: tuple[int, ...] = SEEDS
    trials: int | None = None
    seed: int = 0
    at_a_time: int = 4
    prune: bool = True

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("at_a_time", self.at_a_time)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}; it must be 1 or more.")
        if not self.seeds:
            raise RecipeError("a search without seeds trains nothing: name one at least.")
        for point in self.sweep.points:
            if not point.recipe.data.validation:
                raise RecipeError(
                    f"a search chooses by held-out images, never by the test set, and the point {point.name} holds out "
                    "none: set data.validation, as in --data.validation 5000."
                )

    @property
    def wanted(self) -> int:
        """So many settings."""
        points = len(self.sweep.points)
        return points if self.trials is None else min(self.trials, points)

    @property
    def choices(self) -> dict[str, list[str]]:
        """What the sampler chooses from: the axes, or the points where those are no full grid."""
        axes = {axis.name: list(axis.values) for axis in self.sweep.axes}
        places = {tuple(point.at.get(name) for name in axes) for point in self.sweep.points}
        whole = axes and places == set(product(*axes.values())) and len(places) == len(self.sweep.points)
        return axes if whole else {POINT: [point.name for point in self.sweep.points]}

    def point(self, chosen: Mapping[str, str]) -> Point:
        """The point that was chosen."""
        if POINT in chosen and POINT not in {axis.name for axis in self.sweep.axes}:
            return self.sweep.point(chosen[POINT])
        return next(point for point in self.sweep.points if dict(point.at) == dict(chosen))

    def chosen(self, point: Point) -> dict[str, str]:
        """What a sampler would have to choose for this point."""
        return dict(point.at) if POINT not in self.choices else {POINT: point.name}


@dataclass(frozen=True)
class Trial:
    """What came of a setting: `error` is the mean over seeds after the last epoch; `why` there is none."""

    point: str
    state: State
    error: float | None
    why: str = ""


def folder_of(folder: Path, point: str, seed: int) -> Path:
    """Where a run of a search lies."""
    return folder / point / f"seed-{seed}"


def searched(search: Search, folder: Path, train: Train) -> list[Trial]:
    """Search, or go on searching: the settings in the order in which they were chosen, each once.

    `train` has jobs trained. The store in the folder is Optuna's own journal, so its tools can look at it.
    """
    with locked(folder), _store(search, folder) as study:
        desk = _Desk(search, folder, study, train)
        while desk.batch():
            pass
        return desk.trials


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the lowest error, the first of several."""
    complete = [trial for trial in trials if trial.error is not None]
    if not complete:
        reasons = "; ".join(dict.fromkeys(trial.why for trial in trials))
        raise RunError(f"no setting came to an end, so there is no best one: {reasons}")
    return min(complete, key=lambda trial: trial.error if trial.error is not None else math.inf)


# --- the store -------------------------------------------------------------------------------------------------------


@contextmanager
def _store(search: Search, folder: Path) -> Iterator[Any]:
    """The study in the folder; the one that is there must be of this search."""
    optuna = _optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / STORE
    try:
        there = path.exists() and path.stat().st_size > 0
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            storage = optuna.storages.JournalStorage(backend)
            names = optuna.study.get_all_study_names(storage)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:  # all seen
            raise RunError(f"{path} cannot be read as a store of Optuna's: {type(error).__name__}: {error}") from error
        if there and STUDY not in names:
            raise RunError(
                f"{path} holds no search ({', '.join(names) or 'nothing that can be read'}). Name another folder with "
                "--to, or remove this one."
            )
        make = optuna.load_study if there else optuna.create_study
        study = make(storage=storage, study_name=STUDY)
        described = _described(search)
        found = study.user_attrs.get("search")
        if found is None:
            study.set_user_attr("search", described)
        elif lines := _changes(json.loads(found), json.loads(described)):
            told = "".join(f"\n  {line}" for line in lines[:8])
            raise RunError(f"{folder} holds another search:{told}\nName another folder with --to, or remove this one.")
        yield study
    finally:
        optuna.logging.set_verbosity(before)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise RunError("a search needs optuna, which is not installed. Do: pip install 'momentex[search]'") from None
    return optuna


def _described(search: Search) -> str:
    """All that decides what is found, but how many settings are wanted."""
    points = {point.name: to_json(replace(identity(point.recipe), seed=0, paper=None)) for point in search.sweep.points}
    how = {name: getattr(search, name) for name in ("seeds", "seed", "at_a_time", "prune", "choices")}
    return json.dumps({"points": points, **how})


def _changes(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{key}: {there.get(key)} there, {now[key]} now"
        for key in now
        if key != "points" and there.get(key) != now[key]
    ]
    for name in dict.fromkeys((*there["points"], *now["points"])):
        if name not in now["points"] or name not in there["points"]:
            where = "there" if name in there["points"] else "now"
            lines.append(f"{name}: a point {where} only")
        elif there["points"][name] != now["points"][name]:
            before, after = (from_json(points[name]) for points in (there["points"], now["points"]))
            lines += [f"{name}: {line}" for line in differences(before, after)]
    return lines


def _seed(search: Search, number: int) -> int:
    """Of the sampler of a trial."""
    import torch

    from momentex.pairing import stream

    return int(torch.randint(2**31, (), generator=stream(search.seed, number, "search")))


# --- the trials ------------------------------------------------------------------------------------------------------


class _Desk:
    """Asks Optuna for settings, has them trained, and tells it what came of them."""

    def __init__(self, search: Search, folder: Path, study: Any, train: Train) -> None:
        self._search, self._folder, self._study, self._train = search, folder, study, train
        self._known: dict[str, Trial] = {}
        self._optuna = _optuna()
        states = self._optuna.trial.TrialState
        self._states = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        for told in study.get_trials(deepcopy=False):
            if told.state != states.RUNNING and told.state != states.WAITING:
                self._remember(Trial(**told.user_attrs["trial"]))

    @property
    def trials(self) -> list[Trial]:
        return list(self._known.values())

    def batch(self) -> bool:
        """Choose some settings, train them, remember what came of them; False if there was nothing left to choose."""
        asked = self._asked()
        if not asked:
            return False
        new = list(dict.fromkeys(point for _, point in asked if point not in self._known))
        came = {trial.point: trial for trial in self._trained(new)}
        for trial, point in asked:
            self._tell(trial, self._known.get(point) or came[point])
        return True

    def _asked(self) -> list[tuple[Any, str]]:
        """Trials with their points: those that were asked for and not told, and new ones."""
        states = self._optuna.trial.TrialState
        left = [found for found in self._study.get_trials(deepcopy=False) if found.state == states.RUNNING]
        asked = [self._opened(found.number, found._trial_id) for found in left]
        all_of_them = self._search.trials is None or self._search.trials >= len(self._search.sweep.points)
        while True:
            points = {point for _, point in asked} | self._known.keys()
            fresh = len({point for _, point in asked} - self._known.keys())
            number = len(self._study.get_trials(deepcopy=False))
            if fresh >= self._search.at_a_time or len(points) >= self._search.wanted:
                return asked
            if all_of_them or number >= AGAIN * self._search.wanted:  # in their order
                rest = next(point for point in self._search.sweep.points if point.name not in points)
                self._study.enqueue_trial(self._search.chosen(rest))
            self._study.sampler = self._sampler(number)
            asked.append(self._chosen(self._study.ask()))

    def _sampler(self, number: int) -> Any:
        return self._optuna.samplers.TPESampler(seed=_seed(self._search, number))

    def _opened(self, number: int, inner: int) -> tuple[Any, str]:
        self._study.sampler = self._sampler(number)
        return self._chosen(self._optuna.trial.Trial(self._study, inner))

    def _chosen(self, trial: Any) -> tuple[Any, str]:
        chosen = {name: trial.suggest_categorical(name, values) for name, values in self._search.choices.items()}
        return trial, self._search.point(chosen).name

    def _trained(self, points: Sequence[str]) -> list[Trial]:
        """The first seed decides who is pruned; the other seeds are those of settings that were not."""
        search = self._search
        first = self._jobs(points, search.seeds[:1], prune=search.prune)
        ended = self._train(first)
        good = [point for point, one in zip(points, ended, strict=True) if one.failure is None]
        ended += self._train(others) if (others := self._jobs(good, search.seeds[1:], prune=False)) else []
        found: dict[str, list[Finished]] = {}
        for finished in ended:
            found.setdefault(finished.job.to.parent.name, []).append(finished)
        return [self._came(point, found[point]) for point in points]

    def _jobs(self, points: Sequence[str], seeds: Sequence[int], *, prune: bool) -> list[Job]:
        jobs: list[Job] = []
        complete = [self._errors(trial.point) for trial in self.trials if trial.state == "complete"]
        for seed in seeds:
            for name in points:
                recipe = replace(self._search.sweep.point(name).recipe, seed=seed, paper=None)
                bounds = limits(complete, recipe.epochs) if prune else ()
                jobs.append(Job(recipe, folder_of(self._folder, name, seed), f"{name}, seed {seed}", bounds))
        return jobs

    def _errors(self, point: str) -> dict[int, float]:
        """Of the first seed, by epoch."""
        return curve(Record(folder_of(self._folder, point, self._search.seeds[0])).metrics())

    def _came(self, point: str, ended: Sequence[Finished]) -> Trial:
        for finished in ended:
            if finished.failure is not None:
                return Trial(point, "pruned" if finished.pruned else "failed", None, finished.failure)
        last = [Record(finished.job.to).metrics()[-1] for finished in ended]
        if splits := {row["split"] for row in last} - {"validation"}:
            raise RunError(f"{point} was measured on {', '.join(splits)} images; a search looks at held-out ones.")
        return Trial(point, "complete", math.fsum(row["error"] for row in last) / len(last))

    def _tell(self, trial: Any, came: Trial) -> None:
        for epoch, error in self._errors(came.point).items():
            trial.report(error, epoch)
        trial.set_user_attr("trial", vars(came))
        self._study.tell(trial, came.error, state=self._states[came.state], skip_if_finished=True)
        self._remember(came)

    def _remember(self, came: Trial) -> None:
        self._known.setdefault(came.point, came)
