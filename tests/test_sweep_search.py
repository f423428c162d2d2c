"""Searches: the same trials however often they are stopped, runs that are pruned, and test images that nobody sees."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from momentex import cli
from momentex.errors import RecipeError, RunError
from momentex.sweep.grid import Sweep, axis, grid, listed
from momentex.sweep.job import Finished, Job, failure_of, is_complete
from momentex.sweep.perform import perform
from momentex.sweep.pruning import crossed, curve, limits
from momentex.sweep.search import STORE, Search, Trial, best, folder_of, searched
from momentex.train.progress import Quiet
from momentex.train.recipe import SGD, Data
from momentex.train.record import Record
from tests.train_runs import MODELS, metrics, tiny

RATES = (0.3, 0.6, 1.0, 2.0, 0.1, 0.15, 0.01, 1e-4)  # the last ones learn nothing
SIZES = (8, 12)
EPOCHS = 6


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def held_out(**changes: Any) -> Any:
    data = Data(name="digits", train_size=60, validation=50)
    return replace(tiny(data=data, epochs=EPOCHS, optimizer=SGD(lr=0.3, momentum=0.5)), **changes)


def space(rates: Sequence[float] = RATES, sizes: Sequence[int] = SIZES) -> Sweep:
    return grid("Learning rates", held_out(), [axis("optimizer.lr", *rates), axis("batch_size", *sizes)])


def ten(**changes: Any) -> Search:
    """Ten of the sixteen settings, two at a time."""
    return replace(Search(sweep=space(), trials=10, at_a_time=2, seed=3), **changes)


def here(jobs: Sequence[Job]) -> list[Finished]:
    """Train them in this process."""
    return [
        Finished(job, None, 0.0) if is_complete(job) else Finished(job, perform(job, Quiet(), command="").failure, 1.0)
        for job in jobs
    ]


def backwards(jobs: Sequence[Job]) -> list[Finished]:
    return here(jobs[::-1])[::-1]


class Stopped:
    """Ctrl-C before so-manieth run."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, jobs: Sequence[Job]) -> list[Finished]:
        found = []
        for job in jobs:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            found += here([job])
        return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    """Ten of sixteen settings."""
    folder = tmp_path_factory.mktemp("search")
    return folder, searched(ten(), folder, here)


def study(folder: Path) -> Any:
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(folder / STORE))
    return optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend))


# --- what is found ---------------------------------------------------------------------------------------------------


def test_each_setting_is_tried_once_and_the_best_is_the_lowest_error_on_held_out_images(
    whole: tuple[Path, list[Trial]],
) -> None:
    folder, trials = whole
    assert len({trial.point for trial in trials}) == len(trials) == 10
    errors = {}
    for trial in trials:
        rows = metrics(folder_of(folder, trial.point, 1000))
        assert {row["split"] for row in rows} == {"validation"}
        if trial.state == "complete":
            errors[trial.point] = rows[-1]["error"]
            assert trial.error == rows[-1]["error"]
    assert errors[best(trials).point] == min(errors.values())


def test_nothing_but_the_settings_is_trained_and_never_the_test_set(whole: tuple[Path, list[Trial]]) -> None:
    folder, trials = whole
    runs = {path.parent for path in folder.rglob("recipe.json")}
    assert runs == {folder_of(folder, trial.point, 1000) for trial in trials}
    assert all(Record(run).recipe().data.validation == 50 for run in runs)


def test_the_store_is_optunas(whole: tuple[Path, list[Trial]]) -> None:
    folder, trials = whole
    found = {kept.user_attrs["trial"]["point"]: kept for kept in study(folder).get_trials()}
    assert found.keys() == {trial.point for trial in trials}
    for trial in trials:
        kept = found[trial.point]
        assert kept.state.name.lower() == trial.state.replace("failed", "fail")
        assert kept.intermediate_values == curve(metrics(folder_of(folder, trial.point, 1000)))
        assert trial.state != "complete" or kept.value == trial.error


