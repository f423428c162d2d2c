"""Arrays and their parts."""

import pytest
import torch

from momentex.data import Arrays
from momentex.errors import DataError


def test_taken_images_keep_their_labels_and_the_order_that_was_asked_for():
    arrays = Arrays(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5) + 10, ("a", "b"))
    images, labels, classes = arrays.taken(torch.tensor([3, 0, 3]))
    assert images.flatten().tolist() == [3, 0, 3]
    assert labels.tolist() == [13, 10, 13]
    assert classes == ("a", "b")


def test_shrinking_averages_squares_and_keeps_labels():
    images = torch.randint(256, (7, 3, 6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arrays = Arrays(images, torch.arange(7) % 2, ("cat", "dog"))
    small = arrays.shrunk(2)
    by_hand = images.double().view(7, 3, 3, 2, 4, 2).mean((3, 5))
    assert small.images.dtype == torch.uint8
    assert (small.images.double() - by_hand).abs().max() <= 0.5
    assert small.labels is arrays.labels
    assert arrays.shrunk(1) is arrays


def test_images_that_squares_do_not_fill_are_not_shrunk():
    arrays = Arrays(torch.zeros(1, 3, 8, 6, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), ("cat",))
    with pytest.raises(DataError, match="images of 8×6 pixels cannot be shrunk by 4: their sides must be multiples"):
        arrays.shrunk(4)
