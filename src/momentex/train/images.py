"""Image classification as a task: data, model and metrics of a recipe."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentex import data, models
from momentex.augment.label_smoothing import over_all
from momentex.data import Arrays, Form, Loaded, Normalize, Part, Resident, cifar, digits, folder
from momentex.errors import DataError, RecipeError
from momentex.evaluate.calibration import BINS, bin_sums, expected_error
from momentex.pairing import stream
from momentex.targets import Targets
from momentex.train.features import branch
from momentex.train.place import Place
from momentex.train.recipe import Augment, Data, Recipe
from momentex.train.task import Batch, Task

CIFAR = Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # of CIFAR-10, and used for CIFAR-100 as well
IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = Normalize((0.3056,), (0.3762,))  # of the training half, as data.digits splits it
NORMALIZE = {"cifar10": CIFAR, "cifar100": CIFAR, "folder": IMAGENET, "digits": DIGITS}


Pair = tuple[Tensor, Tensor]


def classification(recipe: Recipe, place: Place) -> Task:
    """The task of a recipe: everything that can be wrong with data and model is an error here, before training."""
    arrays, held, split = chosen(recipe.data, recipe.seed)
    decided = sorted({"name", "num_classes", "branch"} & recipe.model_options.keys())
    if decided:
        raise RecipeError(f"model_options has {', '.join(decided)}, which the recipe decides. Leave it out.")
    options: dict[str, Any] = dict(recipe.model_options)
    on_branches = branch(recipe)
    if on_branches is not None:
        options["branch"] = on_branches
    model = models.build(recipe.model, num_classes=len(arrays.classes), **options)
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = model.to(place.device).to(memory_format=layout)
    normalize = normalization(recipe.augment, recipe.data)
    form, part = Form(place.device, layout), Part(place.rank, place.world)
    train = Resident(
        arrays,
        recipe.batch_size,
        normalize,
        partial(stream, recipe.seed),
        augment=data.Augment(recipe.augment.crop_padding, recipe.augment.flip),
        form=form,
        part=part,
    )
    facts = {"classes": list(arrays.classes), "training": _digest(arrays), split: _digest(held)}
    measured = data.evaluation_batches(held, recipe.evaluation.batch_size, normalize, form=form, part=part)
    clean = data.evaluation_batches(arrays, recipe.evaluation.batch_size, normalize, form=form, part=part)
    return Task(
        model=model,
        site=models.first_site(recipe.model),
        batches=ImageBatches(train, len(arrays.images)),
        loss=partial(_loss, label_smoothing=_smoothing(recipe, len(arrays.classes))),
        fits=partial(_fits, recipe.model, len(arrays.classes)),
        evaluate=partial(_evaluate, recipe, place, measured, clean),
        split=split,
        facts=facts,
        num_classes=len(arrays.classes),
        stages=models.stages(recipe.model),
    )


def chosen(recipe: Data, seed: int) -> tuple[Arrays, Arrays, str]:
    """Training images, those to measure on, and what the latter are called."""
    loaded = load(recipe)
    train, held, split = loaded.train, loaded.test, "test"
    if recipe.validation:
        # not drawn by the run's seed: all seeds validate on the same images
        index, others = data.held_out(train.labels, recipe.validation, stream(0, 0, "validation"))
        train, held, split = train.taken(index), train.taken(others), "validation"
    if recipe.train_size is not None:
        train = train.taken(data.balanced_subset(train.labels, recipe.train_size, stream(seed, 0, "subset")))
    return train.shrunk(recipe.shrink), held.shrunk(recipe.shrink), split


def load(recipe: Data) -> Loaded:
    """The data set that a recipe names."""
    if recipe.name == "digits":
        return digits.load()
    if recipe.name == "folder":
        if recipe.folder is None:
            raise RecipeError("data.folder is not given.")
        return folder.load(recipe.folder, recipe.size, unreadable=recipe.unreadable)
    return cifar.load(data_root(recipe), recipe.name)


def data_root(recipe: Data) -> Path:
    """Where data sets lie."""
    root = recipe.root or os.environ.get("MOMENTEX_DATA")
    if root is None:
        raise DataError(
            f"where {recipe.name} lies was not said: give --data.root DIR, or set MOMENTEX_DATA. "
            f"`momentex data get {recipe.name} --to DIR` fetches it."
        )
    return Path(root).expanduser()


def normalization(augment: Augment, recipe: Data) -> Normalize:
    """What the recipe says, or the data set's."""
    if augment.mean is None or augment.std is None:
        return NORMALIZE[recipe.name]
    return Normalize(augment.mean, augment.std)


