"""The loop: one for every task, visible from beginning to end.

A run is a function of its recipe. Batches, crops and pairings are functions of (seed, step), torch's own generators are
saved with the weights, and so a run that was killed at any moment goes on to the same weights, bit for bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from momentex.errors import RunError
from momentex.train import checkpoint
from momentex.train.environment import environment
from momentex.train.images import classification
from momentex.train.interruption import Interruption, interruptible
from momentex.train.place import Place
from momentex.train.recipe import Recipe
from momentex.train.record import Record, locked, look
from momentex.train.run import Run, averaged, prepare, train_step
from momentex.train.savepoint import load, not_finite, resume, save, save_best
from momentex.train.task import Task

if TYPE_CHECKING:
    from momentex.train.progress import Reporter

LOOK_EVERY = 32  # steps between looks at losses that lie on a GPU: a look waits for it
SMALLEST_SCALE = 2.0**-24  # of float16's gradients: below it, they have not been finite for dozens of steps


def fit(recipe: Recipe, to: Path, *, reporter: Reporter, command: str = "") -> dict[str, Any]:
    """Train, or go on where `to` stopped; the metrics of the last and of the best epoch. Nothing outside is changed:
    torch's random state is as before. Ctrl-C leaves a checkpoint and raises KeyboardInterrupt.
    """
    place, to = Place.here(), Path(to)
    place.first_does(lambda: look(to, recipe))
    with torch.random.fork_rng(devices=[place.device] if place.device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)  # the initial weights: the same on every process and in every arm
        run = prepare(recipe, classification(recipe, place), place)
        torch.manual_seed(recipe.seed + place.rank)  # modules like dropout: each process its own
        with _claimed(to, recipe, place) as record:
            said = resume(run, record)
            if place.first:
                said += _since(record.describe(command, recipe.seed, environment(place, recipe.model)))
            for text in said:
                reporter.say(text)
            try:
                with interruptible(place) as interruption:
                    _train(run, record, reporter, interruption)
            finally:
                reporter.close()
    return {"last": run.at.rows[-1], "best": run.at.best} if place.first else {}


@contextmanager
def _claimed(folder: Path, recipe: Recipe, place: Place) -> Iterator[Record]:
    """The run directory, locked by the first process for all."""
    with ExitStack() as stack:
        place.first_does(lambda: stack.enter_context(locked(folder)).claim(recipe))
        yield Record(folder)


def _since(changes: list[str]) -> list[str]:
    text = f"since the last start, things have changed on which a result depends: {'; '.join(changes)}"
    return [text] if changes else []


# --- the loop --------------------------------------------------------------------------------------------------------


def _train(run: Run, record: Record, reporter: Reporter, interruption: Interruption) -> None:
    recipe, at = run.recipe, run.at
    steps = len(run.task.batches.sizes)
    reporter.start(steps, recipe.epochs, at.epoch)
    while at.epoch < recipe.epochs:
        times = train_epoch(run, record, reporter, interruption)
        finish_epoch(run, record, reporter, times)
        if at.epoch < recipe.epochs and interruption.agreed(steps, steps):
            raise KeyboardInterrupt


def train_epoch(run: Run, record: Record, reporter: Reporter, interruption: Interruption) -> dict[str, float]:
    """What is left of the epoch that is under way; how long it took, and how many images a second that was."""
    recipe, task, at = run.recipe, run.task, run.at
    steps, losses = len(task.batches.sizes), Losses(run)
    began, begun = time.perf_counter(), at.images
    task.model.train()
    for batch in task.batches.epoch(at.epoch, at.step):
        loss = losses.add(train_step(run, batch), len(batch.labels))
        stop = interruption.agreed(at.step, steps)
        due = recipe.checkpoint_steps is not None and at.step % recipe.checkpoint_steps == 0
        if stop or (due and at.step < steps):  # after the last step, there is one after evaluation
            losses.look()
            save(run, record)
        if stop:
            raise KeyboardInterrupt
        reporter.step(at.epoch, at.step, loss, len(batch.labels))
    losses.look()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "images_per_second": (at.images - begun) * run.place.world / seconds}


def finish_epoch(run: Run, record: Record, reporter: Reporter, times: dict[str, float]) -> None:
    """Evaluate, save, and tell."""
    recipe, at = run.recipe, run.at
    loss, images = run.place.sum([at.loss, float(at.images)])
    row: dict[str, Any] = {"epoch": at.epoch + 1, "loss": loss / images, "lr": at.lr}
    if (at.epoch + 1) % recipe.evaluation.every == 0 or at.epoch + 1 == recipe.epochs:
        began = time.perf_counter()
        run.place.same_buffers(run.measured)
        row |= {"split": run.task.split} | evaluated(run.measured, run.task)
        if not math.isfinite(row["nll"]):
            raise not_finite(run, f"the outputs after epoch {at.epoch + 1} (NLL {row['nll']})")
        run.rate.after_evaluation(row["nll"])
        times["seconds_of_evaluation"] = time.perf_counter() - began
        if row["error"] < at.best.get("error", math.inf):
            at.best = row
    at.rows.append(row)
    at.epoch, at.step, at.loss, at.images = at.epoch + 1, 0, 0.0, 0
    # The checkpoint comes first: what is missing of the others after a crash is written again from it.
    save(run, record)
    save_best(run, record)
    if run.place.first:
        record.add("metrics.jsonl", row)
        record.add("times.jsonl", {"epoch": at.epoch} | times | dict(run.mixing.log()))
    reporter.epoch({**row, **times})


@torch.no_grad()
def evaluated(model: nn.Module, task: Task) -> dict[str, float]:
    """What the task measures, of the model in evaluation mode; the modes are then as before."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return task.evaluate(model)
    finally:
        for module, mode in modes.items():
            module.training = mode


