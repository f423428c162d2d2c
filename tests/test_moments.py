"""F and F⁻¹: what is taken out, that it can be put back, and what padding, sets and layouts change about it."""

import pytest
import torch
from hypothesis import given

from momentex import GN, IN, LN, LRN, PONO, Moments, denormalize, normalize
from tests import reference
from tests.compare import DTYPES, assert_close, assert_same_bits
from tests.strategies import KINDS, POOLED, Case, cases, fitting, groups_of, has_channels, has_space


def _places(case):
    """Where the elements of each group are, and the shape of a moment."""
    over, (batch, channels, *space) = case.over, case.h.shape
    groups = groups_of(over) if has_channels(over) else channels
    shape = (batch, groups, *([1] * len(space) if has_space(over) else space))
    return reference.places_of(case.h.shape, has_channels(over), has_space(over), groups), shape


@given(cases())
def test_moments_are_those_of_the_elements_that_over_says(case: Case):
    for correction in (0, 1):
        _, moments = normalize(case.h, case.over, correction=correction, eps=1e-3)
        places, shape = _places(case)
        by_hand = [
            reference.moments_of(case.h.flatten()[group], case.over != LRN(), 1e-3, correction)
            for sample in places
            for group in sample
        ]
        assert_close(moments.mean, torch.stack([mean for mean, _ in by_hand]).view(shape))
        assert_close(moments.std, torch.stack([std for _, std in by_hand]).view(shape))


@given(cases())
def test_normalised_features_have_mean_zero_and_deviation_one(case: Case):
    h_hat, _ = normalize(case.h, case.over, eps=1e-12)
    again = normalize(h_hat, case.over, eps=1e-12)[1]
    torch.testing.assert_close(again.std, torch.ones_like(again.std), rtol=1e-4, atol=0)
    torch.testing.assert_close(again.mean, torch.zeros_like(again.mean), rtol=0, atol=1e-9)


@given(cases())
def test_denormalize_undoes_normalize(case: Case):
    assert_close(denormalize(*normalize(case.h, case.over)), case.h)


