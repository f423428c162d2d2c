"""A run on two processes, which talk through gloo, is the run of one."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from momentex import MomentExchange, Plan
from momentex.data import Part
from momentex.pairing import Policy
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Augment, Data, Exchange, Recipe
from tests.train_runs import (
    MODELS,
    STARTING,
    Process,
    Told,
    assert_same_run,
    checkpoints,
    everything,
    fitted,
    last,
    metrics,
    tiny,
    trained,
    weights,
)

WORLD = 2


def started(recipe: Recipe, to: Path, world: int = WORLD) -> list[Process]:
    """The processes of one run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world))
    return [Process(recipe, to, environment=shared | rank) for rank in ranks]


def ended(processes: list[Process]) -> list[tuple[int, str]]:
    return [process.end() for process in processes]


def trained_by_two(recipe: Recipe, to: Path) -> Path:
    for code, said in ended(started(recipe, to)):
        assert code == 0, said
    return to


def assert_close_runs(run: Path, other: Path) -> None:
    """Sums are added up in another order: the last bits may differ, and nothing else."""
    assert_close_weights(weights(run), weights(other))
    assert checkpoints(run)[-1].name == checkpoints(other)[-1].name
    for mine, theirs in zip(metrics(run), metrics(other), strict=True):
        assert mine.pop("split") == theirs.pop("split")
        assert mine == pytest.approx(theirs, rel=1e-4)


def assert_close_weights(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


# Batches of 24 of 99 images, the last one of 3: in parts of one image and two, which must not count the same.
FROZEN = everything(
    data=Data(name="digits", train_size=99, validation=50),
    augment=Augment(crop_padding=1, flip=True),
    model=f"{MODELS}:frozen",
    exchange=None,
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(FROZEN, tmp_path_factory.mktemp("one") / "run")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_by_two(FROZEN, tmp_path_factory.mktemp("two") / "run")


def test_two_processes_with_frozen_batch_norm_end_where_one_does_with_the_same_batches(one: Path, two: Path) -> None:
    assert_close_runs(two, one)


def test_the_comparison_would_notice_another_run(one: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert_close_runs(trained(replace(FROZEN, batch_size=25), tmp_path / "run"), one)


# --- the exchange ----------------------------------------------------------------------------------------------------

# Batches of 25 of 105 images, the last one of 5: in parts of 12 and 13, of 2 and 3.
EXCHANGING = tiny(
    data=Data(name="digits", train_size=105),
    batch_size=25,
    exchange=Exchange(layer="stage", lam=0.7, p=0.6),
)


def test_two_processes_that_exchange_end_where_one_does_with_their_pairs_side_by_side(tmp_path: Path) -> None:
    to = trained_by_two(EXCHANGING, tmp_path / "run")
    torch.manual_seed(EXCHANGING.seed)
    task = classification(EXCHANGING, Place(torch.device("cpu")))
    moex = MomentExchange(task.model, "stage", lam=0.7)
    optimizer = torch.optim.SGD(task.model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    task.model.train()
    batches = [batch for epoch in range(EXCHANGING.epochs) for batch in task.batches.epoch(epoch)]
    for step, batch in enumerate(batches):
        plan = side_by_side(step, batch.labels)
        optimizer.zero_grad()
        with moex(batch.labels, plan=plan) as targets:
            loss = targets.cross_entropy(task.model(*batch.inputs))
        loss.backward()
        optimizer.step()
    assert_close_weights(weights(to), {f"model.{name}": x for name, x in task.model.state_dict().items()})


def side_by_side(step: int, labels: Tensor) -> Plan:
    """The plans of both processes, each for its part of the batch, as one."""
    parts = [Part(rank, WORLD).of(len(labels)) for rank in range(WORLD)]
    policy = Policy(0.7, 0.6, "batch", "permutation")
    plans = [policy.draw(EXCHANGING.seed, step, p.stop - p.start, rank=r) for r, p in enumerate(parts)]
    assert len({plan.on for plan in plans}) == 1
    index = torch.cat([plan.index + part.start for plan, part in zip(plans, parts, strict=True)])
    return Plan(index, 0.7, "stage", plans[0].on)


# --- ends ------------------------------------------------------------------------------------------------------------


def wait_for_checkpoints(processes: list[Process], count: int) -> None:
    patience = time.monotonic() + STARTING
    while len(checkpoints(processes[0].to)) < count and all(process.running for process in processes):
        assert time.monotonic() < patience
        time.sleep(0.001)


def test_two_processes_that_are_killed_go_on_to_the_same_bits(two: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"
    processes = started(FROZEN, to)
    wait_for_checkpoints(processes, 2)
    for process in processes:
        process.send(signal.SIGKILL)
    assert [code for code, _ in ended(processes)] == [-signal.SIGKILL] * WORLD
    assert_same_run(trained_by_two(FROZEN, to), two)


def test_if_one_of_two_is_asked_to_stop_both_do_and_they_go_on_to_the_same_bits(two: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"
    processes = started(FROZEN, to)
    wait_for_checkpoints(processes, 1)
    processes[1].send(signal.SIGTERM)
    assert [code for code, _ in ended(processes)] == [130] * WORLD
    assert last(to).facts["at"]["epoch"] < FROZEN.epochs
    assert_same_run(trained_by_two(FROZEN, to), two)


def test_what_the_first_process_refuses_all_refuse(two: Path) -> None:
    before = (two / "metrics.jsonl").read_bytes()
    for code, said in ended(started(replace(FROZEN, epochs=9), two)):
        assert code == 2
        assert "holds a run of another recipe:\n  epochs: 3 there, 9 now" in said
    assert (two / "metrics.jsonl").read_bytes() == before


def test_one_process_goes_on_where_two_stopped_and_says_what_that_means(one: Path, two: Path, tmp_path: Path) -> None:
    to = Path(shutil.copytree(two, tmp_path / "run"))
    checkpoints(to)[-1].unlink()
    told = Told()
    fitted(FROZEN, to, told)
    assert "2 processes there, 1 now: pairs are drawn anew, and the result will be another." in told.said
    assert_close_runs(to, one)  # which has neither pairs nor dropout
