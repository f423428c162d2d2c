"""Handwritten digits that scikit-learn ships: 1,797 images of 8 × 8, there without any download."""

from __future__ import annotations

import torch

from momentex.data.arrays import Arrays, Loaded
from momentex.errors import DataError


def load() -> Loaded:
    """The digits as bytes, 0 to 255; every other image, from the second on, is for testing.

    >>> train, test = load()
    >>> tuple(train.images.shape), len(test.labels), train.classes[:3]
    ((899, 1, 8, 8), 898, ('0', '1', '2'))
    """
    try:  # here, so that whoever does not ask for digits needs no scikit-learn
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "The digits come with scikit-learn, which is not installed. Do: pip install 'momentex[train]'"
        ) from None
    pixels, target = load_digits(return_X_y=True)  # 0 to 16
    images = torch.as_tensor(pixels).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    whole = Arrays(images, torch.as_tensor(target).long(), tuple(map(str, range(10))))
    every = torch.arange(len(images))
    return Loaded(whole.taken(every[::2]), whole.taken(every[1::2]))
