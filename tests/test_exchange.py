"""Moment exchange: its laws, the paper's listing as the oracle, and bad input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momentex import IN, LN, LRN, PONO, Moments, denormalize, exchange_moments, normalize
from momentex.errors import MomentexError, PairingError
from momentex.exchange import How, exchange
from tests import reference
from tests.compare import DTYPES, assert_close, assert_same_bits, assert_same_numbers
from tests.strategies import (
    KINDS,
    OVERS,
    POOLED,
    Case,
    cases,
    fitting,
    groups_of,
    has_channels,
    has_space,
    indices_for,
    permutations,
)

ODDITIES = [-0.0, 0.0, float("inf"), -float("inf"), float("nan"), 1e-38, -1e-38, 6e4]


def _with_oddities(h, rows):
    """Every number that arithmetic could change, strewn over these samples."""
    places = torch.arange(h[rows].numel()).view(h[rows].shape)
    odd = torch.tensor(ODDITIES, dtype=h.dtype)[places % len(ODDITIES)]
    return h.index_put((torch.as_tensor(rows),), torch.where(places % 3 == 0, h[rows], odd))


def _sample_axis(h, arguments):
    """The features with the samples first: ragged sets as a list."""
    if "batch" in arguments:
        return [h[arguments["batch"] == i] for i in range(6)]
    return list(h.movedim(arguments.get("batch_dim", 0), 0))


# --- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "kind"), fitting(), ids=str)
def test_a_batch_paired_with_itself_comes_out_bit_by_bit(over, kind):
    for dtype in DTYPES:
        h, arguments, samples, _ = KINDS[kind](dtype)
        h = _with_oddities(h.clone(), list(range(len(h))))
        assert_same_numbers(exchange_moments(h, torch.arange(samples), over, **arguments), h)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("over", "kind"), fitting("images", "channels last", "masked", "ragged"), ids=str)
def test_a_sample_that_keeps_itself_comes_out_bit_by_bit_among_samples_that_do_not(over, kind, dtype):
    h, arguments, samples, _ = KINDS[kind](dtype)
    index = torch.arange(samples)
    index[[0, -1]] = index[[-1, 0]]
    rows = torch.arange(1, len(h) - 1) if "batch" not in arguments else torch.isin(arguments["batch"], index[1:-1])
    odd = _with_oddities(h, rows.nonzero().flatten().tolist() if rows.dtype == torch.bool else rows.tolist())
    new = exchange_moments(odd, index, over, **arguments)
    assert_same_numbers(new[rows], odd[rows])
    clean = exchange_moments(h, index, over, **arguments)
    others = ~rows if rows.dtype == torch.bool else [0, -1]
    assert_same_bits(new[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_even_nan_keeps_its_bits(dtype):
    h = torch.full((3, 4, 40), float("nan"), dtype=dtype)
    assert_same_bits(exchange_moments(h, torch.arange(3)), h)


@given(cases())
def test_fixed_points_are_exact_whatever_the_others_do(case: Case):
    stays = case.index == torch.arange(len(case.index))
    assert_same_bits(exchange_moments(case.h, case.index, case.over)[stays], case.h[stays])


@given(cases())
def test_every_sample_gets_the_moments_of_its_partner(case: Case):
    new = exchange_moments(case.h, case.index, case.over, eps=1e-12)
    old, got = (normalize(h, case.over, eps=1e-12)[1] for h in (case.h, new))
    partner = old.at(case.index)
    torch.testing.assert_close(got.mean, old.mean if case.over.only == "std" else partner.mean)
    torch.testing.assert_close(got.std, old.std if case.over.only == "mean" else partner.std, rtol=1e-4, atol=0)


@given(cases())
def test_normalised_features_stay_what_they_were(case: Case):
    new = exchange_moments(case.h, case.index, case.over, eps=1e-12)
    before, after = (normalize(h, case.over, eps=1e-12)[0] for h in (case.h, new))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@given(cases(index=permutations))
def test_a_permutation_undone_restores(case: Case):
    there = exchange_moments(case.h, case.index, case.over, eps=1e-12)
    torch.testing.assert_close(
        exchange_moments(there, case.index.argsort(), case.over, eps=1e-12), case.h, rtol=1e-4, atol=1e-4
    )


@given(cases())
def test_an_exchange_is_normalize_then_denormalize_with_the_partners_moments(case: Case):
    h_hat, own = normalize(case.h, case.over)
    partner = own.at(case.index)
    received = Moments(
        own.mean if case.over.only == "std" else partner.mean, own.std if case.over.only == "mean" else partner.std
    )
    assert_close(exchange_moments(case.h, case.index, case.over), denormalize(h_hat, received))


@given(cases(), st.sampled_from([0, 1]))
def test_correction_matters_by_epsilon_alone(case: Case, correction):
    tiny = exchange_moments(case.h, case.index, case.over, eps=1e-14, correction=correction)
    torch.testing.assert_close(tiny, exchange_moments(case.h, case.index, case.over, eps=1e-14), rtol=1e-5, atol=1e-5)


@given(cases())
def test_samples_see_their_partner_and_nobody_else(case: Case):
    alone = [
        exchange_moments(case.h[[a, b]], torch.tensor([1, 1]), case.over)[0] for a, b in enumerate(case.index.tolist())
    ]
    stays = (case.index == torch.arange(len(case.index))).nonzero().flatten().tolist()
    wanted = torch.stack([case.h[i] if i in stays else of_two for i, of_two in enumerate(alone)])
    assert_close(exchange_moments(case.h, case.index, case.over), wanted)


# --- padding, sets, layouts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30, -7.0])
@pytest.mark.parametrize(("over", "kind"), fitting("masked", "masked images", "masked tokens"), ids=str)
def test_what_stands_in_the_padding_never_matters(over, kind, fill):
    h, arguments, samples, _ = KINDS[kind](torch.float32)
    index, upstream = indices_for(samples)["no permutation"], torch.randn_like(h)
    channel_dim = arguments.get("channel_dim", 1)
    valid = arguments["mask"].bool().unsqueeze(channel_dim).expand_as(h)
    clean, dirty = (t.requires_grad_() for t in (h.clone(), torch.where(valid, h, fill)))
    new, wanted = (exchange_moments(t, index, over, **arguments) for t in (dirty, clean))
    assert_same_bits(new[valid], wanted[valid])
    assert_same_bits(new[~valid], dirty[~valid])
    new.backward(upstream)
    wanted.backward(upstream)
    assert_same_bits(dirty.grad, clean.grad)


@pytest.mark.parametrize(("over", "kind"), fitting("masked", "masked images", "ragged"), ids=str)
@pytest.mark.parametrize("correction", [0, 1])
def test_padded_samples_and_ragged_sets_are_what_they_are_by_hand(over, kind, correction):
    h, arguments, samples, sits_out = KINDS[kind](torch.float64)
    mask = arguments["mask"].bool() if "mask" in arguments else None
    places = reference.places_of(
        h.shape, has_channels(over), True, groups_of(over), mask, arguments.get("batch"), samples
    )
    for index in indices_for(samples).values():
        x = h.clone().requires_grad_()
        new = exchange_moments(x, index, over, correction=correction, **arguments)
        wanted = reference.exchange(x, index, places, over.only, True, 1e-5, correction, sits_out)
        assert_close(new, wanted)
        upstream = torch.randn_like(h)
        assert_close(*(torch.autograd.grad(y, x, upstream)[0] for y in (new, wanted)))


@pytest.mark.parametrize(("over", "kind"), fitting("masked", "masked tokens", "ragged"), ids=str)
def test_who_has_too_few_positions_neither_gives_nor_receives(over, kind):
    h, arguments, samples, sits_out = KINDS[kind](torch.float32)
    assert sits_out
    for index in indices_for(samples).values():
        old, new = (_sample_axis(t, arguments) for t in (h, exchange_moments(h, index, over, **arguments)))
        for i in range(samples):
            if i in sits_out or int(index[i]) in sits_out:
                assert_same_bits(new[i], old[i])


def test_a_mask_without_padding_changes_nothing():
    h, index = torch.randn(5, 4, 7, dtype=torch.float64), torch.tensor([1, 2, 0, 4, 3])
    for over in POOLED:
        masked = exchange_moments(h, index, over, mask=torch.ones(5, 7, dtype=torch.bool))
        assert_close(masked, exchange_moments(h, index, over))


@pytest.mark.parametrize("over", POOLED, ids=repr)
def test_ragged_sets_of_one_size_are_a_batch(over):
    h, index = torch.randn(5, 7, 4, dtype=torch.float64), torch.tensor([1, 2, 0, 3, 3])
    sets = exchange_moments(h.reshape(35, 4), index, over, batch=torch.arange(5).repeat_interleave(7))
    assert_close(sets.view_as(h), exchange_moments(h, index, over, channel_dim=-1))


@pytest.mark.parametrize(("over", "kind"), fitting("tokens", "time first", "prefix", "masked tokens"), ids=str)
def test_another_order_of_axes_is_a_transposition_and_skipped_positions_are_cut_off(over, kind):
    h, arguments, samples, _ = KINDS[kind](torch.float64)
    axes, skip = (arguments.get("batch_dim", 0), arguments["channel_dim"]), arguments.get("skip", 0)
    rest = {"mask": arguments["mask"][:, skip:]} if "mask" in arguments else {}
    canonical = h.movedim(axes, (0, 1)).contiguous()
    for index in indices_for(samples).values():
        new = exchange_moments(h, index, over, **arguments).movedim(axes, (0, 1))
        assert_same_bits(new[:, :, :skip], canonical[:, :, :skip])
        assert_close(new[:, :, skip:], exchange_moments(canonical[:, :, skip:], index, over, **rest))


# --- the oracle ------------------------------------------------------------------------------------------------------

LISTED = {"pono": PONO(), "instance_norm": IN(), "layer_norm": LN()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm_type", LISTED)
@pytest.mark.parametrize("index", [[1, 2, 3, 4, 0], [3, 1, 4, 0, 2], [2, 2, 2, 0, 0]], ids=str)
def test_an_exchange_is_the_papers_listing(norm_type, index, dtype):
    x, index = (torch.randn(5, 7, 4, 3, dtype=torch.float64) * 2 + 1).to(dtype), torch.tensor(index)
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    new = exchange_moments(ours, index, LISTED[norm_type])
    wanted, _, _ = reference.moex(exact, index, norm_type, index)
    assert_close(new, wanted)
    upstream = torch.randn(x.shape).to(dtype)
    new.backward(upstream)
    wanted.backward(upstream.double())
    assert_close(ours.grad, exact.grad, dtype)


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize(("over", "kind"), fitting("vectors", "sequences", "images", "volumes"), ids=str)
def test_an_exchange_is_what_it_is_by_hand(over, kind, correction):
    h, _, samples, _ = KINDS[kind](torch.float64)
    groups = groups_of(over) if has_channels(over) else h.shape[1]
    places = reference.places_of(h.shape, has_channels(over), has_space(over), groups)
    for index in indices_for(samples).values():
        x, upstream = h.clone().requires_grad_(), torch.randn_like(h)
        new = exchange_moments(x, index, over, correction=correction, eps=1e-2)
        wanted = reference.exchange(x, index, places, over.only, over != LRN(), 1e-2, correction)
        assert_close(new, wanted)
        assert_close(*(torch.autograd.grad(y, x, upstream)[0] for y in (new, wanted)))


def test_moving_the_mean_alone_shifts_and_moving_the_deviation_alone_stretches():
    h = torch.tensor([[[0.0], [2.0]], [[10.0], [30.0]]], dtype=torch.float64)
    index = torch.tensor([1, 0])
    shifted = exchange_moments(h, index, PONO(only="mean"))
    assert shifted.flatten().tolist() == pytest.approx([19.0, 21.0, -9.0, 11.0])
    stretched = exchange_moments(h, index, PONO(only="std"), eps=1e-12)
    assert stretched.flatten().tolist() == pytest.approx([-9.0, 11.0, 19.0, 21.0])


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_detached_moments_are_constants(over):
    h, index = torch.randn(5, 4, 3, 2, dtype=torch.float64), torch.tensor([1, 2, 2, 0, 0])
    x = h.clone().requires_grad_()
    groups = groups_of(over) if has_channels(over) else 4
    places = reference.places_of(h.shape, has_channels(over), has_space(over), groups)
    upstream = torch.randn_like(h)
    exchange_moments(x, index, over, detach=True).backward(upstream)
    for a in range(5):  # only row a is differentiated: nothing that it gives away counts
        own = h.clone().requires_grad_()
        mixed = torch.where(torch.arange(5).view(-1, 1, 1, 1) == a, own, h)
        row = reference.exchange(
            mixed, torch.where(torch.arange(5) == a, index, torch.arange(5)), places, over.only, over != LRN()
        )
        assert_close(x.grad[a], torch.autograd.grad(row[a], own, upstream[a])[0][a])


def test_the_moments_that_features_had_come_along_without_gradient():
    h = torch.randn(5, 4, 3, requires_grad=True)
    for over in OVERS:
        moments = exchange(h, torch.tensor([1, 2, 3, 4, 0]), How(over), mask=None, batch=None).moments
        assert not moments.mean.requires_grad
        assert not moments.std.requires_grad
        for ours, wanted in zip(moments, normalize(h, over)[1], strict=True):
            assert_close(ours, wanted.detach())


def test_an_index_of_32_bits_is_as_good():
    for kind, over in [("images", PONO()), ("masked", LN()), ("ragged", IN())]:
        h, arguments, samples, _ = KINDS[kind](torch.float32)
        index = indices_for(samples)["no permutation"]
        x = h.requires_grad_()
        new = [exchange_moments(x, i, over, **arguments) for i in (index.int(), index)]
        assert_same_bits(*new)
        assert_same_bits(*(torch.autograd.grad(out.sin().sum(), x)[0] for out in new))


# --- sizes at the edge -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_an_empty_batch_stays_empty(over):
    h = torch.zeros(0, 4, 3, 2, requires_grad=True)
    new = exchange_moments(h, torch.zeros(0, dtype=torch.int64), over)
    new.sum().backward()
    assert new.shape == h.grad.shape == h.shape


@pytest.mark.parametrize("over", POOLED, ids=repr)
def test_sets_without_any_point_stay_empty(over):
    h = torch.zeros(0, 4, requires_grad=True)
    arguments = {"batch": torch.zeros(0, dtype=torch.int64)}
    assert exchange_moments(h, torch.tensor([1, 0]), over, **arguments).shape == (0, 4)


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_a_batch_of_one_exchanges_nothing(over):
    h = torch.randn(1, 4, 3, 2)
    assert_same_bits(exchange_moments(h, torch.tensor([0]), over), h)


@pytest.mark.parametrize("over", [PONO(), PONO(groups=2), LRN()], ids=repr)
def test_features_without_positions_pass(over):
    assert exchange_moments(torch.zeros(2, 4, 0), torch.tensor([1, 0]), over).shape == (2, 4, 0)


# --- bad input -------------------------------------------------------------------------------------------------------

FEATURES = torch.randn(4, 6, 3)
NO_INDEX = {
    "a list": ([1, 0, 3, 2], r"index is a list; it must be a tensor of whole numbers with one axis: \(batch,\)\."),
    "floats": (torch.rand(4), r"index is torch\.float32 \(4,\); it must be a tensor of whole numbers with one axis"),
    "truths": (torch.ones(4, dtype=torch.bool), r"index is torch\.bool \(4,\); it must be a tensor of whole numbers"),
    "two axes": (torch.zeros(4, 1, dtype=torch.int64), r"index is torch\.int64 \(4, 1\); it must be a tensor of whole"),
    "too short": (
        torch.tensor([1, 0, 2]),
        r"index has 3 entries for a batch of 4 \(features \(4, 6, 3\)\); it needs one for each sample",
    ),
    "too long": (torch.arange(5), r"index has 5 entries for a batch of 4 \(features \(4, 6, 3\)\)"),
    "negative": (torch.tensor([0, 1, 2, -1]), r"index has entries from -1 to 2; for a batch of 4 they must"),
    "too large": (torch.tensor([0, 1, 2, 4]), r"index has entries from 0 to 4; for a batch of 4 they must"),
}


@pytest.mark.parametrize(("index", "text"), NO_INDEX.values(), ids=NO_INDEX)
def test_an_index_that_pairs_nobody_is_refused(index, text):
    with pytest.raises(PairingError, match=text) as caught:
        exchange_moments(FEATURES, index)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MomentexError)


def test_an_unknown_keyword_is_refused_with_the_near_one():
    with pytest.raises(TypeError, match=r"^unexpected keyword 'chanel_dim'\. Did you mean 'channel_dim'"):
        How.of(PONO(), {"chanel_dim": 1})
    with pytest.raises(TypeError, match=r"^unexpected keyword 'zzz'\. Known are channel_dim, batch_dim, skip, eps, "):
        How.of(PONO(), {"zzz": 1})


def test_keywords_say_how():
    how = How.of(LN(only="std"), {"channel_dim": -1, "skip": 1, "eps": 1e-3, "detach": True})
    assert (how.layout.channel_dim, how.layout.batch_dim, how.layout.skip) == (-1, 0, 1)
    assert (how.eps, how.correction, how.compiled) == (1e-3, 1, False)
    assert how.moves == (False, True, True)
