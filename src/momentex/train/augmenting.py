"""What a recipe does to every batch before the model sees it: a function of seed, step and rank, as the exchange is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from momentex.augment.values import CutMix, Cutout, Mixup
from momentex.errors import RecipeError
from momentex.pairing import Pairing, pair, stream
from momentex.targets import Targets
from momentex.train.recipe import Recipe
from momentex.train.task import Batch

Augmenting: TypeAlias = Callable[[Batch, int], tuple[Batch, Targets]]  # of a batch, in a step


def augmenting(recipe: Recipe, *, rank: int) -> Augmenting:
    """Cutout, mixup and CutMix, in that order; those that the recipe has."""
    pairing = "permutation" if recipe.exchange is None else recipe.exchange.pairing
    return _one_after_the_other(_methods(recipe), pairing, recipe.seed, rank)


def certain(recipe: Recipe) -> Augmenting:
    """The same methods, each of which acts for sure: to see whether they fit the data."""
    return _one_after_the_other([replace(method, p=1.0) for method in _methods(recipe)], "permutation", recipe.seed, 0)


def _methods(recipe: Recipe) -> list[Cutout | Mixup | CutMix]:
    return [method for method in (recipe.cutout, recipe.mixup, recipe.cutmix) if method is not None]


def _one_after_the_other(
    methods: Iterable[Cutout | Mixup | CutMix], pairing: Pairing, seed: int, rank: int
) -> Augmenting:
    methods = tuple(methods)

    def augment(batch: Batch, step: int) -> tuple[Batch, Targets]:
        targets = Targets(batch.labels)
        if not methods:
            return batch, targets
        x, *others = batch.inputs
        _check_images(x)
        for method in methods:
            if isinstance(method, Cutout):
                x, targets = method(x, targets, step=step, seed=seed, rank=rank)
                continue
            # as the exchange draws it in this step
            shared = method.pairs == "shared"
            index = pair(pairing, len(targets), stream(seed, step, "pairing", rank), batch.labels) if shared else None
            x, targets = method(x, targets, step=step, seed=seed, rank=rank, index=index)
        return batch._replace(inputs=(x, *others)), targets

    return augment


def _check_images(x: object) -> None:
    if not isinstance(x, Tensor) or x.ndim != 4:
        given = f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise RecipeError(
            f"cutout, mixup and cutmix need images (batch, channels, height, width), and this task's first input is "
            f"{given}: take them out of the recipe."
        )
