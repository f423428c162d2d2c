"""Recipes of a size for a CPU: to see that everything works, and what a short training can show. None is of the paper.

The paper's schedule for this family of ResNets (164 epochs with steps) is too long for a CPU; these train along a
cosine. bfloat16 and channels_last are there for speed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

from momentex.recipes.arms import Named, Usual, named, plain
from momentex.train.recipe import SGD, Augment, Cosine, Data, Evaluation, Recipe


def digits() -> Recipe:
    """ResNet-8 on 100 of scikit-learn's handwritten digits.

    The data comes with scikit-learn: nothing is downloaded.
    """
    return Recipe(
        data=Data(name="digits", train_size=100),
        model="cifar:resnet",
        model_options={"depth": 8, "in_channels": 1, "width": 16},
        epochs=40,
        batch_size=25,
        optimizer=SGD(lr=0.1, nesterov=True, weight_decay=1e-3),
        schedule=Cosine(),
        evaluation=Evaluation(every=5),
    )


def cifar10_resnet20() -> Recipe:
    """ResNet-20 on CIFAR-10, 40 epochs along a cosine.

    Optimiser, batches and augmentation are those of ResNet-110 in the paper's table.
    """
    return Recipe(
        data=Data(name="cifar10"),
        augment=Augment(crop_padding=4, flip=True),
        model="cifar:resnet20",
        epochs=40,
        batch_size=128,
        optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=Cosine(),
        precision="bfloat16",
        channels_last=True,
    )


def cifar10_resnet20_5k() -> Recipe:
    """ResNet-20 on 5,000 images of CIFAR-10, 40 epochs along a cosine.

    As cifar10.resnet20 with a tenth of its images, 500 of each class, and a warm-up of 5 epochs. The seed draws the
    images. Every fourth epoch is evaluated: the test set has twice as many images as an epoch.
    """
    return replace(
        cifar10_resnet20(),
        data=Data(name="cifar10", train_size=5000),
        schedule=Cosine(warmup_epochs=5),
        evaluation=Evaluation(every=4),
    )


def cifar10_wide_5k() -> Recipe:
    """ResNet-14, twice as wide, on 5,000 images of CIFAR-10 at 16×16.

    Two and a half times the weights of cifar10.resnet20_5k and half as many epochs again, on the same images: more for
    a regulariser to do. Squares of 2×2 pixels are averaged, which makes it affordable. Crops are padded by 2, which is
    to 16 pixels what 4 is to 32.
    """
    recipe = cifar10_resnet20_5k()
    return replace(
        recipe,
        data=Data(name="cifar10", train_size=5000, shrink=2),
        augment=Augment(crop_padding=2, flip=True),
        model="cifar:resnet",
        model_options={"depth": 14, "width": 32},
        epochs=60,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10.resnet20_5k": cifar10_resnet20_5k,
    "cifar10.wide_5k": cifar10_wide_5k,
    "cifar10.resnet20": cifar10_resnet20,
}

USUAL = {"digits": Usual(seeds=20)}
ADVICE = "Exchange: λ = 0.9, p = 0.5, PONO, before the first stage: the paper's general advice (Sec. 3)."


def table() -> Iterator[Named]:
    """Every recipe of this module."""
    for name, make in RECIPES.items():
        about, usual = inspect.getdoc(make) or "", USUAL.get(name, Usual())
        yield plain(name, make, about, usual)
        for arm in named(name, "", make, about, exchange=usual.exchange, advice=ADVICE):
            yield replace(arm, usual=usual)
