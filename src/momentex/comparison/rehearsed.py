"""Every arm once with two samples, before any is trained: an arm that cannot be is found out now, not after hours."""

from __future__ import annotations

from dataclasses import replace

import torch

from momentex.comparison.design import Design
from momentex.errors import MomentexError
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Recipe
from momentex.train.rehearsal import rehearse
from momentex.train.task import Task


def rehearse_arms(design: Design) -> None:
    """An error that names the arm; nothing is left behind."""
    place = Place.here()
    tasks: list[tuple[Recipe, Task]] = []  # data is read once for the arms that have the same
    with torch.random.fork_rng(devices=[place.device] if place.device.type == "cuda" else []):
        for arm, recipe in design.recipes.items():
            recipe = replace(recipe, seed=design.comparison.seeds[0])
            plain = replace(recipe, exchange=None)
            try:
                task = next((task for made_of, task in tasks if made_of == plain), None)
                if task is None:
                    task = classification(plain, place)
                    tasks.append((plain, task))
                rehearse(recipe, task, place)
            except MomentexError as error:
                raise type(error)(f"the arm {arm}: {error}") from error
