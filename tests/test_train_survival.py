"""A run survives: killed at any moment, interrupted, out of disk; going on gives the same bits as never stopping."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from momentex.errors import RunError
from tests.train_runs import (
    STARTING,
    Process,
    Told,
    Trouble,
    assert_same_run,
    checkpoints,
    everything,
    finished,
    fitted,
    last,
    metrics,
    trained,
)

KILLED = -signal.SIGKILL
RUN = everything()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to, in a process of its own as well."""
    to = tmp_path_factory.mktemp("whole") / "run"
    code, said = finished(RUN, to)
    assert code == 0, said
    return to


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    """On files of its directory, in a run that nothing happens to."""
    code, said = finished(RUN, tmp_path_factory.mktemp("counted") / "run")
    assert code == 0
    assert int(said) > 60
    return int(said)


# --- kill -9 ---------------------------------------------------------------------------------------------------------


@dataclass
class Kills:
    """What was survived: how often each kind of kill hit a run, and after how many steps that had a checkpoint."""

    at_any_time: int = 0
    while_writing: int = 0
    between_operations: int = 0
    had: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        return self.at_any_time + self.while_writing + self.between_operations

    def __str__(self) -> str:
        return (
            f"{self.count} kills survived: {self.at_any_time} at any time, {self.while_writing} while a file was being "
            f"written, {self.between_operations} between two operations on files; after them {len(self.had)} different "
            "positions were the newest checkpoint"
        )


def killed_until(wanted: int, whole: Path, folder: Path, operations: int, seed: int) -> Kills:
    """Start a run again and again, killing it each time, until it ends; then another run, until `wanted` kills hit."""
    draw, kills = random.Random(seed), Kills()
    kinds = _kinds(draw)
    took = _seconds(folder / "timed")
    for number in range(100 * wanted):
        to = folder / f"run{number}"
        while kills.count < wanted and _killed(next(kinds), to, kills, draw, operations, took):
            kills.had.add(int(checkpoints(to)[-1].stem) if checkpoints(to) else -1)
        code, said = finished(RUN, to)
        assert code == 0, said
        assert_same_run(to, whole)
        if kills.count == wanted:
            break
    return kills


def _kinds(draw: random.Random) -> Iterator[str]:
    while True:
        yield from draw.sample(["at_any_time", "at_any_time", "while_writing", "between_operations"], 4)


def _seconds(to: Path) -> float:
    process = Process(RUN, to)
    process.wait_until_it_fits()
    began = time.monotonic()
    assert process.end()[0] == 0
    return time.monotonic() - began


def _killed(kind: str, to: Path, kills: Kills, draw: random.Random, operations: int, took: float) -> bool:
    """Whether the kill came before the end of the run."""
    at = draw.randrange(1, operations) if kind == "between_operations" else None
    process = Process(RUN, to, Trouble(at_operation=at, slow_disk=0.02 if kind == "while_writing" else 0.0))
    process.wait_until_it_fits()
    if kind == "at_any_time":
        time.sleep(draw.uniform(0, took))
        process.send(signal.SIGKILL)
    if kind == "while_writing":
        _wait_for_part(process, to, after=draw.randrange(8))
        process.send(signal.SIGKILL)
    code, said = process.end()
    assert code in (0, KILLED), said
    if code == KILLED:
        setattr(kills, kind, getattr(kills, kind) + 1)
    return code == KILLED


def _wait_for_part(process: Process, to: Path, after: int) -> None:
    """Until a file is being written, so many others having been."""
    seen: set[tuple[Path, int]] = set()
    while process.running and len(seen) <= after:
        for part in [*to.glob(".*.part"), *to.glob("checkpoints/.*.part")]:
            try:
                seen.add((part, part.stat().st_ino))
            except FileNotFoundError:
                continue
        time.sleep(0.0005)


def test_a_run_that_was_killed_at_eight_moments_ends_with_the_same_bits(
    whole: Path, tmp_path: Path, operations: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = killed_until(8, whole, tmp_path, operations, seed=0)
    with capsys.disabled():
        print(f"\n{kills}")
    assert kills.count == 8
    assert min(kills.at_any_time, kills.while_writing, kills.between_operations) > 0


@pytest.mark.slow
def test_a_run_survives_a_hundred_and_twenty_eight_kills_at_random_moments(
    whole: Path, tmp_path: Path, operations: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = killed_until(128, whole, tmp_path, operations, seed=1)
    with capsys.disabled():
        print(f"\n{kills}")
    assert kills.count == 128
    assert len(kills.had) > 5


@pytest.mark.slow
def test_a_run_survives_a_kill_between_any_two_operations_on_its_files(
    whole: Path, tmp_path: Path, operations: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, operations + 1):
        to = tmp_path / f"run{number}"
        assert finished(RUN, to, Trouble(at_operation=number))[0] == KILLED
        code, said = finished(RUN, to)
        assert code == 0, said
        assert_same_run(to, whole)
    with capsys.disabled():
        print(f"\n{operations} kills survived: one before every operation on files")


def test_two_runs_are_told_apart_by_one_bit(whole: Path, tmp_path: Path) -> None:
    other = trained(everything(seed=1), tmp_path / "other")
    with pytest.raises(AssertionError):
        assert_same_run(other, whole)


def test_what_a_process_computes_is_what_is_computed_here(whole: Path, tmp_path: Path) -> None:
    assert_same_run(trained(RUN, tmp_path / "run"), whole)


# --- Ctrl-C and SIGTERM ----------------------------------------------------------------------------------------------

STEPS = 5  # of an epoch: 100 images in batches of 24


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("step", "goes_on"),
    [
        (1, "going on after epoch 0, step 2"),
        (STEPS - 1, "going on after epoch 0, step 5"),  # all but the evaluation
        (2 * STEPS - 2, "going on after epoch 1, step 4"),
    ],
)
def test_a_signal_leaves_a_checkpoint_after_the_next_step_and_the_run_goes_on_from_there(
    whole: Path, tmp_path: Path, number: int, step: int, goes_on: str
) -> None:
    to, recipe = tmp_path / "run", everything(checkpoint_steps=None)
    told, before = Told(lambda now: signal.raise_signal(number) if now == step else None), signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, to, told)
    assert told.closed == 1
    assert signal.getsignal(number) == before
    assert int(checkpoints(to)[-1].stem) == step + 1
    again = Told()
    fitted(recipe, to, again)
    assert_same_run(to, whole)
    assert len(again.losses) == 3 * STEPS - step - 1
    assert again.said == [goes_on]


