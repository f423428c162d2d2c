"""A run: what it is made of, what moves while it goes on, and one step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from momentex.train.augmenting import Augmenting, augmenting
from momentex.train.features import Progress, dropping, with_manifold_mixup
from momentex.train.mixing import Mixing, mixing
from momentex.train.optimization import LearningRate, make_optimizer
from momentex.train.place import Place
from momentex.train.recipe import Recipe
from momentex.train.rehearsal import rehearse
from momentex.train.task import Batch, Task, take


@dataclass
class Position:
    """Where a run is.

    epoch    so many are complete
    step     so many of the epoch that is under way
    loss     summed over the images of those steps; `images`: how many; both of this process alone
    lr       of the last step
    rows     metrics.jsonl
    best     the row of the epoch with the lowest error
    """

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    images: int = 0
    lr: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """What moves while a run goes on, and what it was made of."""

    recipe: Recipe
    task: Task
    place: Place
    called: Callable[..., Any]  # the model as the loop calls it: replicated, compiled
    average: AveragedModel | None
    optimizer: torch.optim.Optimizer
    rate: LearningRate
    scaler: torch.amp.GradScaler
    augment: Augmenting
    mixing: Mixing
    dropping: Progress
    at: Position

    @property
    def measured(self) -> nn.Module:
        """The model that is evaluated: the average if there is one."""
        return self.task.model if self.average is None else self.average.module

    @property
    def number(self) -> int:
        """Steps since the beginning."""
        return self.at.epoch * len(self.task.batches.sizes) + self.at.step


def prepare(recipe: Recipe, task: Task, place: Place) -> Run:
    """Everything that a run moves, at its beginning. Moment Exchange is attached before anything wraps the model."""
    rehearse(recipe, task, place)
    mix = mixing(recipe.exchange, task.model, task.site, seed=recipe.seed, rank=place.rank, classes=task.num_classes)
    mix = with_manifold_mixup(recipe, task, mix, rank=place.rank)
    optimizer = make_optimizer(task.model, recipe.optimizer)
    called = place.replicated(task.model)
    return Run(
        recipe=recipe,
        task=task,
        place=place,
        called=torch.compile(called) if recipe.compile else called,
        average=None if recipe.ema is None else averaged(task.model, recipe.ema),
        optimizer=optimizer,
        rate=LearningRate(optimizer, recipe.schedule, epochs=recipe.epochs, steps=len(task.batches.sizes)),
        scaler=torch.amp.GradScaler(place.device.type, enabled=recipe.precision == "float16"),
        augment=augmenting(recipe, rank=place.rank),
        mixing=mix,
        dropping=dropping(recipe, task),
        at=Position(),
    )


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """The moving average of weights and running statistics; it begins with what the first step makes of them."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def train_step(run: Run, batch: Batch) -> Tensor:
    """Forward, backward, update: the loss, still on its device, averaged over the batch."""
    recipe, task, at, place = run.recipe, run.task, run.at, run.place
    here, everywhere = len(batch.labels), task.batches.sizes[at.step]
    on = recipe.exchange is not None and at.epoch < recipe.epochs - recipe.exchange.off_epochs
    total: Tensor | None = None
    run.dropping(run.number / (recipe.epochs * len(task.batches.sizes)))
    run.optimizer.zero_grad()
    for part, rows in enumerate(_parts(here, recipe.accumulate)):
        some = batch if recipe.accumulate == 1 else take(batch, rows)
        share = (rows.stop - rows.start) / here
        with _sync(run.called, rows.stop == here):
            number = run.number * recipe.accumulate + part
            some, targets = run.augment(some, number)
            with run.mixing.block(some, targets, number, on) as targets:
                with place.autocast(recipe.precision):
                    output = run.called(*some.inputs)
                loss = task.loss(targets, output)
            # processes are averaged with equal weights, and their parts of a batch may differ in size
            run.scaler.scale(loss * (share * here * place.world / everywhere)).backward()
        total = loss.detach() * share if total is None else total + loss.detach() * share
    if recipe.clip is not None:
        run.scaler.unscale_(run.optimizer)
        nn.utils.clip_grad_norm_(task.model.parameters(), recipe.clip)
    at.lr = run.rate.now
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.rate.after_step()
    if run.average is not None:
        run.average.update_parameters(task.model)
    assert total is not None
    return total


def _parts(size: int, parts: int) -> Iterator[slice]:
    """`size` rows in so many slices that differ by one at most; fewer where there are fewer rows."""
    cuts = [size * i // parts for i in range(parts + 1)]
    return (slice(a, b) for a, b in pairwise(cuts) if b > a)


def _sync(called: Callable[..., Any], last: bool) -> Any:
    """Processes exchange gradients after the last part of a batch alone."""
    wait = None if last else getattr(called, "no_sync", None)
    return nullcontext() if wait is None else wait()
