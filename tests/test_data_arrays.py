"""Arrays and their parts."""

import torch

from momentex.data import Arrays


def test_taken_images_keep_their_labels_and_the_order_that_was_asked_for():
    arrays = Arrays(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5) + 10, ("a", "b"))
    images, labels, classes = arrays.taken(torch.tensor([3, 0, 3]))
    assert images.flatten().tolist() == [3, 0, 3]
    assert labels.tolist() == [13, 10, 13]
    assert classes == ("a", "b")
