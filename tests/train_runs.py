"""Runs that are stopped and go on: here and in processes of their own, and what two run directories have in common."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from momentex.train import checkpoint
from momentex.train.engine import fit
from momentex.train.progress import Quiet
from momentex.train.recipe import SGD, Augment, Cosine, Data, Evaluation, Exchange, Recipe
from tests.compare import assert_same_bits

MODELS = Path(__file__).with_name("train_models.py")
STARTING = 120.0  # seconds that a process may take until it trains, on a machine with much else to do


def tiny(**changes: Any) -> Recipe:
    """40 digits, a model without BatchNorm: an epoch of four steps takes milliseconds."""
    recipe = Recipe(
        data=Data(name="digits", train_size=40),
        model=f"{MODELS}:small",
        epochs=2,
        batch_size=12,
        optimizer=SGD(lr=0.05),
        evaluation=Evaluation(batch_size=898),
    )
    return replace(recipe, **changes)


def everything(**changes: Any) -> Recipe:
    """All that moves in a run: dropout, running statistics, momentum, average, schedule, exchange, crops, parts."""
    recipe = tiny(
        data=Data(name="digits", train_size=100, validation=50),
        augment=Augment(crop_padding=1, flip=True),
        model=f"{MODELS}:dropping",
        exchange=Exchange(layer="resnet.bn1", off_epochs=1),
        epochs=3,
        batch_size=24,
        accumulate=2,
        schedule=Cosine(warmup_epochs=1),
        clip=5.0,
        label_smoothing=0.1,
        ema=0.9,
        checkpoint_steps=2,
    )
    return replace(recipe, **changes)


class Told(Quiet):
    """Remembers what it was told; `at(step)` is called after every step, counted from 1 by this process."""

    def __init__(self, at: Callable[[int], None] = lambda step: None) -> None:
        self.said: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.losses: list[float | None] = []
        self.closed = 0
        self._at = at

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        self.losses.append(loss)
        self._at(len(self.losses))

    def epoch(self, metrics: Any) -> None:
        self.rows.append(dict(metrics))

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        self.closed += 1


def fitted(recipe: Recipe, to: Path, told: Told | None = None) -> dict[str, Any]:
    """`fit` with one thread, as in the processes below: how many there are decides the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return fit(recipe, to, reporter=told or Told())
    finally:
        torch.set_num_threads(threads)


def trained(recipe: Recipe, to: Path) -> Path:
    """The directory of this run, complete."""
    fitted(recipe, to)
    return to


# --- what must be the same -------------------------------------------------------------------------------------------


def checkpoints(run: Path) -> list[Path]:
    """The oldest first."""
    return sorted((run / "checkpoints").glob("*.safetensors"))


def last(run: Path) -> checkpoint.Snapshot:
    return checkpoint.read(checkpoints(run)[-1])


def weights(run: Path, name: str = "model") -> dict[str, Tensor]:
    """Of the newest checkpoint."""
    return {key: value for key, value in last(run).tensors.items() if key.startswith(f"{name}.")}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(run: Path, other: Path) -> None:
    """Not one bit differs: all tensors of the last checkpoint, the metrics, and what was kept of the best epoch."""
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    ours, theirs = last(run), last(other)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        assert_same_bits(ours.tensors[name], theirs.tensors[name])
    assert ours.facts == theirs.facts
    for mine, other_one in zip(_kept(run), _kept(other), strict=True):
        assert mine.name == other_one.name
        assert mine.read_bytes() == other_one.read_bytes(), f"{mine} and {other_one} differ"
    assert not list(run.rglob("*.part"))


def _kept(run: Path) -> list[Path]:
    return [checkpoints(run)[-1], run / "best.safetensors"]


# --- processes that can be killed ------------------------------------------------------------------------------------

PROCESSES = multiprocessing.get_context("forkserver")
# What a run imports late, and what takes a second: the server from which processes are forked does it once for all.
PROCESSES.set_forkserver_preload([__name__, "sklearn.datasets", "torch._dynamo", "momentex.models.cifar.resnet"])


@dataclass(frozen=True)
class Trouble:
    """What happens to a process.

    at_operation   it kills itself (-9) just before so-manieth operation on files of its run directory
    slow_disk      seconds that it takes until a disk has what was written
    largest_file   bytes, above which writing fails
    """

    at_operation: int | None = None
    slow_disk: float = 0.0
    largest_file: int | None = None


NONE = Trouble()


class Process:
    """`fit` in a process of its own."""

    def __init__(
        self, recipe: Recipe, to: Path, trouble: Trouble = NONE, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._theirs, self._mine = PROCESSES.Pipe()
        arguments = (recipe, to, trouble, dict(environment), self._theirs)
        self._process = PROCESSES.Process(target=_fit, args=arguments, daemon=True)
        self._process.start()
        self._theirs.close()
        self.to = to

    def wait_until_it_fits(self) -> None:
        assert self._mine.poll(STARTING), "the process did not start"
        assert self._mine.recv() == "fits"

    def send(self, number: int) -> None:
        assert self._process.pid is not None
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(self._process.pid, number)

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def end(self) -> tuple[int, str]:
        """Exit code, and what it had to say about its end: an error, or how many operations on files there were."""
        self._process.join(STARTING)
        assert not self.running, "the process did not end"
        said = ""
        with suppress(EOFError):
            while self._mine.poll():
                said = self._mine.recv()
        code = self._process.exitcode
        assert code is not None
        return code, said


def finished(recipe: Recipe, to: Path, trouble: Trouble = NONE) -> tuple[int, str]:
    """Run it to its end, whatever that is."""
    return Process(recipe, to, trouble).end()


WATCHED = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.scandir", "os.listdir"}


def _fit(recipe: Recipe, to: Path, trouble: Trouble, environment: dict[str, str], pipe: Any) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    operations = _watch(to, trouble)
    if trouble.largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (trouble.largest_file, resource.RLIM_INFINITY))
    code = 0
    pipe.send("fits")
    try:
        fit(recipe, to, reporter=Told())
        pipe.send(str(operations[0]))
    except KeyboardInterrupt:
        code = 130
    except ValueError as error:
        pipe.send(f"{type(error).__name__}: {error}")
        code = 2
    except BaseException:  # noqa: BLE001  whatever it was, the parent is told
        pipe.send(traceback.format_exc())
        code = 3
    os._exit(code)


def _watch(folder: Path, trouble: Trouble) -> list[int]:
    """Count the operations on files of `folder`, wait as a slow disk does, and die where it is wanted."""
    count = [0]

    def one_more() -> None:
        count[0] += 1
        if count[0] == trouble.at_operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in WATCHED and arguments and str(arguments[0]).startswith(str(folder)):
            one_more()

    force = os.fsync

    def fsync(number: int) -> None:
        one_more()
        time.sleep(trouble.slow_disk)
        force(number)

    sys.addaudithook(hook)
    os.fsync = fsync
    return count
