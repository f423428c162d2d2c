"""Label smoothing, in both published forms: a part of each target is spread over the classes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from momentex.errors import OutOfRange, TargetError, did_you_mean
from momentex.targets import Targets

Over: TypeAlias = Literal["all", "others"]


def smooth_labels(
    targets: Tensor | Targets, smoothing: float | Tensor, *, num_classes: int, over: Over = "all"
) -> Targets:
    """Targets of which the part `smoothing` is spread evenly over classes; a number, or one for each sample.

    over="all"     (1 − s) t + s/C for every class, as torch and timm do (Szegedy et al., CVPR 2016)
    over="others"  (1 − s) t + s (1 − t)/(C − 1): nothing comes back to the own class, as the paper's ablation writes it

    >>> import torch
    >>> smooth_labels(torch.tensor([0]), 0.1, num_classes=5).probabilities(5)
    tensor([[0.9200, 0.0200, 0.0200, 0.0200, 0.0200]])
    >>> smooth_labels(torch.tensor([0]), 0.1, num_classes=5, over="others").probabilities(5)
    tensor([[0.9000, 0.0250, 0.0250, 0.0250, 0.0250]])
    """
    if isinstance(smoothing, (int, float)) and smoothing == 0:
        raise OutOfRange("smoothing is 0: nothing would be smoothed. Leave it out, or set it above 0.")
    targets = targets if isinstance(targets, Targets) else Targets(targets)
    return targets.smoothed(over_all(smoothing, num_classes, over), num_classes)


def over_all(smoothing: float | Tensor, num_classes: int, over: Over) -> float | Tensor:
    """The same smoothing as one over all classes: s over the C − 1 others is s · C/(C − 1) over all C.

    >>> over_all(0.1, 5, "others")
    0.125
    """
    if num_classes < 2:
        raise TargetError(f"num_classes is {num_classes}; labels are smoothed over two classes or more.")
    if over not in ("all", "others"):
        near = did_you_mean(str(over), ("all", "others"))
        raise TargetError(f"over is {over!r}; it is 'all' (every class) or 'others' (but the own one). {near}".strip())
    if over == "all":
        return smoothing
    most = (num_classes - 1) / num_classes
    if isinstance(smoothing, (int, float)) and smoothing > most:
        raise OutOfRange(
            f"smoothing is {smoothing} over the others of {num_classes} classes: above {most:g}, the own class would "
            "get less than each of them."
        )
    return smoothing / most
