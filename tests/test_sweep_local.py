"""Many runs in processes of their own: the bits of a run alone, whatever happens to processes and to other runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from momentex.errors import RecipeError, RunError
from momentex.sweep.job import Finished, Job, failure_of, is_complete
from momentex.sweep.local import run_local
from momentex.sweep.machine import cores, shared
from momentex.sweep.watch import Silent
from momentex.train.engine import fit
from momentex.train.recipe import Recipe
from momentex.train.record import Record, locked
from tests.train_runs import STARTING, Told, assert_same_run, everything, metrics, tiny, trained

MODELS = Path(__file__).with_name("sweep_models.py")
ROOT = Path(__file__).parent.parent


class Seen(Silent):
    """Remembers what it was told; `running` calls `at` with the sum of all epochs."""

    def __init__(self, at: Callable[[], None] = lambda: None) -> None:
        self.started: tuple[list[str], int, int] | None = None
        self.over: list[Finished] = []
        self.said: list[str] = []
        self.epochs: dict[str, list[float]] = {}
        self.closed = 0
        self._at = at

    def start(self, jobs: Any, complete: int, side_by_side: int) -> None:
        self.started = [job.label for job in jobs], complete, side_by_side

    def running(self, job: Job, epochs: float) -> None:
        self.epochs.setdefault(job.label, []).append(epochs)
        self._at()

    def finished(self, finished: Finished) -> None:
        self.over.append(finished)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        self.closed += 1


def troubled(trouble: str, marker: Path | str = "/nowhere/at/all", at: int = 7, **changes: Any) -> Recipe:
    """An epoch has four batches, and every process counts anew."""
    options = {"trouble": trouble, "marker": str(marker), "at": at}
    return tiny(model=f"{MODELS}:troubled", model_options=options, **changes)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


# --- a mixed crowd ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Job], list[Finished], Seen]:
    """Good runs and bad ones, one of them complete and one half done, two at a time with a thread each."""
    folder = tmp_path_factory.mktemp("crowd")
    recipes = {
        "good": tiny(),
        "complete": tiny(seed=1),
        "fails": troubled("fails"),
        "after": everything(),
        "dies once": troubled("dies once", folder / "died", epochs=3),
        "dies always": troubled("dies always", at=3),
        "half done": everything(seed=1),
        "exits": troubled("exits"),
        "of another recipe": tiny(epochs=3),
        "last": tiny(seed=2),
    }
    jobs = {name: Job(recipe, folder / name, name) for name, recipe in recipes.items()}
    trained(recipes["complete"], jobs["complete"].to)
    trained(tiny(epochs=1), jobs["of another recipe"].to)
    with pytest.raises(KeyboardInterrupt):
        _stopped(jobs["half done"], after=7)
    seen = Seen()
    return jobs, run_local(list(jobs.values()), workers=2, threads=1, watch=seen, command="a sweep"), seen


def _stopped(job: Job, after: int) -> None:
    def at(step: int) -> None:
        if step == after:
            signal.raise_signal(signal.SIGINT)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fit(job.recipe, job.to, reporter=Told(at))
    finally:
        torch.set_num_threads(before)


def test_what_came_of_the_jobs_is_in_their_order(crowd: tuple[dict[str, Job], list[Finished], Seen]) -> None:
    jobs, ended, seen = crowd
    assert [finished.job for finished in ended] == list(jobs.values())
    bad = {"fails", "dies always", "exits", "of another recipe"}
    assert {finished.job.label for finished in ended if finished.failure} == bad
    assert {job.label for job in jobs.values() if not is_complete(job)} == bad
    assert sorted(f.job.label for f in seen.over) == sorted(set(jobs) - {"complete"})
    assert seen.started == ([name for name in jobs if name != "complete"], 1, 2)
    assert seen.closed == 1


@pytest.mark.parametrize("name", ["good", "after", "last"])
def test_a_run_among_others_is_the_run_alone_with_the_same_number_of_threads_bit_for_bit(
    crowd: tuple[dict[str, Job], list[Finished], Seen], tmp_path: Path, name: str
) -> None:
    job = crowd[0][name]
    assert_same_run(trained(job.recipe, tmp_path / "alone"), job.to)


def test_a_run_that_had_been_stopped_goes_on_to_the_same_bits(
    crowd: tuple[dict[str, Job], list[Finished], Seen], tmp_path: Path
) -> None:
    jobs, _, seen = crowd
    assert_same_run(trained(everything(seed=1), tmp_path / "alone"), jobs["half done"].to)
    assert seen.epochs["half done"][0] == 1  # the epochs of before
    assert "going on after epoch 1, step" in (jobs["half done"].to / "output.txt").read_text()


def test_a_complete_run_is_not_touched(crowd: tuple[dict[str, Job], list[Finished], Seen], tmp_path: Path) -> None:
    jobs, ended, _ = crowd
    assert_same_run(trained(tiny(seed=1), tmp_path / "alone"), jobs["complete"].to)
    assert next(f for f in ended if f.job.label == "complete") == Finished(jobs["complete"], None, 0.0)


def test_a_run_whose_process_is_killed_goes_on_from_its_checkpoint_in_another_process_to_the_same_bits(
    crowd: tuple[dict[str, Job], list[Finished], Seen], tmp_path: Path
) -> None:
    jobs, _, seen = crowd
    job = jobs["dies once"]
    assert (job.to.parent / "died").exists()
    assert any(text.startswith("dies once: the process ended with signal 9") for text in seen.said)
    assert "going on after epoch 1, step 0" in (job.to / "output.txt").read_text()
    assert_same_run(trained(job.recipe, tmp_path / "alone"), job.to)  # the marker is there: it does not die again
    assert failure_of(job) is None


def test_a_run_whose_process_is_killed_again_has_failed_and_says_so(
    crowd: tuple[dict[str, Job], list[Finished], Seen],
) -> None:
    jobs, ended, seen = crowd
    failure = next(f.failure for f in ended if f.job.label == "dies always")
    assert failure is not None
    assert failure.startswith("the process ended with signal 9")
    assert failure.endswith("so it was 2 times.")
    assert failure_of(jobs["dies always"]) == failure
    assert [text.partition(":")[0] for text in seen.said].count("dies always") == 1


def test_a_run_that_raises_keeps_its_reason_and_its_traceback(
    crowd: tuple[dict[str, Job], list[Finished], Seen],
) -> None:
    jobs, ended, _ = crowd
    failure = next(f.failure for f in ended if f.job.label == "fails")
    assert failure is not None
    assert failure.startswith("ZeroDivisionError: a fault of the model (")
    assert "sweep_models.py, line " in failure
    assert failure_of(jobs["fails"]) == failure
    output = (jobs["fails"].to / "output.txt").read_text()
    assert "Traceback (most recent call last)" in output
    assert "so it is printed" in output
    assert (failure_of(jobs["exits"]) or "").startswith("SystemExit: 3")


def test_a_folder_of_another_recipe_is_a_failure_and_left_as_it_was(
    crowd: tuple[dict[str, Job], list[Finished], Seen], tmp_path: Path
) -> None:
    jobs, ended, _ = crowd
    failure = next(f.failure for f in ended if f.job.label == "of another recipe")
    assert failure is not None
    assert "holds a run of another recipe:\n  epochs: 1 there, 3 now" in failure
    assert_same_run(trained(tiny(epochs=1), tmp_path / "alone"), jobs["of another recipe"].to)


def test_a_run_that_failed_is_tried_again_and_its_reason_forgotten_when_it_succeeds(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    job = Job(troubled("fails", marker), tmp_path / "run", "one")
    (first,) = run_local([job], threads=1, watch=Silent())
    assert first.failure
    assert (job.to / "error.txt").read_text().strip() == first.failure
    marker.touch()
    (second,) = run_local([job], threads=1, watch=Silent())
    assert second.failure is None
    assert not (job.to / "error.txt").exists()
    assert_same_run(trained(job.recipe, tmp_path / "alone"), job.to)


def test_a_run_knows_the_command_and_the_threads(crowd: tuple[dict[str, Job], list[Finished], Seen]) -> None:
    text = (crowd[0]["good"].to / "run.json").read_text()
    assert '"command": "a sweep"' in text
    assert '"threads": 1' in text


def test_two_threads_in_a_process_are_two_threads_alone(tmp_path: Path) -> None:
    job = Job(everything(), tmp_path / "run", "one")
    run_local([job], workers=1, threads=2, watch=Silent())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(job.recipe, tmp_path / "alone", reporter=Told())
    finally:
        torch.set_num_threads(before)
    assert_same_run(tmp_path / "alone", job.to)
    assert '"threads": 2' in (job.to / "run.json").read_text()


# --- interruption ----------------------------------------------------------------------------------------------------


def long_runs(folder: Path) -> list[Job]:
    return [Job(tiny(seed=seed, epochs=40), folder / f"seed-{seed}", f"seed {seed}") for seed in range(3)]


def test_ctrl_c_leaves_checkpoints_and_the_same_call_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    jobs = long_runs(tmp_path)
    reached: list[str] = []

    def at() -> None:
        reached.append("")
        if all((job.to / "metrics.jsonl").exists() for job in jobs[:2]):
            signal.raise_signal(signal.SIGINT)

    seen, before = Seen(at), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_local(jobs, workers=2, threads=1, watch=seen)
    assert seen.closed == 1
    assert signal.getsignal(signal.SIGTERM) == before
    assert not any(is_complete(job) for job in jobs)
    for job in jobs[:2]:
        with locked(job.to):  # nobody is left in it
            assert metrics(job.to)
        assert not (job.to / "error.txt").exists()
    assert all(finished.failure is None for finished in run_local(jobs, workers=2, threads=1, watch=Silent()))
    for job in jobs:
        assert_same_run(trained(job.recipe, tmp_path / "alone" / job.to.name), job.to)


def test_the_second_ctrl_c_does_not_wait_for_a_step_that_does_not_end(tmp_path: Path) -> None:
    marker, over = tmp_path / "hangs", threading.Event()
    job = Job(troubled("hangs", marker), tmp_path / "run", "one")

    def ring() -> None:
        while not marker.exists() and not over.wait(0.05):
            pass
        for _ in range(2):
            if not over.wait(1.0):
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=ring)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_local([job], watch=Silent())
    over.set()
    thread.join()
    with locked(job.to):
        assert not is_complete(job)


SCRIPT = """
import sys
from pathlib import Path
from momentex.sweep.local import run_local
from momentex.sweep.watch import watching
from tests.test_sweep_local import long_runs
run_local(long_runs(Path(sys.argv[1])), workers=2, threads=1, watch=watching())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_process_that_started_the_runs_is_ended_they_stop_with_a_checkpoint(
    tmp_path: Path, number: int
) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path], env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE
    )
    jobs, patience = long_runs(tmp_path), time.monotonic() + STARTING
    while not all((job.to / "metrics.jsonl").exists() for job in jobs[:2]):
        assert process.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=STARTING)
    for job in jobs[:2]:
        _wait_until_free(job.to)
        assert not (job.to / "error.txt").exists()
    assert not is_complete(jobs[2])
    assert all(finished.failure is None for finished in run_local(jobs, workers=2, threads=1, watch=Silent()))
    assert_same_run(trained(jobs[0].recipe, tmp_path / "alone"), jobs[0].to)