class Losses:
    """The losses of an epoch, looked at in bundles, since a look waits for the device. NaN ends the run at its step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: list[tuple[Tensor, int]] = []
        self._every = 1 if run.place.device.type == "cpu" else LOOK_EVERY

    def add(self, loss: Tensor, images: int) -> float | None:
        """Count the step that was just taken, and remember its loss; its value, if it is time to look."""
        self._waiting.append((loss, images))
        self._run.at.step += 1
        self._run.at.images += images
        return self.look() if len(self._waiting) >= self._every else None

    def look(self) -> float | None:
        if not self._waiting:
            return None
        at, scaler = self._run.at, self._run.scaler
        values = torch.stack([loss for loss, _ in self._waiting]).tolist()
        first = at.step - len(values) + 1
        for step, (value, (_, images)) in enumerate(zip(values, self._waiting, strict=True), first):
            if not math.isfinite(value):
                raise not_finite(self._run, f"the losses from step {step} of epoch {at.epoch + 1} on ({value})")
            at.loss += value * images
        self._waiting.clear()
        if scaler.is_enabled() and scaler.get_scale() < SMALLEST_SCALE:
            raise not_finite(self._run, f"the gradients up to step {at.step} of epoch {at.epoch + 1}")
        return values[-1]


# --- afterwards ------------------------------------------------------------------------------------------------------


def evaluate_run(
    run: Path, *, data_root: Path | None = None, which: Literal["last", "best"] = "last"
) -> dict[str, float]:
    """Measure the weights of a run again: those of its last checkpoint or of its best epoch."""
    record = Record(Path(run))
    recipe = record.recipe()
    if data_root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=data_root))
    place = Place.here()
    with torch.random.fork_rng(devices=[place.device] if place.device.type == "cuda" else []):
        task = classification(recipe, place)
    if which == "best":
        load(task.model, checkpoint.read(record.best), "model")
        return evaluated(task.model, task)
    snapshot, _ = checkpoint.newest(record.checkpoints)
    if snapshot is None:
        raise RunError(f"{run} has no checkpoint yet.")
    if recipe.ema is None:
        load(task.model, snapshot, "model")
        return evaluated(task.model, task)
    average = averaged(task.model, recipe.ema)
    load(average, snapshot, "average")
    return evaluated(average.module, task)
