"""`momentex sweep`: grids on the command line, what is skipped and gone on with, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from momentex import cli
from momentex.sweep.job import is_complete
from momentex.swept import folder as store
from momentex.swept.result import Swept
from momentex.verbs.grids import asked_sweep
from momentex.verbs.sweep import Sweeping
from tests.train_runs import MODELS, assert_same_run, metrics

MINE = f"""
from dataclasses import replace
from momentex.sweep.grid import Sweep, axis, grid, listed
from momentex.train.recipe import SGD, Data, Evaluation, Exchange, Recipe

def recipe() -> Recipe:
    return Recipe(
        data=Data(name="digits", train_size=40),
        model={str(MODELS) + ":small"!r},
        exchange=Exchange(layer="stage"),
        epochs=2,
        batch_size=12,
        optimizer=SGD(lr=0.05),
        evaluation=Evaluation(batch_size=898),
    )

def two() -> Sweep:
    return listed("Two", {{"none": replace(recipe(), exchange=None), "some": recipe()}})

def broken() -> Sweep:
    return grid("broken", recipe(), [axis("epochs", 0)])

def troubled() -> Sweep:
    model = {str(MODELS.with_name("sweep_models.py")) + ":troubled"!r}
    bad = replace(recipe(), model=model, model_options={{"trouble": "fails"}})
    return listed("Troubled", {{"good": recipe(), "bad": bad}})

def number():
    return 3
"""
GRID = ("mine.py:recipe", "--grid", "exchange.lam", "0.5", "0.9", "--grid", "exchange.p", "0.5", "1")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of its own with a file of a user's."""
    for name in ("MOMENTEX_DATA", "MOMENTEX_TRACEBACK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["sweep", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["sweep", *arguments]) == 0
    return capsys.readouterr().out


def stored(folder: str) -> Any:
    found = store.read(Path(folder))
    assert found is not None
    return found


# --- what is run -----------------------------------------------------------------------------------------------------


def test_a_grid_is_run_shown_and_kept_and_a_wider_one_runs_what_is_new(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    out = told(capsys, *GRID, "--seeds", "2", "--epochs", "1", "--workers", "1")
    folder = "runs/sweep/mine.recipe_lam_p"
    assert "| λ   |" in out
    assert "p = 0.5 (%)" in out
    assert out.endswith(f"report: {folder}/report.html\n")
    found = stored(folder)
    assert [point.name for point in found.sweep.points] == [
        *("lam=0.5,p=0.5", "lam=0.5,p=1", "lam=0.9,p=0.5", "lam=0.9,p=1")
    ]
    assert {(o.arm, o.seed) for o in found.outcomes} == {(p.name, seed) for p in found.sweep.points for seed in (0, 1)}
    assert all(point.recipe.epochs == 1 for point in found.sweep.points)
    run = Path(folder) / "lam=0.5,p=0.5" / "seed-0"
    before = (run / "run.json").read_bytes()
    wider = (*GRID[:5], "0.7", *GRID[5:])
    assert wider[3:6] == ("0.5", "0.9", "0.7")
    out = told(capsys, *wider, "--seeds", "2", "--epochs", "1", "--workers", "1", "--json")
    document = json.loads(out)
    assert len(document["table"]["rows"]) == 3
    assert len(stored(folder).outcomes) == 12
    assert (run / "run.json").read_bytes() == before  # it was not started again


def test_a_function_of_the_users_own_is_a_sweep_and_what_was_cut_off_goes_on(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    told(capsys, "mine.py:two", "--seeds", "1", "--workers", "1", "--to", "whole")
    shutil.copytree("whole", "cut")
    run = Path("cut/some/seed-0")
    (run / "metrics.jsonl").write_text("".join((run / "metrics.jsonl").read_text().splitlines(keepends=True)[:1]))
    jobs = store.jobs(stored("cut").sweep, [0], Path("cut"))
    assert [is_complete(job) for job in jobs] == [True, False]
    told(capsys, "mine.py:two", "--seeds", "1", "--workers", "1", "--to", "cut")
    assert_same_run(Path("whole/some/seed-0"), run)
    assert len(metrics(run)) == 2


def test_a_run_that_fails_is_apart_with_its_reason_and_the_others_are_whole(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    out = told(capsys, "mine.py:troubled", "--seeds", "1", "--workers", "1", "--to", "runs", "--quiet")
    assert "bad: failed: ZeroDivisionError: a fault of the model" in out
    assert "There are no numbers of it." in out
    assert "| bad   |         — |" in out
    found = stored("runs")
    assert {o.arm: o.failure is None for o in found.outcomes} == {"good": True, "bad": False}
    assert "a fault of the model" in Path("runs/bad/seed-0/error.txt").read_text()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--search",)], ids=["sweep", "search"])
def test_processes_of_torchrun_are_refused_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "run it without torchrun" in refused(capsys, "mine.py:two", *more, "--to", "runs")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "momentex sweep needs a sweep (`momentex sweep --help` lists them"),
        (("--grid", "epochs", "1", "mine.py:recipe"), "momentex sweep needs a sweep"),
        (
            ("mine.py:recipe",),
            "mine.py:recipe is a recipe, which is one point: name what is to be varied, as in --grid",
        ),
        (("mine.py:recipe", "--grid"), "the grid is empty: name a field and its values"),
        (("mine.py:recipe", "--grid", "epochs"), "--grid epochs has no values"),
        (("mine.py:recipe", "--grid", "exchange.lamb", "1"), "no field 'exchange.lamb'. Did you mean 'exchange.lam'"),
        (("mine.py:recipe", "--grid", "epochs", "1", "01"), "--grid epochs has 1 twice"),
        (("mine.py:recipe", "--grid", "epochs", "1", "--grid", "epochs", "2"), "--grid epochs is there twice"),
        (("mine.py:recipe", "--grid", "epochs", "0", "1"), "epochs is 0; it must be 1 or more"),
        (("mine.py:recipe", "--grid", "exchange.features", "yes"), "--grid exchange.features has 'yes'; it is true or"),
        (("mine.py:recipe", "--grid", "exchange.over", "pone"), "exchange.over is 'pone'"),
        (("mine.py:recipe", "--grid", "seed", "1", "2"), "a sweep takes --seeds 5, or --seeds 3 7 11"),
        (("mine.py:recipe", "--grid", "checkpoint_steps", "1", "2"), "do not differ: both are trained in the same way"),
        (("mine.py:two", "--grid", "epochs", "1"), "mine.py:two is a sweep already"),
        (
            ("mine.py:two", "--exchange.lam", "0.5"),
            "--exchange.lam holds for all points, and this sweep varies exchange",
        ),
        (("mine.py:two", "--seeds", "1", "1"), "the seed 1 is there twice"),
        (("mine.py:two", "--seeds", "0"), "a sweep needs a seed at least"),
        (("mine.py:two", "--on", "locl"), "--on is 'locl'"),
        (("mine.py:two", "--epochz", "3"), ""),
        (("mine.py:broken",), "mine.py:broken failed"),
        (("mine.py:number",), "mine.py:number returned a int; it must return a momentex.sweep.grid.Sweep"),
        (("digits.momnts",), "no sweep and no recipe 'digits.momnts'. Did you mean 'digits.moments'"),
        (("search.speech",), "which this version does not have. Its twin on digits is there: digits.search_speech."),
        (("mine.py:two", "--exchange.layer", "stag", "--to", "x"), ""),
    ],
)
def test_what_is_no_sweep_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, *arguments)
    assert {path.name for path in here.iterdir()} <= {"mine.py", "__pycache__"}


