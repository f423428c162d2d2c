"""Recipes of a size for a CPU: to see that everything works, and what a short training can show. None is of the paper.

The paper's schedule for this family of ResNets (164 epochs with steps) is too long for a CPU; these train along a
cosine. bfloat16 and channels_last are there for speed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

from momentex.over import IN
from momentex.recipes.arms import DEFAULT, Named, Usual, named, plain, setting
from momentex.train.recipe import SGD, Augment, Cosine, Data, Evaluation, Exchange, Recipe


def digits() -> Recipe:
    """ResNet-8 on 50 of scikit-learn's handwritten digits.

    The data comes with scikit-learn: nothing is downloaded. The number of images, learning rate and weight decay were
    chosen on held-out images by benchmarks/choose_digits.py, the latter two for the baseline. Images of 8×8 pixels,
    five of each class: what helps here need not help elsewhere.
    """
    return Recipe(
        data=Data(name="digits", train_size=50),
        model="cifar:resnet",
        model_options={"depth": 8, "in_channels": 1, "width": 16},
        epochs=80,
        batch_size=25,
        optimizer=SGD(lr=0.2, nesterov=True, weight_decay=1e-2),
        schedule=Cosine(),
        evaluation=Evaluation(every=10),
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

USUAL = {
    "digits": Usual(
        arms=(*DEFAULT, "moex_paper"), seeds=20, exchange=Exchange(over=IN(), layer="layer2", lam=0.5, p=1.0)
    )
}
ADVICE = "Exchange: λ = 0.9, p = 0.5, PONO, before the first stage: the paper's general advice (Sec. 3)."


def table() -> Iterator[Named]:
    """Every recipe of this module."""
    for name, make in RECIPES.items():
        about, usual = inspect.getdoc(make) or "", USUAL.get(name, Usual())
        yield plain(name, make, about, usual)
        for arm in named(name, "", make, about, exchange=usual.exchange, advice=_advice(usual)):
            yield replace(arm, usual=usual)


def _advice(usual: Usual) -> str:
    if usual.exchange is None:
        return ADVICE
    return f"""\
Exchange: {setting(usual.exchange)}: chosen by benchmarks/choose_digits.py on images that
were held out of the training half, with seeds that no table has. The paper's general advice is the arm moex_paper."""
