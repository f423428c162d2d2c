"""Every recipe trains: each distinct pair of a model and what is done to it, two steps at a batch of four."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from momentex import Targets, models, recipes
from momentex.train.features import branch
from momentex.train.place import Place
from momentex.train.recipe import Recipe
from momentex.train.run import prepare, train_step
from momentex.train.task import Batch, Task

HERE = Place(torch.device("cpu"))
SIDE = 16  # of the images: all these models take any, and those of the paper are too slow at 32 for every run of tests
METHODS = ("cutout", "mixup", "cutmix", "exchange", "manifold_mixup", "dropblock", "shakedrop", "stochastic_depth")
LARGE = 5_000_000  # parameters: those of the paper's large models


class Drawn:
    """Two batches of four images of noise, and a class for each."""

    sizes = [4, 4]  # noqa: RUF012

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(number)
        for _ in self.sizes:
            x = torch.randn(4, self.channels, SIDE, SIDE, generator=generator)
            yield Batch((x,), torch.randint(10, (4,), generator=generator), {})


def loss(targets: Targets, output: Tensor, smoothing: float) -> Tensor:
    return targets.cross_entropy(output, label_smoothing=smoothing)


def task(recipe: Recipe) -> Task:
    on_branches = branch(recipe)
    options = dict(recipe.model_options) | ({} if on_branches is None else {"branch": on_branches})
    return Task(
        model=models.build(recipe.model, 10, **options),
        site=models.first_site(recipe.model),
        batches=Drawn(int(recipe.model_options.get("in_channels", 3))),
        loss=partial(loss, smoothing=recipe.label_smoothing),
        fits=lambda output: None,
        evaluate=lambda model: {},
        split="test",
        facts={},
        num_classes=10,
        stages=models.stages(recipe.model),
    )


def kind(recipe: Recipe) -> str:
    """Model and what is done to it; recipes that differ in data and schedule alone are of one kind."""
    done = replace(Recipe(), **{name: getattr(recipe, name) for name in (*METHODS, "label_smoothing_others")})
    changed = [
        f"{f.name}={value}" for f in fields(Recipe) if (value := getattr(done, f.name)) != getattr(Recipe(), f.name)
    ]
    return " ".join([recipe.model, *(f"{k}={v}" for k, v in recipe.model_options.items()), *changed])


def kinds() -> dict[str, tuple[str, Recipe]]:
    """The first recipe of every kind."""
    found: dict[str, tuple[str, Recipe]] = {}
    for entry in recipes.names():
        found.setdefault(kind(entry.recipe), (entry.name, entry.recipe))
    return found


@cache
def is_large(model: str, options: tuple[tuple[str, Any], ...]) -> bool:
    with torch.device("meta"):
        return sum(p.numel() for p in models.build(model, 10, **dict(options)).parameters()) > LARGE


def marked() -> Iterator[Any]:
    for name, recipe in kinds().values():
        large = is_large(recipe.model, tuple(recipe.model_options.items()))
        yield pytest.param(recipe, id=name, marks=[pytest.mark.slow] if large else [])


@pytest.mark.filterwarnings("ignore::momentex.errors.MomentexWarning")  # features of noise may be constant somewhere
@pytest.mark.parametrize("recipe", list(marked()))
def test_two_steps_are_finite_and_move_the_weights(recipe: Recipe) -> None:
    torch.manual_seed(0)
    recipe = replace(recipe, batch_size=4, accumulate=1, precision="float32", channels_last=False, epochs=recipe.epochs)
    run = prepare(recipe, task(recipe), HERE)
    before = {name: p.detach().clone() for name, p in run.task.model.named_parameters()}
    for batch in run.task.batches.epoch(0):
        assert torch.isfinite(train_step(run, batch))
        run.at.step += 1
    moved = [name for name, p in run.task.model.named_parameters() if not torch.equal(p, before[name])]
    assert len(moved) > len(before) // 2
    assert all(bool(p.isfinite().all()) for p in run.task.model.parameters())
