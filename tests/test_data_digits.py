"""The digits that come with scikit-learn."""

import pytest
import torch
from sklearn.datasets import load_digits

from momentex.data import digits
from tests.test_imports import python


def test_every_other_digit_is_for_testing():
    train, test = digits.load()
    target = torch.as_tensor(load_digits().target)
    assert train.labels.equal(target[0::2])
    assert test.labels.equal(target[1::2])
    assert (len(train.labels), len(test.labels)) == (899, 898)
    assert train.classes == test.classes == tuple("0123456789")


def test_sixteen_shades_become_bytes_from_0_to_255():
    for part, images in zip(digits.load(), (load_digits().images[0::2], load_digits().images[1::2]), strict=True):
        assert part.images.dtype == torch.uint8
        assert part.images.shape == (len(images), 1, 8, 8)
        assert part.images.is_contiguous()
        # 16 · 255 / 16 is 255, and half steps go to the even number
        shades = torch.tensor([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255])
        assert part.images[:, 0].long().equal(shades[torch.as_tensor(images).long()])


def test_without_scikit_learn_it_says_what_to_install():
    said = python(
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.datasets'] = None\n"
        "from momentex.data import digits\n"
        "from momentex.errors import DataError\n"
        "try: digits.load()\n"
        "except DataError as error: print(error)"
    )
    assert "scikit-learn, which is not installed. Do: pip install 'momentex[train]'" in said


@pytest.mark.parametrize("part", ["train", "test"])
def test_every_digit_occurs_about_equally_often(part):
    counts = getattr(digits.load(), part).labels.bincount()
    assert len(counts) == 10
    assert counts.min() >= 80
    assert counts.max() <= 100
