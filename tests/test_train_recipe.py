"""A recipe that contradicts itself cannot be made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from momentex.errors import RecipeError
from momentex.train import recipe as parts
from momentex.train.recipe import (
    SGD,
    Adam,
    Augment,
    Constant,
    Cosine,
    Data,
    Evaluation,
    Exchange,
    InverseSqrt,
    Plateau,
    Recipe,
    Schedule,
    Steps,
)

HELD_OUT = Data(name="digits", validation=100)

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Data(name="folder"), r"data\.name is 'folder' and data\.folder is None: a folder of images needs both"),
    (lambda: Data(name="cifar10", folder=Path("x")), r"data\.name is 'cifar10' and data\.folder is x: .* needs both"),
    (lambda: Data(size=0), r"data\.size is 0; it is a number of pixels, 1 or more"),
    (lambda: Data(shrink=0), r"data\.shrink is 0; it is a number of pixels, 1 or more"),
    (lambda: Data(unreadable=1.5), r"data\.unreadable is 1\.5; it is a share between 0 and 1"),
    (lambda: Data(train_size=0), r"data\.train_size is 0; it is a number of images, 1 or more"),
    (lambda: Data(validation=-1), r"data\.validation is -1; it is a number of images, 0 or more"),
    (lambda: Augment(crop_padding=-1), r"augment\.crop_padding is -1; it is 0 or more pixels"),
    (
        lambda: Augment(mean=(0.5,)),
        r"augment\.mean is \(0\.5,\) and augment\.std None: a number for each channel in bot",
    ),
    (lambda: Augment(mean=(0.5,), std=(1.0, 1.0)), r"a number for each channel in both, or neither"),
    (lambda: Augment(mean=(0.5,), std=(0.0,)), r"augment\.std is \(0\.0,\); every number must be above 0"),
    (lambda: Exchange(lam=1.1), r"exchange\.lam is 1\.1; it must lie between 0 and 1"),
    (lambda: Exchange(p=math.nan), r"exchange\.p is nan; it must lie between 0 and 1"),
    (lambda: Exchange(p=0), r"exchange\.p is 0: nothing would ever be exchanged"),
    (lambda: Exchange(features=False, lam=1), r"exchange\.features is False and exchange\.lam is 1: neither"),
    (lambda: Exchange(off_epochs=-1), r"exchange\.off_epochs is -1; it is 0 or more epochs"),
    (lambda: Exchange(eps=0), r"exchange\.eps is 0; it must be above 0"),
    (lambda: SGD(lr=0), r"optimizer\.lr is 0; it must be above 0"),
    (lambda: SGD(lr=math.nan), r"optimizer\.lr is nan; it must be above 0"),
    (lambda: SGD(weight_decay=-1), r"optimizer\.weight_decay is -1; it must be 0 or more"),
    (lambda: SGD(momentum=1), r"optimizer\.momentum is 1; it must be 0 or more and below 1"),
    (lambda: SGD(momentum=0, nesterov=True), r"optimizer\.nesterov needs optimizer\.momentum above 0"),
    (lambda: Adam(betas=(0.9, 1.0)), r"optimizer\.betas are \(0\.9, 1\.0\); each must be 0 or more, below 1"),
    (lambda: Adam(eps=0), r"optimizer\.eps is 0; it must be above 0"),
    (lambda: Evaluation(every=0), r"evaluation\.every is 0; it is a number of epochs, 1 or more"),
    (lambda: Evaluation(batch_size=0), r"evaluation\.batch_size is 0; it must be 1 or more"),
    (lambda: Recipe(epochs=0), r"epochs is 0; it must be 1 or more"),
    (lambda: Recipe(batch_size=0), r"batch_size is 0; it must be 1 or more"),
    (lambda: Recipe(accumulate=0), r"accumulate is 0; it must be 1 or more"),
    (lambda: Recipe(accumulate=9, batch_size=8), r"accumulate is 9 and batch_size 8: a part would be empty"),
    (lambda: Recipe(clip=0), r"clip is 0; it is a norm above 0"),
    (lambda: Recipe(label_smoothing=1), r"label_smoothing is 1; it is below 1, 0 or more"),
    (lambda: Recipe(ema=1), r"ema is 1; it is a decay between 0 and 1, exclusive"),
    (lambda: Recipe(checkpoint_steps=0), r"checkpoint_steps is 0; it is a number of steps, 1 or more"),
    (lambda: Recipe(seed=-1), r"seed is -1; it is a whole number, 0 or more"),
    (lambda: Recipe(seed=2**63), r"seed is 9223372036854775808; .* that fits into 63 bits"),
    (lambda: Recipe(model="resnet20"), r"model is 'resnet20'; it is written as cifar:resnet20 or FILE\.py:FUNCTION"),
    (
        lambda: Recipe(epochs=3, exchange=Exchange(off_epochs=3)),
        r"exchange\.off_epochs is 3 of 3 epochs: nothing would",
    ),
    (
        lambda: Recipe(epochs=2, schedule=Constant(warmup_epochs=2)),
        r"schedule\.warmup_epochs is 2 of 2 epochs; it must",
    ),
    (lambda: Recipe(schedule=Cosine(final_lr=-1)), r"schedule\.final_lr is -1; it must be 0 or more"),
    (lambda: Recipe(schedule=Steps(gamma=0)), r"schedule\.gamma is 0; it must be above 0"),
    (lambda: Recipe(schedule=Steps(milestones=(5, 5))), r"schedule\.milestones are \(5, 5\); they must rise"),
    (lambda: Recipe(epochs=5, schedule=Steps(milestones=(5,))), r"lie between 0 and epochs = 5, exclusive"),
    (
        lambda: Recipe(schedule=Steps(milestones=(2,), warmup_epochs=3)),
        r"warmup_epochs is 3, after the first milestone",
    ),
    (lambda: Recipe(schedule=InverseSqrt(warmup_steps=0)), r"schedule\.warmup_steps is 0; it must be 1 or more"),
    (lambda: Recipe(schedule=Plateau()), r"looks at the NLL of held-out images, .*: set data\.validation"),
    (lambda: Recipe(data=HELD_OUT, schedule=Plateau(patience=-1)), r"schedule\.patience is -1; it must be 0 or more"),
    (
        lambda: Recipe(data=HELD_OUT, schedule=Plateau(gamma=1)),
        r"schedule\.gamma is 1; it must lie between 0 and 1, ex",
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_contradicts_itself_is_refused_when_it_is_made(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        make()


def test_a_variant_is_checked_as_well() -> None:
    with pytest.raises(RecipeError, match="epochs is 0"):
        replace(Recipe(), epochs=0)


def test_every_part_is_a_frozen_value() -> None:
    kinds = [kind for kind in vars(parts).values() if isinstance(kind, type) and is_dataclass(kind)]
    kinds = [kind for kind in kinds if kind.__module__ == parts.__name__]
    assert len(kinds) > 10
    for kind in kinds:
        made = kind(error=1.0) if kind is parts.Reported else kind()
        with pytest.raises(FrozenInstanceError):
            setattr(made, fields(made)[0].name, None)


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_every_schedule_goes_with_a_recipe_as_it_comes(schedule: type) -> None:
    assert Recipe(data=HELD_OUT, schedule=schedule()).schedule == schedule()
