"""The models of the paper's CIFAR tables, and what is known of them. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentex.models.cifar.densenet import densenet_bc_100 as densenet_bc_100
    from momentex.models.cifar.densenet import densenet_bc_190 as densenet_bc_190
    from momentex.models.cifar.pyramidnet import pyramidnet_200 as pyramidnet_200
    from momentex.models.cifar.resnet import resnet20 as resnet20
    from momentex.models.cifar.resnet import resnet56 as resnet56
    from momentex.models.cifar.resnet import resnet110 as resnet110
    from momentex.models.cifar.resnext import resnext29_8x64d as resnext29_8x64d
    from momentex.models.cifar.wide_resnet import wrn_28_10 as wrn_28_10


@dataclass(frozen=True)
class Family:
    """Models that one function builds.

    builder   that function
    home      its module, under momentex.models.cifar
    source    the repository that the paper names, from which architecture and initial weights are taken
    site      the paper's "first layer": MoEx acts on the input of the layer of this name, the first stage
    there     what stands there
    stages    the first layer, which takes the input, and the stages
    """

    builder: str
    home: str
    source: str
    site: str
    there: str
    stages: tuple[str, ...] = ("conv1", "layer1", "layer2", "layer3")


@dataclass(frozen=True)
class Entry:
    """One model.

    builder          the function that builds it
    family           where that is, and where the paper exchanges moments
    parameters_10    how many there are with 10 classes, counted by building the model of family.source
    parameters_100   likewise with 100 classes
    paper            the column "#param." of the paper's tables; None where no table has the model
    """

    builder: str
    family: Family
    parameters_10: int
    parameters_100: int
    paper: str | None

    @property
    def source(self) -> str:
        return self.family.source

    @property
    def site(self) -> str:
        return self.family.site

    @property
    def there(self) -> str:
        return self.family.there


_BEARPAW, _CLOVAAI = "bearpaw/pytorch-classification", "clovaai/CutMix-PyTorch"
_RELU, _BARE, _BN = "after conv, BN and ReLU", "a bare convolution, no BN and no ReLU", "after conv and BN, no ReLU"

_RESNET = Family("resnet", "resnet", _BEARPAW, "layer1", _RELU)
_DENSENET = Family("densenet_bc", "densenet", _BEARPAW, "dense1", _BARE, ("conv1", "dense1", "dense2", "dense3"))
_RESNEXT = Family("resnext", "resnext", _BEARPAW, "layer1", _RELU)
_WIDE_RESNET = Family("wide_resnet", "wide_resnet", _BEARPAW, "layer1", _BARE)
_PYRAMIDNET = Family("pyramidnet", "pyramidnet", _CLOVAAI, "layer1", _BN)

FAMILIES: dict[str, Family] = {
    family.builder: family for family in (_RESNET, _DENSENET, _RESNEXT, _WIDE_RESNET, _PYRAMIDNET)
}

ZOO: dict[str, Entry] = {
    entry.builder: entry
    for entry in (
        Entry("resnet20", _RESNET, 272_474, 278_324, None),
        Entry("resnet56", _RESNET, 855_770, 861_620, None),
        Entry("resnet110", _RESNET, 1_730_714, 1_736_564, "1.7M"),
        Entry("densenet_bc_100", _DENSENET, 769_162, 800_032, "0.8M"),
        Entry("densenet_bc_190", _DENSENET, 25_624_430, 25_821_620, "25.6M"),
        Entry("resnext29_8x64d", _RESNEXT, 34_426_698, 34_518_948, "34.4M"),
        Entry("wrn_28_10", _WIDE_RESNET, 36_479_194, 36_536_884, "36.5M"),
        Entry("pyramidnet_200", _PYRAMIDNET, 26_752_702, 26_844_952, "26.8M"),
    )
}

__all__ = [
    "FAMILIES",
    "ZOO",
    "Entry",
    "Family",
    "densenet_bc_100",
    "densenet_bc_190",
    "pyramidnet_200",
    "resnet20",
    "resnet56",
    "resnet110",
    "resnext29_8x64d",
    "wrn_28_10",
]


def __getattr__(name: str) -> Any:
    # The families' functions have the names of their modules, and are found there: resnet.resnet and so on.
    if name not in ZOO:
        raise AttributeError(f"module 'momentex.models.cifar' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"momentex.models.cifar.{ZOO[name].family.home}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
