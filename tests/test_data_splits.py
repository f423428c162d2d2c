"""Subsets: balanced, disjoint, complete, drawn from the generator and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from momentex.data import balanced_subset, held_out, stratified
from momentex.errors import DataError, OutOfRange, ShapeError

FEW = torch.tensor([0, 0, 0, 0, 5, 5, 5, 9, 9])
lists = st.lists(st.integers(-3, 4), min_size=1, max_size=60).map(torch.tensor)
seeds = st.integers(0, 2**31)


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def counts_of(labels, index):
    return torch.stack([(labels[index] == label).sum() for label in labels.unique()])


@given(st.lists(st.integers(2, 9), min_size=2, max_size=6), seeds, st.data())
def test_a_subset_has_the_asked_size_and_classes_that_differ_by_one_at_most(sizes, seed, data):
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=drawn(seed))]
    size = data.draw(st.integers(len(sizes), min(sizes) * len(sizes)))
    index = balanced_subset(labels, size, drawn(seed))
    counts = counts_of(labels, index)
    assert len(index.unique()) == len(index) == size
    assert index.equal(index.sort().values)
    assert counts.max() - counts.min() <= 1


@given(st.integers(2, 20), seeds)
def test_one_too_few_of_a_class_is_no_reason_to_refuse_if_others_can_give_one_more(size, seed):
    labels = torch.tensor([0] * size + [1] * (size + 1) + [2] * size)
    assert counts_of(labels, balanced_subset(labels, 3 * size + 1, drawn(seed))).tolist() == [size, size + 1, size]


@given(lists, st.floats(0, 0.5), seeds)
def test_a_stratified_part_has_its_share_of_every_class(labels, share, seed):
    labels = torch.cat([labels, labels])  # two of each at least
    train, test = stratified(labels, share, drawn(seed))
    assert torch.cat([train, test]).sort().values.equal(torch.arange(len(labels)))
    assert train.equal(train.sort().values)
    assert test.equal(test.sort().values)
    for count, taken in zip(counts_of(labels, slice(None)), counts_of(labels, test), strict=True):
        assert taken == 1 or abs(taken - share * count) <= 0.5
        assert 1 <= taken < count


@given(st.integers(3, 30), seeds)
def test_held_out_and_the_rest_are_disjoint_and_complete(each, seed):
    labels = torch.arange(5).repeat(each)
    train, validation = held_out(labels, 7, drawn(seed))
    assert torch.cat([train, validation]).sort().values.equal(torch.arange(5 * each))
    assert validation.equal(balanced_subset(labels, 7, drawn(seed)))
    assert train.equal(train.sort().values)


def test_the_same_generator_draws_the_same_and_another_something_else():
    labels = torch.arange(10).repeat(20)
    first = balanced_subset(labels, 50, drawn(3))
    assert first.equal(balanced_subset(labels, 50, drawn(3)))
    assert not first.equal(balanced_subset(labels, 50, drawn(4)))


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    balanced_subset(FEW, 5, drawn())
    stratified(FEW, 0.3, drawn())
    assert torch.get_rng_state().equal(before)


def test_every_sample_is_as_likely_and_every_class_to_have_one_more():
    labels = torch.arange(3).repeat(4)
    chosen = torch.cat([balanced_subset(labels, 4, drawn(seed)) for seed in range(3000)])
    assert stats.chisquare(chosen.bincount(minlength=12)).pvalue > 0.01


def test_labels_need_not_start_at_zero():
    assert counts_of(FEW, balanced_subset(FEW, 6, drawn())).tolist() == [2, 2, 2]


UNEVEN = torch.tensor([0] * 5 + [5] * 2 + [9] * 2)


@pytest.mark.parametrize(
    ("labels", "size", "text"),
    [
        (FEW, 10, r"A balanced subset of 10 was asked for; there are 9 samples of 3 classes, so it must be 3 to 9\."),
        (FEW, 2, r"A balanced subset of 2 was asked for; .* it must be 3 to 9"),
        (FEW, -1, r"A balanced subset of -1 was asked for"),
        (FEW, 9, r"subset of 9 needs of each of 3 classes 3: class 9 has 2\. Ask for fewer"),
        (UNEVEN, 8, r"subset of 8 needs of each of 3 classes 2, and 2 of them 3: class 5 has 2, class 9 has 2\."),
        (torch.arange(8).repeat(2).clamp(max=6), 16, r"class 0 has 2, .*class 4 has 2, …\. Ask for fewer"),
    ],
)
def test_a_subset_that_does_not_exist_is_refused(labels, size, text):
    with pytest.raises(DataError, match=text):
        balanced_subset(labels, size, drawn())


def test_something_of_every_class_must_remain():
    with pytest.raises(DataError, match=r"Holding 6 out leaves nothing to train on of class 9\. Hold fewer out"):
        held_out(FEW, 6, drawn())
    with pytest.raises(DataError, match=r"Holding 1 of every class out leaves nothing to train on of class 0, 5, 9"):
        stratified(FEW, 1.0, drawn())
    with pytest.raises(DataError, match="leaves nothing to train on of class 3"):
        stratified(torch.tensor([1, 1, 3]), 0.2, drawn())


@pytest.mark.parametrize(
    "labels", [torch.rand(4), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)]
)
def test_labels_are_one_class_for_each_sample(labels):
    with pytest.raises(ShapeError, match=r"labels are torch\.\w+ \(.*\); they must be one class for each sample"):
        balanced_subset(labels, 1, drawn())


def test_a_share_is_a_fraction():
    with pytest.raises(OutOfRange, match=r"share is 1\.2"):
        stratified(FEW, 1.2, drawn())
