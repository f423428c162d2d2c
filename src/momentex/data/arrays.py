"""Images and labels as they are kept in memory: bytes, so that a set of 60,000 small images is 180 MB and no more."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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


class Loaded(NamedTuple):
    """What a set trains on, and what it is tested on."""

    train: Arrays
    test: Arrays
