"""momentex: Moment Exchange (Li, Wu, Lim, Belongie, Weinberger; CVPR 2021) for any PyTorch model.

Names are resolved when they are first used: importing this package imports nothing, torch included.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentex.attach import ExchangeSite as ExchangeSite
    from momentex.augment.cutmix import cutmix as cutmix
    from momentex.augment.cutout import cutout as cutout
    from momentex.augment.drawing import Box as Box
    from momentex.augment.label_smoothing import smooth_labels as smooth_labels
    from momentex.augment.mixup import mixup as mixup
    from momentex.augment.values import CutMix as CutMix
    from momentex.augment.values import Cutout as Cutout
    from momentex.augment.values import LabelInterpolation as LabelInterpolation
    from momentex.augment.values import Mixup as Mixup
    from momentex.comparing import compare as compare
    from momentex.diagnostics import Diagnostics as Diagnostics
    from momentex.exchange import exchange_moments as exchange_moments
    from momentex.moex import MomentExchange as MomentExchange
    from momentex.moments import Moments as Moments
    from momentex.moments import denormalize as denormalize
    from momentex.moments import normalize as normalize
    from momentex.over import GN as GN
    from momentex.over import IN as IN
    from momentex.over import LN as LN
    from momentex.over import LRN as LRN
    from momentex.over import PONO as PONO
    from momentex.pairing import Beta as Beta
    from momentex.pairing import Plan as Plan
    from momentex.pairing import Policy as Policy
    from momentex.pairing import pair as pair
    from momentex.pairing import stream as stream
    from momentex.survey import check as check
    from momentex.survey import sites as sites
    from momentex.targets import Targets as Targets

__version__ = "0.1.0"

_HOME = {
    "CutMix": "augment.values",
    "Cutout": "augment.values",
    "LabelInterpolation": "augment.values",
    "Mixup": "augment.values",
    "cutmix": "augment.cutmix",
    "cutout": "augment.cutout",
    "smooth_labels": "augment.label_smoothing",
    "mixup": "augment.mixup",
    "Box": "augment.drawing",
    "ExchangeSite": "attach",
    "Diagnostics": "diagnostics",
    "exchange_moments": "exchange",
    "MomentExchange": "moex",
    "Moments": "moments",
    "denormalize": "moments",
    "normalize": "moments",
    "GN": "over",
    "IN": "over",
    "LN": "over",
    "LRN": "over",
    "PONO": "over",
    "Beta": "pairing",
    "Plan": "pairing",
    "Policy": "pairing",
    "pair": "pairing",
    "stream": "pairing",
    "check": "survey",
    "compare": "comparing",
    "sites": "survey",
    "Targets": "targets",
}

__all__ = [
    "GN",
    "IN",
    "LN",
    "LRN",
    "PONO",
    "Beta",
    "Box",
    "CutMix",
    "Cutout",
    "Diagnostics",
    "ExchangeSite",
    "LabelInterpolation",
    "Mixup",
    "MomentExchange",
    "Moments",
    "Plan",
    "Policy",
    "Targets",
    "check",
    "compare",
    "cutmix",
    "cutout",
    "denormalize",
    "exchange_moments",
    "mixup",
    "normalize",
    "pair",
    "sites",
    "smooth_labels",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'momentex' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"momentex.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
