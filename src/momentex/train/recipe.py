"""A recipe: everything that decides the result of a training run, as one frozen value. This module needs no torch.

A variant is `replace(recipe, epochs=10)`; every field is a flag of the command (`--epochs 10`, `--optimizer.lr 0.05`),
and the line below a field is its help. What contradicts itself is refused when the value is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from momentex.augment.values import CutMix, Cutout, Mixup
from momentex.errors import RecipeError
from momentex.over import PONO, Over
from momentex.train.regularizers import DropBlock, ManifoldMixup, ShakeDrop, StochasticDepth

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]
Option: TypeAlias = int | float | bool | str


def _need(fine: bool, problem: str) -> None:
    if not fine:
        raise RecipeError(problem)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which images, and how many of them."""

    name: Literal["digits", "cifar10", "cifar100", "folder"] = "cifar10"
    """The data set; "folder" is any folder with a folder of images for each class."""
    root: Path | None = None
    """Where data sets lie. Default: the folder that MOMENTEX_DATA names. It does not change the result."""
    folder: Path | None = None
    """The folder of images, for name="folder"."""
    size: int = 224
    """Height and width to which the images of a folder are brought."""
    shrink: int = 1
    """Average squares of so many pixels a side: 2 makes images of a quarter of the pixels, and training cheaper."""
    unreadable: float = 0.0
    """The share of a folder's images that may be unreadable; they are named and left out."""
    train_size: int | None = None
    """So many training images, the same number of each class, drawn by the seed. Default: all."""
    validation: int = 0
    """So many training images, the same number of each class, are held out, and evaluated in place of the test set."""

    def __post_init__(self) -> None:
        _need(
            (self.name == "folder") == (self.folder is not None),
            f"data.name is {self.name!r} and data.folder is {self.folder}: a folder of images needs both "
            "data.name='folder' and data.folder.",
        )
        _need(self.size >= 1, f"data.size is {self.size}; it is a number of pixels, 1 or more.")
        _need(self.shrink >= 1, f"data.shrink is {self.shrink}; it is a number of pixels, 1 or more.")
        _need(0 <= self.unreadable <= 1, f"data.unreadable is {self.unreadable}; it is a share between 0 and 1.")
        _need(
            self.train_size is None or self.train_size >= 1,
            f"data.train_size is {self.train_size}; it is a number of images, 1 or more.",
        )
        _need(self.validation >= 0, f"data.validation is {self.validation}; it is a number of images, 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to a training image; both draws are made anew for every image in every epoch."""

    crop_padding: int = 0
    """Pad with so many zeros on every side, and cut out the original size at a random place."""
    flip: bool = False
    """Mirror every other image, by a coin."""
    mean: tuple[float, ...] | None = None
    """Subtract this from each channel (of values from 0 to 1). Default: the data set's."""
    std: tuple[float, ...] | None = None
    """Divide each channel by this. Default: the data set's."""

    def __post_init__(self) -> None:
        _need(self.crop_padding >= 0, f"augment.crop_padding is {self.crop_padding}; it is 0 or more pixels.")
        _need(
            (self.mean is None) == (self.std is None) and len(self.mean or ()) == len(self.std or ()),
            f"augment.mean is {self.mean} and augment.std {self.std}: a number for each channel in both, or neither.",
        )
        _need(all(s > 0 for s in self.std or ()), f"augment.std is {self.std}; every number must be above 0.")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Moment Exchange: where, how, how often."""

    layer: str | None = None
    """Name of a child module. Default: the input of the first stage, where the model's entry in the zoo records it."""
    where: Literal["input", "output"] = "input"
    """Act on what the layer takes or on what it returns."""
    over: Over = PONO()
    """What the moments range over: pono, in, ln, gn4, lrn on the command line."""
    lam: float = 0.9
    """λ, the weight of the sample's own label."""
    p: float = 0.5
    """The probability of exchanging."""
    per: Literal["batch", "sample"] = "batch"
    """One coin for a batch, or one for each sample."""
    pairing: Literal["permutation", "derangement", "other_class", "same_class"] = "permutation"
    """Who may be whose partner."""
    features: bool = True
    """False: the labels are mixed with the same pairs and the features are not; the control."""
    labels: Literal["partner", "others"] = "partner"
    """Mix a label with that of the partner, or evenly with all other classes: the paper's "with label smoothing"."""
    off_epochs: int = 0
    """So many last epochs without it."""
    channel_dim: int = 1
    """The axis of the channels at the layer."""
    skip: int = 0
    """So many first positions (class tokens) are left alone."""
    eps: float = 1e-5
    """Under the root of the variance."""
    compiled: bool = False
    """Compile the operator alone. It does not change what is computed, but its last bits."""

    def __post_init__(self) -> None:
        for name, value in (("lam", self.lam), ("p", self.p)):
            _need(0 <= value <= 1, f"exchange.{name} is {value}; it must lie between 0 and 1.")
        _need(self.p > 0, "exchange.p is 0: nothing would ever be exchanged. Leave exchange out, or set p above 0.")
        _need(
            self.labels in ("partner", "others"),
            f"exchange.labels is {self.labels!r}; it is 'partner' (whose label is mixed in) or 'others' (all classes).",
        )
        _need(
            self.labels == "partner" or (self.features and self.lam < 1),
            "exchange.labels is 'others', which smoothes labels where features are exchanged: that needs "
            "exchange.features, and exchange.lam below 1.",
        )
        _need(
            self.features or self.lam < 1,
            "exchange.features is False and exchange.lam is 1: neither features nor labels would be mixed.",
        )
        _need(self.off_epochs >= 0, f"exchange.off_epochs is {self.off_epochs}; it is 0 or more epochs.")
        _need(self.eps > 0, f"exchange.eps is {self.eps}; it must be above 0.")


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        _check_optimizer(self.lr, self.weight_decay)
        _need(0 <= self.momentum < 1, f"optimizer.momentum is {self.momentum}; it must be 0 or more and below 1.")
        _need(not self.nesterov or self.momentum > 0, "optimizer.nesterov needs optimizer.momentum above 0.")


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; decoupled weight decay makes it AdamW."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _check_optimizer(self.lr, self.weight_decay)
        _need(
            all(0 <= b < 1 for b in self.betas), f"optimizer.betas are {self.betas}; each must be 0 or more, below 1."
        )
        _need(self.eps > 0, f"optimizer.eps is {self.eps}; it must be above 0.")


def _check_optimizer(lr: float, weight_decay: float) -> None:
    _need(lr > 0, f"optimizer.lr is {lr}; it must be above 0.")
    _need(weight_decay >= 0, f"optimizer.weight_decay is {weight_decay}; it must be 0 or more.")


Optimizer: TypeAlias = SGD | Adam


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The learning rate stays."""

    warmup_epochs: float = 0.0
    """Rise linearly, step by step, over so many first epochs."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The learning rate is multiplied by `gamma` at the start of some epochs."""

    milestones: tuple[int, ...] = ()
    """Epochs, counted from 0, before which it falls."""
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    """Rise linearly, step by step, over so many first epochs."""


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """The learning rate falls along half a cosine, step by step, to `final_lr` at the last step."""

    final_lr: float = 0.0
    warmup_epochs: float = 0.0
    """Rise linearly, step by step, over so many first epochs; the cosine spans the others."""


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """The learning rate is multiplied by `gamma` when the NLL of held-out images did not fall for `patience` epochs."""

    patience: int = 5
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    """Rise linearly, step by step, over so many first epochs."""


@dataclass(frozen=True, kw_only=True)
class InverseSqrt:
    """Linear warm-up for `warmup_steps` steps, then lr · sqrt(warmup_steps / step)."""

    warmup_steps: int = 4000


Schedule: TypeAlias = Constant | Steps | Cosine | Plateau | InverseSqrt


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured, and when."""

    every: int = 1
    """Evaluate after every so many epochs, and after the last."""
    batch_size: int = 500
    clean_train: bool = False
    """Also the accuracy on the training images as they are, without augmentation and exchange."""

    def __post_init__(self) -> None:
        _need(self.every >= 1, f"evaluation.every is {self.every}; it is a number of epochs, 1 or more.")
        _need(self.batch_size >= 1, f"evaluation.batch_size is {self.batch_size}; it must be 1 or more.")


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What the paper reports for this recipe: error in % ± standard error, and where that stands."""

    error: float
    sem: float | None = None
    where: str = ""
    cited: bool = False
    """The paper copies the number from another one."""
    top5: float | None = None
    """The top-5 error, where the paper has that too."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run. Fields that do not change its result: data.root, checkpoint_steps, paper."""

    data: Data = Data()
    augment: Augment = Augment()
    model: str = "cifar:resnet20"
    """cifar:NAME, torchvision:NAME, timm:NAME, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""
    model_options: Mapping[str, Option] = field(default_factory=dict)
    """Further arguments of the function that builds the model."""
    cutout: Cutout | None = None
    """First, on its way to the model, a square of each image is set to zero."""
    mixup: Mixup | None = None
    """Then images and targets are averaged with those of a partner."""
    cutmix: CutMix | None = None
    """Then a box of the partner is pasted, and targets are mixed by its area."""
    exchange: Exchange | None = None
    manifold_mixup: ManifoldMixup | None = None
    """Features of a layer, drawn anew for each step, are averaged with those of a partner."""
    dropblock: DropBlock | None = None
    """Squares of features are dropped."""
    shakedrop: ShakeDrop | None = None
    """Residual branches are multiplied by noise."""
    stochastic_depth: StochasticDepth | None = None
    """Residual branches are left out by a coin."""
    epochs: int = 200
    batch_size: int = 128
    """Images of a step, over all devices together."""
    accumulate: int = 1
    """A step's images go through the model in so many parts, one after the other; each part exchanges by itself."""
    optimizer: Optimizer = SGD()
    schedule: Schedule = Constant()
    clip: float | None = None
    """The norm to which the gradients of a step are cut."""
    label_smoothing: float = 0.0
    """Spread so much of each label over all classes."""
    label_smoothing_others: float = 0.0
    """Spread so much of each label over the other classes alone, as the paper's ablation does."""
    ema: float | None = None
    """Also average the weights with this decay, and evaluate the average."""
    precision: Precision = "float32"
    """Autocast to bfloat16 or float16."""
    channels_last: bool = False
    """The memory format that convolutions like better on most hardware."""
    compile: bool = False
    """torch.compile the model."""
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    checkpoint_steps: int | None = None
    """Save every so many steps as well as after each epoch."""
    paper: Reported | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            value = getattr(self, name)
            _need(value >= 1, f"{name} is {value}; it must be 1 or more.")
        _need(
            self.accumulate <= self.batch_size,
            f"accumulate is {self.accumulate} and batch_size {self.batch_size}: a part would be empty.",
        )
        _need(self.clip is None or self.clip > 0, f"clip is {self.clip}; it is a norm above 0.")
        for name in ("label_smoothing", "label_smoothing_others"):
            value = getattr(self, name)
            _need(0 <= value < 1, f"{name} is {value}; it is below 1, 0 or more.")
        _check_labels(self.label_smoothing, self.label_smoothing_others, self.exchange)
        _need(self.ema is None or 0 < self.ema < 1, f"ema is {self.ema}; it is a decay between 0 and 1, exclusive.")
        _need(
            self.checkpoint_steps is None or self.checkpoint_steps >= 1,
            f"checkpoint_steps is {self.checkpoint_steps}; it is a number of steps, 1 or more.",
        )
        _need(0 <= self.seed < 2**63, f"seed is {self.seed}; it is a whole number, 0 or more, that fits into 63 bits.")
        _need(":" in self.model, f"model is {self.model!r}; it is written as cifar:resnet20 or FILE.py:FUNCTION.")
        _check_schedule(self.schedule, self.epochs, self.data)
        if self.exchange is not None:
            _need(
                self.exchange.off_epochs < self.epochs,
                f"exchange.off_epochs is {self.exchange.off_epochs} of {self.epochs} epochs: nothing would ever be "
                "exchanged.",
            )


def _check_labels(smoothing: float, others: float, exchange: Exchange | None) -> None:
    _need(
        not (smoothing and others),
        f"label_smoothing is {smoothing} and label_smoothing_others {others}: two forms of one method. Leave one out.",
    )
    _need(
        exchange is None or exchange.labels == "partner" or not (smoothing or others),
        "exchange.labels is 'others', which smoothes labels by itself: leave label_smoothing and "
        "label_smoothing_others out.",
    )


def _check_schedule(schedule: Schedule, epochs: int, data: Data) -> None:
    if isinstance(schedule, InverseSqrt):
        _need(schedule.warmup_steps >= 1, f"schedule.warmup_steps is {schedule.warmup_steps}; it must be 1 or more.")
        return
    _need(
        0 <= schedule.warmup_epochs < epochs,
        f"schedule.warmup_epochs is {schedule.warmup_epochs} of {epochs} epochs; it must be 0 or more, and fewer.",
    )
    if isinstance(schedule, Cosine):
        _need(schedule.final_lr >= 0, f"schedule.final_lr is {schedule.final_lr}; it must be 0 or more.")
    if isinstance(schedule, Steps):
        _need(schedule.gamma > 0, f"schedule.gamma is {schedule.gamma}; it must be above 0.")
        rising = all(a < b for a, b in zip(schedule.milestones, schedule.milestones[1:], strict=False))
        inside = all(0 < m < epochs for m in schedule.milestones)
        _need(
            rising and inside,
            f"schedule.milestones are {schedule.milestones}; they must rise and lie between 0 and epochs = {epochs}, "
            "exclusive.",
        )
        _need(
            not schedule.milestones or schedule.warmup_epochs <= schedule.milestones[0],
            f"schedule.warmup_epochs is {schedule.warmup_epochs}, after the first milestone of {schedule.milestones}.",
        )
    if isinstance(schedule, Plateau):
        _need(schedule.patience >= 0, f"schedule.patience is {schedule.patience}; it must be 0 or more.")
        _need(0 < schedule.gamma < 1, f"schedule.gamma is {schedule.gamma}; it must lie between 0 and 1, exclusive.")
        _need(
            data.validation > 0,
            "a Plateau schedule looks at the NLL of held-out images, so that no choice is made on the test set: set "
            "data.validation.",
        )