def _wait_until_free(folder: Path) -> None:
    patience = time.monotonic() + STARTING
    while True:
        try:
            with locked(folder):
                return
        except RunError:
            assert time.monotonic() < patience, "a process goes on although nobody wants it to"
            time.sleep(0.05)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_two_jobs_in_one_directory_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    jobs = [Job(tiny(), tmp_path / "run", "one"), Job(tiny(seed=1), tmp_path / "run", "two")]
    with pytest.raises(RecipeError, match=r"'one' and 'two' have one run directory, .*run: every run needs one of its"):
        run_local(jobs, watch=Silent())
    assert not (tmp_path / "run").exists()


def test_a_process_that_cannot_start_is_an_error_that_says_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    seen = Seen()
    with pytest.raises(RunError, match=r"a process for runs could not start: .*exit code 1\. It said: (.|\n)*no torch"):
        run_local([Job(tiny(), tmp_path / "run", "one")], watch=seen)
    assert seen.closed == 1


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("threads", -1)])
def test_a_number_below_one_is_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(RunError, match=rf"{name} is {value}; it must be 1 or more\."):
        run_local([Job(tiny(), tmp_path / "run", "one")], watch=Silent(), **{name: value})


# --- runs of several processes ---------------------------------------------------------------------------------------


def test_a_run_of_two_processes_is_that_of_one_but_for_rounding_and_its_failures_are_kept_likewise(
    tmp_path: Path,
) -> None:
    jobs = [
        Job(recipe, tmp_path / label, label)
        for label, recipe in {"good": tiny(), "fails": troubled("fails"), "after": tiny(seed=1)}.items()
    ]
    seen = Seen()
    ended = run_local(jobs, workers=1, threads=1, processes=2, watch=seen)
    assert [finished.failure is None for finished in ended] == [True, False, True]
    assert (ended[1].failure or "").startswith("ZeroDivisionError: a fault of the model (")
    assert failure_of(jobs[1]) == ended[1].failure
    assert sorted(finished.job.label for finished in seen.over) == ["after", "fails", "good"]
    for job in (jobs[0], jobs[2]):
        (start,) = Record(job.to).starts()
        assert start["processes"] == 2
        for row, alone in zip(
            metrics(job.to), metrics(trained(job.recipe, tmp_path / "alone" / job.label)), strict=True
        ):
            assert row["loss"] == pytest.approx(alone["loss"], rel=1e-4)


