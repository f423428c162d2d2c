"""Names of sweeps: each of the paper's ablations and searches, and a twin of it of a size for a CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from momentex.ablations import exchanges
from momentex.errors import RecipeError
from momentex.recipes import cifar, find, names, small
from momentex.sweep.grid import Sweep
from momentex.train.recipe import Recipe

HELD_OUT = 5000  # of CIFAR-100's 50,000 training images
DIGITS_HELD_OUT = 300  # of the 899 training images of the digits, before the training images are drawn from the others


@dataclass(frozen=True, kw_only=True)
class Named:
    """A sweep that has a name.

    build  makes it of the recipe that `base` returns, which has no number of the paper, and a title
    seeds  so many are run unless others are asked for
    """

    name: str
    title: str
    build: Callable[[Recipe, str], Sweep]
    base: Callable[[], Recipe]
    seeds: int = 3

    def make(self) -> Sweep:
        """The sweep."""
        try:
            base = self.base()
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error} Its twin on digits is there: {twin_of(self.name)}.") from error
        return self.build(replace(base, paper=None), self.title)

    @property
    def note(self) -> str:
        """Its title, and what its function says."""
        build = self.build.func if isinstance(self.build, partial) else self.build
        return f"{self.title}\n\n{inspect.getdoc(build) or ''}"


def twin_of(name: str) -> str:
    """The twin of one of the paper's sweeps.

    >>> twin_of("ablation.moments"), twin_of("search.speech")
    ('digits.moments', 'digits.search_speech')
    """
    return name.replace("ablation.", "digits.").replace("search.", "digits.search_")


# --- what they are over ----------------------------------------------------------------------------------------------


def resnet110() -> Recipe:
    """As in the paper's tables of CIFAR-100."""
    return cifar.resnet110("cifar100")


def validated(base: Callable[[], Recipe], images: int) -> Recipe:
    """Measured on so many training images, which are held out."""
    recipe = base()
    return replace(recipe, data=replace(recipe.data, validation=images))


def recipe(name: str) -> Recipe:
    """A recipe by its name, which a later version may have."""
    if name not in {entry.name for entry in names()}:
        raise RecipeError(f"this is over the recipe {name}, which this version does not have.")
    return find(name)


# --- the table -------------------------------------------------------------------------------------------------------

PAPER = (
    Named(
        name="ablation.moments",
        title="Moments to exchange: ResNet-110 on CIFAR-100",
        build=partial(exchanges.moments, reported=True),
        base=resnet110,
    ),
    Named(
        name="ablation.design",
        title="Design choices: ResNet-110 on CIFAR-100",
        build=partial(exchanges.design, reported=True),
        base=resnet110,
    ),
    Named(
        name="ablation.moments_layer",
        title="Moments × layer: ResNet-110 on CIFAR-100",
        build=partial(exchanges.moments_layer, reported=True),
        base=resnet110,
    ),
    Named(
        name="ablation.moments_layer_search",
        title="Moments × layer, the best of λ and p: ResNet-110 on CIFAR-100, held-out images",
        build=partial(exchanges.moments_layer_search, reported=True),
        base=partial(validated, resnet110, HELD_OUT),
    ),
    Named(
        name="ablation.lambda_p",
        title="λ × p: ResNet-110 on CIFAR-100",
        build=exchanges.lambda_p,
        base=resnet110,
    ),
    Named(
        name="ablation.lambda_p_imagenet",
        title="λ × p: ResNet-50 on ImageNet, 300 epochs",
        build=partial(exchanges.lambda_p_rows, reported=True),
        base=partial(recipe, "imagenet.resnet50_300"),
    ),
    Named(
        name="search.modelnet",
        title="Moments × p × λ: PointNet++ on ModelNet10",
        build=exchanges.search_modelnet,
        base=partial(recipe, "modelnet10.pointnet2"),
    ),
    Named(
        name="search.speech",
        title="p × λ: WRN-28-10 on Speech Commands",
        build=exchanges.search_speech,
        base=partial(recipe, "speech.wrn_28_10"),
    ),
    Named(
        name="search.iwslt",
        title="p × λ: DynamicConv on IWSLT'14, German to English",
        build=exchanges.search_iwslt,
        base=partial(recipe, "iwslt.de_en"),
    ),
)
ON_HELD_OUT = ("moments_layer_search", "search_modelnet", "search_speech", "search_iwslt")


def _on_digits(paper: Named) -> Named:
    """The twin of one of the paper's: 20 seeds, seconds each."""
    name = twin_of(paper.name)
    held_out = name.partition(".")[2] in ON_HELD_OUT
    return Named(
        name=name,
        title=f"{paper.title.partition(':')[0]}: ResNet-8 on digits{', held-out images' if held_out else ''}",
        build=paper.build.func if isinstance(paper.build, partial) else paper.build,
        base=partial(validated, small.digits, DIGITS_HELD_OUT) if held_out else small.digits,
        seeds=20,
    )


def table() -> list[Named]:
    """Every sweep, the paper's before their twins."""
    small_images = Named(
        name="cifar10_5k.moments_layer",
        title="Moments × layer: ResNet-20 on 5,000 images of CIFAR-10",
        build=exchanges.moments_layer,
        base=small.cifar10_resnet20_5k,
    )
    small_design = Named(
        name="cifar10_5k.design",
        title="Design choices: ResNet-20 on 5,000 images of CIFAR-10",
        build=exchanges.design,
        base=small.cifar10_resnet20_5k,
    )
    return [*PAPER, *map(_on_digits, PAPER), small_design, small_images]
