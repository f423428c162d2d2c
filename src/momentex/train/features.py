"""The methods on features of a recipe, beside the exchange: made for its model, and where each acts in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from torch import nn

from momentex.errors import LayerNotFound, RecipeError, did_you_mean
from momentex.feature.branch import LinearDecay
from momentex.feature.dropblock import DropBlock
from momentex.feature.manifold_mixup import ManifoldMixup
from momentex.feature.shakedrop import ShakeDrop
from momentex.feature.stochastic_depth import StochasticDepth
from momentex.models import takes
from momentex.survey import sites
from momentex.targets import Targets
from momentex.train.mixing import Mixing, layer_of
from momentex.train.recipe import Exchange, Recipe
from momentex.train.task import Batch, Task, take

Progress: TypeAlias = Callable[[float], None]  # so much of the training is over, from 0 to 1


# --- on the branches of residual models ------------------------------------------------------------------------------


def branch(recipe: Recipe) -> LinearDecay | None:
    """What stands on the branches of the recipe's model; an error if the model has none."""
    shaken, deep = recipe.shakedrop, recipe.stochastic_depth
    if shaken is not None and deep is not None:
        raise RecipeError(
            "shakedrop and stochastic_depth both decide what becomes of a residual branch: a recipe can have one."
        )
    if shaken is None and deep is None:
        return None
    name = "stochastic_depth" if shaken is None else "shakedrop"
    if not takes(recipe.model, "branch"):
        raise RecipeError(
            f"{name} stands on the branches of a residual model, and {recipe.model} takes nothing there. cifar:resnet, "
            "cifar:resnext, cifar:wide_resnet and cifar:pyramidnet do, in any size; so does a function of yours with "
            "an argument branch: branch(block, blocks) makes the module of a block."
        )
    if shaken is not None:
        make = partial(ShakeDrop, alpha=shaken.alpha, beta=shaken.beta, per=shaken.per)
        return LinearDecay(make, shaken.last)
    assert deep is not None
    return LinearDecay(partial(StochasticDepth, per=deep.per), deep.last)


# --- at layers -------------------------------------------------------------------------------------------------------


@contextmanager
def on_trial(recipe: Recipe, task: Task, batch: Batch) -> Iterator[None]:
    """DropBlock acts, and every layer that is named is there and is reached; afterwards the model is without hooks."""
    for name, layers in (("dropblock", _dropped(recipe, task)), ("manifold_mixup", _mixed(recipe, task))):
        if layers:
            _check_reached(name, layers, task.model, batch)
    dropping = _dropblock(recipe, task)
    try:
        yield
    finally:
        if dropping is not None:
            dropping.remove()


def dropping(recipe: Recipe, task: Task) -> Progress:
    """Attach DropBlock, if the recipe has it; what is returned is told the progress before every step."""
    attached = _dropblock(recipe, task)
    if attached is None or recipe.dropblock is None or not recipe.dropblock.rises:
        return lambda progress: None
    return attached.at


def with_manifold_mixup(recipe: Recipe, task: Task, mix: Mixing, *, rank: int) -> Mixing:
    """`mix`, and manifold mixup in the same step, if the recipe has it. Labels are mixed in the order of the layers."""
    asked, exchange = recipe.manifold_mixup, recipe.exchange
    if asked is None:
        return mix
    mixup = ManifoldMixup(
        task.model,
        _mixed(recipe, task),
        alpha=asked.alpha,
        p=asked.p,
        per=asked.per,
        pairing="permutation" if exchange is None else exchange.pairing,
        seed=recipe.seed,
        rank=rank,
    )
    before = _before(exchange, task, mixup.layers) if exchange is not None and exchange.features else frozenset[str]()

    @contextmanager
    def block(batch: Batch, targets: Targets, step: int, on: bool) -> Iterator[Targets]:
        mixup.step = step
        plan = mixup.draw(targets)
        if plan.layer in before:
            with mixup(targets, plan=plan) as mixed, mix.block(batch, mixed, step, on) as both:
                yield both
        else:
            with mix.block(batch, targets, step, on) as exchanged, mixup(exchanged, plan=plan) as both:
                yield both

    return Mixing(block, lambda: {**mix.log(), **_named(mixup)})


def _named(mixup: ManifoldMixup) -> dict[str, float]:
    return {f"manifold_mixup_{name}": value for name, value in mixup.diagnostics(reset=True).flat().items()}


def _before(exchange: Exchange, task: Task, layers: tuple[str, ...]) -> frozenset[str]:
    """Those of the layers whose input comes before the place of the exchange in a forward pass."""
    place = layer_of(exchange, task.site)
    example = next(iter(task.batches.epoch(0)))
    reached = [site.layer for site in sites(task.model, _two(example))]
    if place not in reached:
        return frozenset()  # the exchange itself will say so
    at = reached.index(place)
    if exchange.where == "output":
        return frozenset(layer for layer in layers if reached.index(layer) <= at or layer.startswith(f"{place}."))
    return frozenset(layer for layer in layers if reached.index(layer) < at)


def _dropblock(recipe: Recipe, task: Task) -> DropBlock | None:
    asked = recipe.dropblock
    if asked is None:
        return None
    return DropBlock(task.model, _dropped(recipe, task), p=asked.p, block_size=asked.block_size)


def _dropped(recipe: Recipe, task: Task) -> tuple[str, ...]:
    asked = recipe.dropblock
    return () if asked is None else asked.layers or _stages(task, "dropblock")[2:]


def _mixed(recipe: Recipe, task: Task) -> tuple[str, ...]:
    asked = recipe.manifold_mixup
    if asked is None or asked.layers:
        return () if asked is None else asked.layers
    first, _, *others = _stages(task, "manifold_mixup")
    return (first, *others)


def _stages(task: Task, name: str) -> tuple[str, ...]:
    if not task.stages:
        raise RecipeError(
            f"{name}.layers is not given, and nobody has recorded the stages of this model. Name layers: "
            "`momentex layers MODEL` lists them."
        )
    return task.stages


def _check_reached(name: str, layers: tuple[str, ...], model: nn.Module, batch: Batch) -> None:
    reached = {site.layer: site for site in sites(model, batch.inputs)}
    for layer in layers:
        if layer not in reached:
            near = did_you_mean(layer, reached)
            raise LayerNotFound(
                f"{name}.layers has {layer!r}, and a pass through {type(model).__name__} goes through no such layer. "
                f"{near} `momentex layers MODEL` lists its layers.".replace("  ", " ")
            )
        if reached[layer].calls > 1:
            raise RecipeError(
                f"{name}.layers has {layer!r}, which is called {reached[layer].calls} times: name another."
            )


def _two(batch: Batch) -> tuple[object, ...]:
    return take(batch, slice(0, 2)).inputs