def test_a_search_that_was_stopped_goes_on_to_the_same_trials_in_whatever_order_runs_end(
    whole: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    """Within the first batch of settings, and again in a later one, when some are told and one of two is trained."""
    search = ten()
    for at in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            searched(search, tmp_path, Stopped(at))
    assert searched(search, tmp_path, backwards) == whole[1]


def test_a_search_may_be_made_longer(whole: tuple[Path, list[Trial]], tmp_path: Path) -> None:
    first = searched(ten(trials=4), tmp_path, here)
    assert first == whole[1][:4]
    assert searched(ten(trials=8), tmp_path, here) == whole[1][:8]
    before = (tmp_path / STORE).read_bytes()
    assert searched(ten(trials=8), tmp_path, here) == whole[1][:8]
    assert (tmp_path / STORE).read_bytes() == before


def test_another_seed_chooses_others(whole: tuple[Path, list[Trial]], tmp_path: Path) -> None:
    other = searched(ten(trials=4, seed=1), tmp_path, here)
    assert [trial.point for trial in other] != [trial.point for trial in whole[1][:4]]


def test_without_a_number_all_settings_are_tried_in_their_order(tmp_path: Path) -> None:
    sweep = listed("Two", {"slow": held_out(optimizer=SGD(lr=0.01)), "quick": held_out(optimizer=SGD(lr=0.1))})
    trials = searched(Search(sweep=sweep, seeds=(1000, 1001)), tmp_path, here)
    assert [trial.point for trial in trials] == ["slow", "quick"]
    for trial in trials:
        errors = [metrics(folder_of(tmp_path, trial.point, seed))[-1]["error"] for seed in (1000, 1001)]
        assert trial.error == sum(errors) / 2


# --- pruning ---------------------------------------------------------------------------------------------------------


def test_bad_runs_are_ended_early_and_marked(whole: tuple[Path, list[Trial]]) -> None:
    folder, trials = whole
    ended = [trial for trial in trials if trial.state == "pruned"]
    assert ended
    for trial in ended:
        job = Job(replace(space().point(trial.point).recipe, seed=1000), folder_of(folder, trial.point, 1000), "")
        epochs = len(metrics(job.to))
        assert 0 < epochs < EPOCHS
        assert trial.why.startswith(f"pruned after epoch {epochs}: its lowest error was ")
        assert failure_of(job) == trial.why
        assert trial.error is None


def test_a_run_that_is_pruned_stays_pruned(whole: tuple[Path, list[Trial]], tmp_path: Path) -> None:
    job = Job(held_out(), tmp_path, "one", limits=((2, 0.5),))
    (first,) = here([job])
    assert first.pruned
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert here([job]) == [first]
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    (without,) = here([replace(job, limits=())])
    assert without.failure is None
    assert len(metrics(tmp_path)) == EPOCHS


def test_nothing_is_pruned_if_nobody_wants_it(tmp_path: Path) -> None:
    sweep = space(rates=(2.0, 1.0, 0.6, 0.3, 0.1, 1e-4), sizes=(12,))
    trials = searched(Search(sweep=sweep, prune=False), tmp_path, here)
    assert {trial.state for trial in trials} == {"complete"}


def test_the_rule_is_that_of_optunas_median_pruner() -> None:
    import optuna

    draw, seen = random.Random(0), set()
    for complete in (3, 5, 6, 9):
        made = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_warmup_steps=3))
        curves = [{epoch: draw.uniform(0, 100) for epoch in range(1, draw.randint(4, 8))} for _ in range(complete)]
        for errors in curves:
            trial = made.ask()
            for epoch, error in errors.items():
                trial.report(error, epoch)
            made.tell(trial, 1.0)
        bounds = limits(curves, epochs=8)
        for _ in range(20):
            trial, errors, theirs = made.ask(), {}, None
            for epoch in range(1, 7):
                errors[epoch] = draw.uniform(0, 100)
                trial.report(errors[epoch], epoch)
                if trial.should_prune():
                    theirs = epoch
                    break
            ours = crossed(errors, bounds)
            seen.add(ours is None)
            assert (ours is None) == (theirs is None)
            assert ours is None or ours.startswith(f"pruned after epoch {theirs}:")
    assert seen == {True, False}


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_search_without_held_out_images_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"never by the test set, and the point epochs=1 holds out none: set data\.val"
    ):
        Search(sweep=grid("mine", tiny(), [axis("epochs", 1, 2)]))


@pytest.mark.parametrize("name", ["trials", "at_a_time"])
def test_a_number_below_one_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{name} is 0; it must be 1 or more\."):
        Search(sweep=space(), **{name: 0})


