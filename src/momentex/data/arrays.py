"""Images and labels as they are kept in memory: bytes, so that a set of 60,000 small images is 180 MB and no more."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentex.errors import DataError

SOME = 5000  # images that are floats at a time, which take four times the memory


class Arrays(NamedTuple):
    """Images, the class of each, and what the classes are called.

    images    uint8 (N, C, H, W)
    labels    int64 (N,): places in `classes`

    >>> import torch
    >>> pets = Arrays(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([1, 0]), ("cat", "dog"))
    >>> [pets.classes[label] for label in pets.labels]
    ['dog', 'cat']
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def taken(self, index: Tensor) -> Arrays:
        """These images and labels only, in the order of `index`."""
        return Arrays(self.images[index], self.labels[index], self.classes)

    def shrunk(self, by: int) -> Arrays:
        """Images of a `by`-th of the height and width: each square of so many pixels a side becomes its mean, rounded.

        >>> import torch
        >>> stripes = torch.tensor([[0, 4], [0, 4]], dtype=torch.uint8).expand(1, 3, 2, 2)
        >>> Arrays(stripes, torch.tensor([0]), ("stripes",)).shrunk(2).images.flatten().tolist()
        [2, 2, 2]
        """
        if by == 1:
            return self
        height, width = self.images.shape[-2:]
        if height % by or width % by:
            raise DataError(
                f"images of {height}×{width} pixels cannot be shrunk by {by}: their sides must be multiples of it."
            )
        means = [F.avg_pool2d(some.float(), by).round().to(some.dtype) for some in self.images.split(SOME)]
        return Arrays(torch.cat(means), self.labels, self.classes)


class Loaded(NamedTuple):
    """What a set trains on, and what it is tested on."""

    train: Arrays
    test: Arrays
