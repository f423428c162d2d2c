"""Every arm once with two samples, before any is trained: an arm that cannot be is found out now, not after hours."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import torch

from momentex.comparison.design import Design
from momentex.errors import MomentexError
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Recipe
from momentex.train.rehearsal import rehearse
from momentex.train.task import Task

KEPT = 4  # data sets in memory at a time


def rehearse_arms(design: Design) -> None:
    """An error that names the arm; nothing is left behind."""
    rehearse_each(design.recipes, design.comparison.seeds[0], "the arm")


def rehearse_each(recipes: Mapping[str, Recipe], seed: int, what: str) -> None:
    """An error that names the recipe, as `what` it is; nothing is left behind."""
    place = Place.here()
    tasks: deque[tuple[Recipe, Task]] = deque(maxlen=KEPT)  # data is read once for the recipes that have the same
    with torch.random.fork_rng(devices=[place.device] if place.device.type == "cuda" else []):
        for name, recipe in recipes.items():
            recipe = replace(recipe, seed=seed)
            plain = replace(recipe, exchange=None)
            try:
                task = next((task for made_of, task in tasks if made_of == plain), None)
                if task is None:
                    task = classification(plain, place)
                    tasks.append((plain, task))
                rehearse(recipe, task, place)
            except MomentexError as error:
                raise type(error)(f"{what} {name}: {error}") from error