def test_a_signal_during_evaluation_ends_the_run_after_its_epoch(whole: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"

    class Asking(Told):
        def epoch(self, row: object) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fitted(RUN, to, Asking())
    assert int(checkpoints(to)[-1].stem) == STEPS
    assert len(metrics(to)) == 1
    fitted(RUN, to)
    assert_same_run(to, whole)


def test_a_signal_after_the_last_epoch_changes_nothing(whole: Path, tmp_path: Path) -> None:
    class Asking(Told):
        def epoch(self, row: dict) -> None:
            if row["epoch"] == 3:
                signal.raise_signal(signal.SIGTERM)

    assert fitted(RUN, tmp_path / "run", Asking())["last"]["epoch"] == 3
    assert_same_run(tmp_path / "run", whole)


def test_the_second_ctrl_c_ends_at_once(whole: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"

    def at(now: int) -> None:
        if now == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        fitted(RUN, to, Told(at))
    assert int(checkpoints(to)[-1].stem) == 4
    fitted(RUN, to)
    assert_same_run(to, whole)


def test_what_fails_after_ctrl_c_ends_the_run_as_that_does_since_compilers_get_it_too(
    whole: Path, tmp_path: Path
) -> None:
    to = tmp_path / "run"

    def at(now: int) -> None:
        if now == STEPS + 2:
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("the compiler ended with -2")

    with pytest.raises(KeyboardInterrupt):
        fitted(RUN, to, Told(at))
    fitted(RUN, to)
    assert_same_run(to, whole)


def test_what_fails_without_ctrl_c_is_an_error(tmp_path: Path) -> None:
    def at(now: int) -> None:
        raise RuntimeError("the compiler ended with 1")

    with pytest.raises(RuntimeError, match="ended with 1"):
        fitted(RUN, tmp_path / "run", Told(at))


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told = Told(lambda step: signal.raise_signal(signal.SIGHUP))
        assert fitted(everything(epochs=2, exchange=None), tmp_path / "run", told)["last"]["epoch"] == 2
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_asked_from_outside_ends_by_itself_and_goes_on(
    whole: Path, tmp_path: Path, number: int
) -> None:
    to = tmp_path / "run"
    process = Process(RUN, to, Trouble(slow_disk=0.02))
    process.wait_until_it_fits()
    patience = time.monotonic() + STARTING
    while len(checkpoints(to)) < 2:
        assert time.monotonic() < patience
        time.sleep(0.001)
    process.send(number)
    assert process.end()[0] == 130
    assert not list(to.rglob("*.part"))
    assert finished(RUN, to)[0] == 0
    assert_same_run(to, whole)


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_a_file_that_may_not_grow_is_an_error_and_the_checkpoint_before_it_stays(whole: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"
    size = checkpoints(whole)[-1].stat().st_size
    code, said = finished(RUN, to, Trouble(largest_file=int(size * 0.9)))  # the first one has no momentum yet
    assert code == 2
    assert said.startswith("RunError: ")
    assert "000000002.safetensors could not be written (File too large); what was there before is untouched" in said
    assert "run the same command again: it goes on from the last checkpoint" in said
    assert [path.stem for path in checkpoints(to)] == ["000000000"]
    assert not list(to.rglob("*.part"))
    assert finished(RUN, to)[0] == 0
    assert_same_run(to, whole)


def test_a_disk_that_is_full_from_the_beginning_is_found_before_training(tmp_path: Path) -> None:
    code, said = finished(RUN, tmp_path / "run", Trouble(largest_file=4096))
    assert code == 2
    assert "000000000.safetensors could not be written" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, which can be made by root alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_an_error_and_with_room_the_run_goes_on(whole: Path, small_disk: Path) -> None:
    to, ballast = small_disk / "run", small_disk / "ballast"

    def at(step: int) -> None:
        if step == 3:
            _fill(ballast)

    with pytest.raises(RunError, match=r"could not be written \(No space left on device\).*Make room, and run the sa"):
        fitted(RUN, to, Told(at))
    assert int(checkpoints(to)[-1].stem) == 2
    assert last(to).facts["at"]["step"] == 2
    ballast.unlink()
    fitted(RUN, to)
    assert_same_run(to, whole)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            os.fsync(file.fileno())
