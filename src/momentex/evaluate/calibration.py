"""Whether a model is as often right as it says (Guo et al., ICML 2017): the expected calibration error."""

from __future__ import annotations

import torch
from torch import Tensor

from momentex.errors import OutOfRange, ShapeError

BINS = 15  # of equal width, as in that paper


def bin_sums(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Tensor:
    """(3, bins): of the samples whose confidence lies in (k / bins, (k + 1) / bins], how many there are, the sum of
    their confidences, and how many are right. Those of parts of a set add up to those of the whole.

    >>> bin_sums(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=2)
    tensor([[0.0000, 2.0000],
            [0.0000, 1.5000],
            [0.0000, 1.0000]])
    """
    if bins < 1:
        raise OutOfRange(f"bins is {bins}; it must be 1 or more.")
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ShapeError(
            f"probabilities are {tuple(probabilities.shape)} and labels {tuple(labels.shape)}; they must be (N, "
            "classes) and (N,)."
        )
    confidence, said = probabilities.max(1)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    rows = torch.stack([torch.ones_like(confidence), confidence, (said == labels).to(confidence.dtype)])
    member = place[:, None] == torch.arange(bins, device=place.device)
    return (rows[:, :, None] * member).sum(1)  # not index_add_, whose order of adding is not fixed on a GPU


def expected_error(sums: Tensor) -> float:
    """The expected calibration error in %: how far confidence and accuracy lie apart in a bin, averaged over samples.

    >>> round(expected_error(torch.tensor([[0.0, 2.0], [0.0, 1.5], [0.0, 1.0]])), 6)
    25.0
    """
    count, confidence, right = sums.double()
    return 100 * float((confidence - right).abs().sum() / count.sum())


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The expected calibration error in % of probabilities (N, classes), with `bins` bins of equal width.

    >>> calibration_error(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    50.0
    """
    return expected_error(bin_sums(probabilities.cpu().double(), labels.cpu(), bins))