def test_a_point_that_cannot_be_trained_is_found_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    err = refused(capsys, "mine.py:recipe", "--grid", "exchange.layer", "stage", "stagee", "--to", "runs")
    assert "the point layer=stagee: " in err
    assert "Did you mean 'stage'" in err
    assert not Path("runs").exists()


def test_the_folder_of_another_sweep_is_refused_with_the_differences_and_left_as_it_is(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    _, made, _ = asked_sweep(Sweeping, ["mine.py:two", "--epochs", "1"], "")
    store.write(Path("runs"), Swept(sweep=made, seeds=(0,)))
    before = Path("runs/sweep.json").read_bytes()
    err = refused(capsys, "mine.py:two", "--to", "runs")
    assert "runs holds another sweep:\n  none: epochs: 1 there, 2 now\n  some: epochs: 1 there, 2 now\nName" in err
    err = refused(capsys, "mine.py:recipe", "--grid", "epochs", "1", "--to", "runs")
    assert "none: a point there, none now" in err
    assert Path("runs/sweep.json").read_bytes() == before
    Path("runs/sweep.json").write_text("{")
    assert "sweep.json cannot be read" in refused(capsys, "mine.py:two", "--epochs", "1", "--to", "runs")
    Path("other").mkdir()
    Path("other/thesis.tex").touch()
    assert "other is not empty and no sweep (it has thesis.tex)" in refused(capsys, "mine.py:two", "--to", "other")