@pytest.mark.parametrize(("over", "kind"), fitting(), ids=str)
def test_denormalize_undoes_normalize_for_every_kind_of_features(over, kind):
    for dtype in DTYPES:
        h, arguments, _, _ = KINDS[kind](dtype)
        h_hat, moments = normalize(h, over, **arguments)
        restored = denormalize(h_hat, moments, **arguments)
        assert_close(restored, h)
        assert h_hat.dtype == restored.dtype == dtype
        assert moments.mean.dtype == moments.std.dtype == (dtype if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("norm_type", ["pono", "instance_norm", "layer_norm"])
def test_normalize_is_the_papers_listing(norm_type):
    h = torch.randn(5, 7, 3, 2, dtype=torch.float64)
    over = {"pono": PONO(), "instance_norm": IN(), "layer_norm": LN()}[norm_type]
    h_hat, moments = normalize(h, over)
    for ours, theirs in zip((h_hat, *moments), reference.normalization(h, norm_type), strict=True):
        assert_close(ours, theirs)


def test_one_is_the_whole_of_another():
    h = torch.randn(3, 6, 5, dtype=torch.float64)
    for one, same in [(GN(1), LN()), (GN(6), IN()), (PONO(groups=1), PONO()), (LRN(only="std"), LRN())]:
        for a, b in zip(normalize(h, one)[1], normalize(h, same)[1], strict=True):
            assert_close(a, b)


def test_groups_are_a_number_of_groups_as_in_torch():
    h = torch.randn(3, 12, 5, dtype=torch.float64)
    assert_close(normalize(h, GN(4), correction=0)[0], torch.nn.functional.group_norm(h, 4))


def test_lrn_divides_by_the_root_of_the_mean_square_and_centres_nothing():
    h = torch.randn(3, 4, 5, dtype=torch.float64)
    h_hat, moments = normalize(h, LRN())
    assert_close(h_hat, h / (h.square().mean(1, keepdim=True) + 1e-5).sqrt())
    assert not moments.mean.any()


@pytest.mark.parametrize(("over", "kind"), fitting("tokens", "time first", "prefix", "masked tokens"), ids=str)
def test_another_order_of_axes_is_a_transposition(over, kind):
    h, arguments, _, _ = KINDS[kind](torch.float64)
    skip, rest = arguments.get("skip", 0), {k: v for k, v in arguments.items() if k == "mask"}
    axes = (arguments.get("batch_dim", 0), arguments["channel_dim"])
    inner = h.movedim(axes, (0, 1))[:, :, skip:].contiguous()
    if skip and rest:
        rest["mask"] = rest["mask"][:, skip:]
    h_hat, moments = normalize(h, over, **arguments)
    wanted, wanted_moments = normalize(inner, over, **rest)
    assert_close(h_hat.movedim(axes, (0, 1))[:, :, skip:], wanted)
    assert_same_bits(h_hat.movedim(axes, (0, 1))[:, :, :skip], h.movedim(axes, (0, 1))[:, :, :skip])
    assert_close(moments.mean, wanted_moments.mean)
    assert_close(moments.std, wanted_moments.std)


@pytest.mark.parametrize("over", POOLED, ids=repr)
def test_a_padded_sample_has_the_moments_of_what_is_valid(over):
    h, arguments, samples, _ = KINDS["masked"](torch.float64)
    h_hat, moments = normalize(h, over, **arguments)
    for i in range(samples):
        valid = arguments["mask"][i]
        if valid.sum() >= 2:
            wanted, of_one = normalize(h[i : i + 1, :, valid], over)
            assert_close(h_hat[i : i + 1, :, valid], wanted)
            assert_close(moments.at(torch.tensor([i])).std, of_one.std)
        assert_same_bits(h_hat[i, :, ~valid], h[i, :, ~valid])


@pytest.mark.parametrize("over", POOLED, ids=repr)
def test_ragged_sets_are_normalised_one_by_one(over):
    h, arguments, samples, sits_out = KINDS["ragged"](torch.float64)
    h_hat, moments = normalize(h, over, **arguments)
    assert len(moments.mean) == samples
    for i in set(range(samples)) - set(sits_out):
        wanted, of_one = normalize(h[arguments["batch"] == i].T[None], over)
        assert_close(h_hat[arguments["batch"] == i], wanted[0].T)
        assert_close(moments.mean[i], of_one.mean[0, :, 0])


PADDING = [float("nan"), float("inf"), 1e30, -7.0]


def _gradients(h, mask, over):
    """Of a loss in which the padding of ĥ does not occur, and of one through F⁻¹."""
    h = h.clone().requires_grad_()
    h_hat, moments = normalize(h, over, mask=mask)
    restored = denormalize(h_hat, moments.at(torch.tensor([2, 0, 0, 3, 2])), mask=mask)
    valid = mask[:, None].expand_as(h)
    return torch.autograd.grad(h_hat[valid].square().sum() + restored[valid].sin().sum(), h)[0]


@pytest.mark.parametrize("fill", PADDING)
@pytest.mark.parametrize("over", [IN(), LN(), GN(2)], ids=repr)
def test_what_stands_in_the_padding_never_matters(over, fill):
    h, arguments, _, _ = KINDS["masked"](torch.float32)
    mask = arguments["mask"]
    filled = torch.where(mask[:, None], h, fill)
    clean, dirty = normalize(h, over, mask=mask), normalize(filled, over, mask=mask)
    assert_same_bits(dirty[0], torch.where(mask[:, None], clean[0], fill))
    assert_same_bits(dirty[1].mean, clean[1].mean)
    assert_same_bits(dirty[1].std, clean[1].std)
    assert_same_bits(_gradients(filled, mask, over), _gradients(h, mask, over))


def test_moments_can_be_picked():
    moments = Moments(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
    assert moments.at(torch.tensor([1, 1])).mean.tolist() == [[2.0], [2.0]]
    assert moments.at(torch.tensor([1, 0])).std.tolist() == [[4.0], [3.0]]


def test_gradients_reach_the_moments_of_denormalize():
    h_hat, mean = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 1, 5, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (h_hat, mean, mean.detach().exp())]
    assert torch.autograd.gradcheck(lambda h, mean, std: denormalize(h, Moments(mean, std)), inputs)