def test_a_store_of_another_search_is_refused_with_the_differences_and_left_as_it_was(
    whole: tuple[Path, list[Trial]],
) -> None:
    folder, _ = whole
    before = (folder / STORE).read_bytes()
    other = grid("other", held_out(clip=1.0), [axis("optimizer.lr", *RATES), axis("batch_size", *SIZES)])
    for search, says in (
        (ten(sweep=other), r"lr=0\.3,batch_size=8: clip: None there, 1\.0 now"),
        (ten(seed=1), r"seed: 3 there, 1 now"),
        (ten(sweep=space(RATES[1:])), r"lr=0\.3,batch_size=8: a point there only"),
    ):
        with pytest.raises(
            RunError, match=rf"holds another search:\n(.|\n)*{says}(.|\n)*Name another folder with --to"
        ):
            searched(search, folder, here)
    assert (folder / STORE).read_bytes() == before


@pytest.mark.parametrize("content", ["nonsense\n", "nonsense\nmore\n", '{"op_code": 99}\n{"op_code": 98}\n'])
def test_a_store_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / STORE).write_text(content)
    with pytest.raises(RunError, match=r"(holds no search|cannot be read as a store)"):
        searched(Search(sweep=space()), tmp_path, here)
    assert (tmp_path / STORE).read_text() == content


def test_if_every_setting_fails_the_reasons_are_told(tmp_path: Path) -> None:
    bad = replace(
        held_out(), model=f"{MODELS.with_name('sweep_models.py')}:troubled", model_options={"trouble": "fails"}
    )
    trials = searched(Search(sweep=listed("bad", {"one": bad})), tmp_path, here)
    assert [trial.state for trial in trials] == ["failed"]
    with pytest.raises(
        RunError, match=r"no setting came to an end, so there is no best one: ZeroDivisionError: a fault"
    ):
        best(trials)


def test_without_optuna_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RunError, match=r"optuna, which is not installed\. Do: pip install 'momentex\[search\]'"):
        searched(Search(sweep=space()), tmp_path, here)


# --- the command -----------------------------------------------------------------------------------------------------

MINE = f"""
from momentex.sweep.grid import Sweep, axis, grid
from momentex.train.recipe import SGD, Data, Evaluation, Recipe

def space() -> Sweep:
    base = Recipe(
        data=Data(name="digits", train_size=40, validation=50),
        model={str(MODELS) + ":small"!r},
        epochs=2,
        batch_size=12,
        optimizer=SGD(lr=0.05),
        evaluation=Evaluation(batch_size=898),
    )
    return grid("Learning rates", base, [axis("optimizer.lr", 0.0001, 1.0)])
"""


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_the_best_setting_is_tested_with_fresh_seeds_and_told_with_its_error(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "mine.py:space", "--search", "--final-seeds", "2", "--workers", "1"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    home = at_home / "runs" / "search" / "mine.space"
    told = json.loads((home / "search.json").read_text())
    assert told["seeds"] == [1000]
    errors = {trial["point"]: trial["error"] for trial in told["trials"]}
    assert errors.keys() == {"lr=0.0001", "lr=1"}
    assert told["best"] == min(errors, key=errors.__getitem__)
    test = home / "test" / told["best"] / told["best"]
    assert sorted(path.name for path in test.iterdir()) == ["seed-0", "seed-1"]
    rows = [metrics(test / f"seed-{seed}")[-1] for seed in (0, 1)]
    assert {row["split"] for row in rows} == {"test"}
    assert all(Record(test / f"seed-{seed}").recipe().data.validation == 0 for seed in (0, 1))
    mean = (rows[0]["error"] + rows[1]["error"]) / 2
    sem = abs(rows[0]["error"] - rows[1]["error"]) / 2
    assert f"{mean:.2f} ± {sem:.2f}" in out.replace("**", "")
    assert "The best setting on test images" in out
    assert (home / "report.html").exists()
    runs = {path: path.stat().st_mtime_ns for path in home.rglob("metrics.jsonl")}
    assert cli.main([*command, "--json"]) == 0  # and nothing is trained again
    assert json.loads(capsys.readouterr().out)["best"] == told["best"]
    assert {path: path.stat().st_mtime_ns for path in home.rglob("metrics.jsonl")} == runs


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--search", "--seeds", "3", "1000", "--final-seeds", "5"), "the seeds 3 are among --seeds and --final-seeds"),
        (("--search", "--data.validation", "0"), "set data.validation, as in --data.validation 5000"),
        (("--trials", "3"), "--trials is for a search: add --search, or leave it out"),
        (("--no-prune",), "--prune is for a search"),
        (("--search", "--trials", "0"), "trials is 0; it must be 1 or more"),
    ],
)
def test_what_the_command_refuses(
    at_home: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    assert cli.main(["sweep", "mine.py:space", *flags]) == 2
    assert says in capsys.readouterr().err
    assert not (at_home / "runs").exists()