class ImageBatches:
    """Batches of images that lie in memory, as the loop wants them."""

    def __init__(self, resident: Resident, images: int) -> None:
        self._resident = resident
        self.sizes = [min(resident.batch_size, images - i * resident.batch_size) for i in range(len(resident))]

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        return (Batch((x,), y, {}) for x, y in self._resident.epoch(number, start))


def _smoothing(recipe: Recipe, classes: int) -> float:
    """Over all classes, whatever the form that the recipe asks for."""
    if not recipe.label_smoothing_others:
        return recipe.label_smoothing
    return float(over_all(recipe.label_smoothing_others, classes, "others"))


def _loss(targets: Targets, output: Any, *, label_smoothing: float) -> Tensor:
    return targets.cross_entropy(output, label_smoothing=label_smoothing)


def _fits(model: str, classes: int, output: Any) -> None:
    if not isinstance(output, Tensor) or output.ndim != 2:
        given = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise RecipeError(f"{model} returns {given} in train mode; it must return logits, a tensor (batch, classes).")
    if output.shape[1] != classes:
        raise RecipeError(
            f"{model} returns {output.shape[1]} logits for an image, and the data has {classes} classes. A function of "
            "yours is called with num_classes=… if it has an argument of that name."
        )


def _digest(arrays: Arrays) -> str:
    """How many images there are, and a checksum of them and their labels."""
    total = 0
    for tensor in (arrays.images, arrays.labels):
        total = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, total)
    return f"{len(arrays.images)} images, crc32 {total:08x}"


def _evaluate(
    recipe: Recipe, place: Place, held: Iterable[Pair], clean: Iterable[Pair], model: nn.Module
) -> dict[str, float]:
    with place.autocast(recipe.precision):
        found = classification_metrics(model, held, place.sum)
        if recipe.evaluation.clean_train:
            found["train_error"] = classification_metrics(model, clean, place.sum)["error"]
    return found


def classification_metrics(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    add: Callable[[list[float]], list[float]] = lambda sums: sums,
) -> dict[str, float]:
    """Top-1 and (of more than five classes) top-5 error in %, the negative log-likelihood, and the expected calibration
    error in %; `add` sums processes.
    """
    rows: list[Tensor] = []
    classes = count = 0
    for x, y in batches:
        logits = model(x).float()
        classes = logits.shape[1]
        best = logits.topk(min(5, classes), dim=1).indices == y[:, None]
        nll = F.cross_entropy(logits, y, reduction="sum")
        sums = torch.stack([best[:, 0].sum().float(), best.any(1).sum().float(), nll])
        rows.append(torch.cat([sums, bin_sums(logits.softmax(1), y).flatten()]))
        count += len(y)
    # looked at once, so that no batch waits; and added up in float64, on the CPU, since not every device has it
    sums_here = torch.stack(rows).cpu().double().sum(0).tolist() if rows else [0.0] * (3 + 3 * BINS)
    top1, top5, nll_sum, *bins, images = add([*sums_here, float(count)])
    found = {"error": 100 * (1 - top1 / images), "nll": nll_sum / images}
    found["calibration"] = expected_error(torch.tensor(bins, dtype=torch.float64).view(3, BINS))
    return found | ({"error_top5": 100 * (1 - top5 / images)} if classes > 5 else {})