def test_ctrl_c_stops_both_processes_of_a_run_with_a_checkpoint(tmp_path: Path) -> None:
    job = Job(tiny(epochs=200), tmp_path / "run", "one")

    def at() -> None:
        if Record(job.to).metrics():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_local([job], workers=1, threads=1, processes=2, watch=Seen(at))
    with locked(job.to) as record:
        assert 0 < len(record.metrics()) < 200
    assert failure_of(job) is None


def test_processes_find_each_other_and_share_out_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from momentex.sweep.local import _Terms

    first, second = _Terms(1, ("0", "1", "2", "3"), "", processes=2).environments(1)
    assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


# --- how the machine is shared ---------------------------------------------------------------------------------------


def test_cores_are_divided_among_runs_and_every_gpu_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("momentex.sweep.machine.cores", lambda: 8)
    assert shared(100, None, None, 0) == (8, 1)
    assert shared(3, None, None, 0) == (3, 2)
    assert shared(1, None, None, 0) == (1, 8)
    assert shared(100, 2, None, 0) == (2, 4)
    assert shared(100, 16, None, 0) == (16, 1)
    assert shared(100, None, 4, 0) == (2, 4)
    assert shared(100, None, None, 4) == (4, 2)
    assert shared(2, None, None, 4) == (2, 4)
    assert shared(100, 6, None, 2) == (6, 1)
    assert shared(100, None, None, 4, processes=2) == (2, 2)
    assert shared(100, None, None, 0, processes=2) == (4, 1)
    assert shared(1, None, None, 0, processes=2) == (1, 4)
    with pytest.raises(RunError, match=r"a run of 4 processes needs as many GPUs, and there are 2: take fewer\."):
        shared(1, None, None, 2, processes=4)


