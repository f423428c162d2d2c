"""What is logged: shares, quantiles of σ_B / σ_A, constant groups, and the warning."""

import warnings

import pytest
import torch
from torch import nn

from momentex import LN, PONO, Moments, Plan, check, normalize
from momentex.diagnostics import Diagnostics, Strength, Tally
from momentex.errors import MomentexWarning

SWAP = torch.tensor([1, 0, 2])


def _moments(*std):
    std = torch.tensor(std).view(-1, 1, 1)
    return Moments(torch.zeros_like(std), std)


def _plan(index, **facts):
    return Plan(torch.tensor(index), 0.9, "layer1", **facts)


def test_the_gain_is_the_partners_deviation_over_ones_own():
    strength = Strength.of(_moments(1.0, 4.0, 100.0), SWAP, eps=1e-5)
    assert (strength.gain_max, strength.gain_median) == (4.0, (4.0 + 0.25) / 2)
    assert strength.gain_q05 == pytest.approx(0.25 + 0.05 * 3.75)
    assert strength.gain_q95 == pytest.approx(0.25 + 0.95 * 3.75)


def test_nobody_who_keeps_themselves_counts_in_the_gain():
    assert Strength.of(_moments(1.0, 4.0, 100.0), torch.arange(3), eps=1e-5) is None
    assert Strength.of(_moments(1.0, 1.0, 1e-3), SWAP, eps=1e-5).gain_max == 1.0


def test_quantiles_of_millions_of_groups_are_estimated():
    std = torch.rand(2, 3000, 1500) + 0.5
    strength = Strength.of(Moments(std, std), torch.tensor([1, 0]), eps=1e-5)
    exact = (std.flip(0) / std).flatten().numpy()
    assert strength.gain_median == pytest.approx(float(torch.tensor(exact).median()), rel=1e-2)
    assert strength.gain_max == pytest.approx(float(exact.max()))


def test_groups_whose_variance_is_below_epsilon_are_constant():
    h = torch.randn(4, 8, 5, 2)
    h[:2, :, :3] = 0.0  # 2 · 3 · 2 of 4 · 5 · 2 positions
    strength = Strength.of(normalize(h, PONO())[1], torch.tensor([2, 3, 0, 1]), eps=1e-5)
    assert strength.constant_groups == pytest.approx(12 / 40)


def test_an_exploding_gain_at_constant_groups_is_warned_about():
    strength = Strength.of(_moments(1e-5**0.5, 1.0, 2.0), torch.tensor([1, 2, 0]), eps=1e-5)
    text = (
        r"^layer 'conv1': 33\.3% of the groups are constant and get up to 316 times their deviation, their gradients "
        r"too\. .* attach before the ReLU or at the input of the first stage, take moments over more .* or raise eps\.$"
    )
    with pytest.warns(MomentexWarning, match=text):
        strength.warn_if_it_explodes("conv1")


@pytest.mark.parametrize("std", [(1.0, 2.0, 3.0), (1e-5**0.5, 0.2, 1.0), (0.01, 2.0, 3.0)])
def test_a_gain_that_does_not_explode_or_no_constant_group_is_no_reason_to_warn(std):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Strength.of(_moments(*std), SWAP, eps=1e-5).warn_if_it_explodes("conv1")


def _check_after_relu(over, mask=None):
    """One dry step on features of which the first sample's are constant."""
    x = torch.randn(4, 8, 6) * 30
    x[0] = -1.0
    return check(nn.Sequential(nn.ReLU(), nn.Identity()), "1", x, torch.arange(4), over=over, mask=mask)


@pytest.mark.parametrize("over", [LN(), LN(only="std")], ids=repr)
def test_stretched_constant_features_are_warned_about(over):
    with pytest.warns(MomentexWarning, match=r"^layer '1': 25\.0% of the groups are constant"):
        _check_after_relu(over)


def test_nobody_is_warned_of_a_gain_where_only_means_are_moved():
    _check_after_relu(LN(only="mean"))  # nothing is multiplied, and warnings are errors


def test_who_sits_out_is_no_constant_group():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 1:] = False  # the constant sample has one valid position
    assert _check_after_relu(LN(), mask=mask).strength.constant_groups == 0


def test_shares_are_of_steps_of_samples_and_of_those_who_were_asked():
    tally, labels = Tally(), torch.tensor([0, 0, 1, 1])
    for plan in (
        _plan([1, 0, 2, 3]),  # two of four, both of one class; two self pairs
        _plan([2, 3, 0, 1], asked=4),  # four of other classes
        _plan([0, 1, 2, 3], on=False),
        _plan([0, 1, 3, 3], asked=2),  # one, of its own class; one self pair
    ):
        tally.add(plan, plan.index, labels)
    report = tally.report(None)
    assert (report.steps, report.exchanged_steps) == (4, 3 / 4)
    assert report.exchanged_samples == 7 / 16
    assert report.self_pairs == 3 / 10
    assert report.same_class_pairs == 3 / 7


@pytest.mark.parametrize("labels", [torch.rand(2), torch.zeros(2, 3, dtype=torch.int64), torch.rand(2, 3)])
def test_labels_without_classes_have_no_share_of_same_class_pairs(labels):
    tally = Tally()
    tally.add(_plan([1, 0]), torch.tensor([1, 0]), labels)
    assert tally.report(None).same_class_pairs is None


def test_nothing_yet_is_zero_and_not_an_error():
    report = Tally().report(None)
    assert report == Diagnostics(0, 0.0, 0.0, 0.0, None, None)


def test_a_logger_gets_flat_numbers_and_nothing_that_is_unknown():
    tally = Tally()
    tally.add(_plan([1, 0]), torch.tensor([1, 0]), torch.rand(2))
    strength = Strength.of(_moments(1.0, 4.0), torch.tensor([1, 0]), eps=1e-5)
    flat = tally.report(strength).flat()
    assert all(isinstance(value, float) for value in flat.values())
    assert flat["exchanged_samples"] == 1.0
    assert flat["gain_max"] == 4.0
    assert "same_class_pairs" not in flat
    assert set(tally.report(None).flat()) == {"steps", "exchanged_steps", "exchanged_samples", "self_pairs"}
