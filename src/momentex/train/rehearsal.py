"""One pass of two samples before a run begins: what does not fit is an error before anything is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from momentex.errors import MomentexError, RecipeError
from momentex.survey import _undisturbed, check
from momentex.train.augmenting import certain
from momentex.train.features import on_trial
from momentex.train.mixing import layer_of
from momentex.train.place import Place
from momentex.train.recipe import Exchange, Recipe
from momentex.train.task import Batch, Task, take


def rehearse(recipe: Recipe, task: Task, place: Place) -> None:
    """Model, data, loss and exchange once together, in train mode; the model is then as it was, bit for bit."""
    smallest, largest = (pick(task.batches.sizes) for pick in (min, max))
    smallest, largest = smallest // place.world // recipe.accumulate, -(-largest // place.world // recipe.accumulate)
    if (recipe.exchange or recipe.mixup or recipe.cutmix or recipe.manifold_mixup) is not None and largest < 2:
        raise RecipeError(
            f"the batch of {recipe.batch_size} goes through the model in {place.world * recipe.accumulate} parts "
            "(processes × accumulate), each of a single image: nobody would have a partner. Use larger batches, or "
            "fewer parts."
        )
    first = next(iter(task.batches.epoch(0)))
    two, _ = certain(recipe)(take(first, slice(0, 2)), 0)
    outputs: list[Any] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        outputs.append(output)

    handle = task.model.register_forward_hook(keep)
    try:
        with place.autocast(recipe.precision), on_trial(recipe, task, two):
            _pass(recipe, task, two)
            if smallest < 2:
                _pass_alone(recipe, task, take(first, slice(0, 1)))
    finally:
        handle.remove()
    task.fits(outputs[0])


def _pass(recipe: Recipe, task: Task, batch: Batch) -> None:
    exchange = recipe.exchange
    try:
        if exchange is not None and exchange.features and len(batch.labels) > 1:
            _check(exchange, layer_of(exchange, task.site), task.model, batch)
        else:
            _forward(task.model, batch)
    except MomentexError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in batch.inputs)
        raise RecipeError(
            f"{recipe.model} could not take a batch of the data, {shapes}: {type(error).__name__}: {error}"
        ) from error


def _pass_alone(recipe: Recipe, task: Task, batch: Batch) -> None:
    try:
        _forward(task.model, batch)
    except (RuntimeError, ValueError) as error:
        raise RecipeError(
            f"the smallest part of a batch is a single image ({sum(task.batches.sizes)} images in batches of "
            f"{recipe.batch_size}), and {recipe.model} cannot take that: {error} Choose another batch_size."
        ) from error


def _forward(model: nn.Module, batch: Batch) -> None:
    with _undisturbed(model, training=True), torch.no_grad():
        model(*batch.inputs)


def _check(exchange: Exchange, layer: str, model: nn.Module, batch: Batch) -> None:
    check(
        model,
        layer,
        batch.inputs,
        batch.labels,
        mask=batch.facts.get("mask"),
        batch=batch.facts.get("batch"),
        over=exchange.over,
        where=exchange.where,
        channel_dim=exchange.channel_dim,
        skip=exchange.skip,
        eps=exchange.eps,
    )