def test_a_users_number_of_threads_is_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("momentex.sweep.machine.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert shared(1, None, None, 0) == (1, 2)
    assert shared(100, None, None, 0) == (8, 1)


def test_the_cores_of_a_container_are_its_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr("momentex.sweep.machine.QUOTA", quota)
    allowed = cores()
    quota.write_text("100000 100000\n")
    assert cores() == 1
    quota.write_text("max 100000\n")
    assert cores() == allowed


def test_processes_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from momentex.sweep.local import _Terms

    terms = _Terms(1, ("3", "5"), "")
    assert [terms.environments(place)[0]["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["3", "5", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in _Terms(1, (), "").environments(0)[0]
    assert _Terms(2, (), "").environments(0)[0]["OMP_NUM_THREADS"] == "2"


# --- job -------------------------------------------------------------------------------------------------------------


def test_a_job_is_complete_with_all_epochs_of_its_own_recipe_only(tmp_path: Path) -> None:
    job = Job(tiny(), trained(tiny(), tmp_path / "run"), "one")
    assert is_complete(job)
    assert not is_complete(replace(job, recipe=tiny(seed=1)))
    assert not is_complete(replace(job, recipe=tiny(epochs=3)))
    assert not is_complete(replace(job, to=tmp_path / "other"))
    lines = (job.to / "metrics.jsonl").read_text().splitlines(keepends=True)
    (job.to / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:-5])
    assert not is_complete(job)
    (job.to / "metrics.jsonl").write_text("".join(lines))
    (job.to / "recipe.json").write_text("{")
    assert not is_complete(job)


def test_the_reason_of_a_failure_is_of_the_past_when_the_run_is_complete(tmp_path: Path) -> None:
    job = Job(tiny(), tmp_path / "run", "one")
    assert failure_of(job) is None
    job.to.mkdir()
    (job.to / "error.txt").write_text("no room\n")
    assert failure_of(job) == "no room"
    trained(job.recipe, job.to)  # a directory with a reason alone may be trained in
    assert failure_of(job) is None
