"""Accuracy, memory, dtypes and memory formats; features that are constant, huge or infinite."""

import pytest
import torch

import momentex.exchange
from momentex import GN, IN, LN, LRN, PONO, exchange_moments
from tests import reference
from tests.compare import DTYPES, assert_close, assert_same_bits, error
from tests.strategies import KINDS, OVERS, fitting, groups_of, has_channels, has_space, indices_for

INDEX = torch.tensor([1, 2, 3, 4, 0])
LISTED = {"pono": PONO(), "instance_norm": IN(), "layer_norm": LN()}
INPUTS = {
    "normal": lambda shape: torch.randn(shape),
    "after ReLU": lambda shape: torch.randn(shape).relu(),
    "far from zero": lambda shape: 100 + torch.randn(shape),
    "very far from zero": lambda shape: 1e4 + torch.randn(shape),
    "large": lambda shape: 300 * torch.randn(shape),
}


def _value_and_gradient(function, x, upstream):
    x = x.detach().clone().requires_grad_()
    out = function(x)
    out.backward(upstream.to(out.dtype))
    return out.detach(), x.grad


def _errors(name, x, index):
    """(value, gradient) of ours and of the listing in this dtype, each against the listing in float64."""
    upstream = torch.randn(x.shape).to(x.dtype)
    exact = _value_and_gradient(lambda x: reference.moex(x, x, name, index)[0], x.double(), upstream)
    ours = _value_and_gradient(lambda x: exchange_moments(x, index, LISTED[name]), x, upstream)
    theirs = _value_and_gradient(lambda x: reference.moex(x, x, name, index)[0], x, upstream)
    return [(error(o, e), error(t, e)) for o, t, e in zip(ours, theirs, exact, strict=True)]


@pytest.mark.parametrize("block", [2**8, 2**20])
@pytest.mark.parametrize("name", LISTED)
def test_the_error_in_float32_is_at_most_one_in_a_hundred_thousand(name, block, monkeypatch):
    monkeypatch.setattr(momentex.exchange, "_BLOCK", block)
    x = torch.randn(16, 16, 8, 8)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for ours, _ in _errors(name, x.contiguous(memory_format=memory_format), torch.randperm(16)):
            assert ours <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inputs", ["normal", "after ReLU", "far from zero"])
@pytest.mark.parametrize("name", LISTED)
def test_the_error_is_no_larger_than_that_of_the_papers_listing_in_the_same_dtype(name, inputs, dtype):
    x = INPUTS[inputs]((16, 16, 8, 8)).to(dtype)
    for ours, theirs in _errors(name, x, torch.randperm(16)):
        assert ours <= theirs * 1.05  # where both are off by the rounding of the result, either may be lucky


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize(
    ("dtype", "inputs", "limit"),
    [(torch.float32, "very far from zero", 0.02), (torch.float16, "large", 0.01)],
    ids=str,
)
def test_numbers_far_from_zero_and_large_numbers_in_short_dtypes_are_right(name, dtype, inputs, limit):
    x = INPUTS[inputs]((8, 16, 8, 8)).to(dtype)
    for ours, _ in _errors(name, x, torch.randperm(8)):
        assert ours <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_constant_features_have_finite_values_and_gradients(over, value, dtype):
    h = torch.full((5, 4, 3, 2), value, dtype=dtype)
    h[0] = torch.randn(4, 3, 2).to(dtype)
    for index in indices_for(5).values():
        new, gradient = _value_and_gradient(lambda h, i=index: exchange_moments(h, i, over), h, torch.randn(h.shape))
        assert new.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("over", OVERS, ids=repr)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_one_infinite_number_touches_its_sample_its_receiver_and_its_donor_alone(over, bad):
    clean, upstream = torch.randn(5, 4, 3, 2), torch.randn(5, 4, 3, 2)
    dirty = clean.clone()
    dirty[2, 0, 0, 0] = bad
    (new, gradient), (wanted, wanted_gradient) = (
        _value_and_gradient(lambda h: exchange_moments(h, INDEX, over), h, upstream) for h in (dirty, clean)
    )
    assert_same_bits(new[[0, 3, 4]], wanted[[0, 3, 4]])  # not 2 itself, and not 1, which receives from it
    assert_same_bits(gradient[[0, 4]], wanted_gradient[[0, 4]])  # nor 3, which gives to it
    assert new.isfinite().logical_not().any()


@pytest.mark.parametrize("over", [over for over in OVERS if not has_space(over)], ids=repr)
def test_one_infinite_number_touches_one_position_of_positional_moments(over):
    dirty = torch.randn(5, 4, 3, 2)
    dirty[2, 0, 1, 1] = float("inf")
    new, gradient = _value_and_gradient(lambda h: exchange_moments(h, INDEX, over), dirty, torch.ones(5, 4, 3, 2))
    position = torch.zeros(3, 2, dtype=torch.bool)
    position[1, 1] = True
    assert new[..., ~position].isfinite().all()
    assert gradient[..., ~position].isfinite().all()


# --- dtype, memory format, nothing in place --------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "kind"), fitting(), ids=str)
def test_features_keep_their_dtype_their_strides_and_their_numbers(over, kind):
    for dtype in DTYPES:
        h, arguments, samples, _ = KINDS[kind](dtype)
        before, version = h.clone(), h._version
        new = exchange_moments(h, indices_for(samples)["no permutation"], over, **arguments)
        assert (new.dtype, new.shape, h._version) == (dtype, h.shape, version)
        assert_same_bits(h, before)
        if kind in ("images", "channels last", "tokens", "time first", "prefix", "masked tokens"):
            assert new.stride() == h.stride()


@pytest.mark.parametrize("over", OVERS, ids=repr)
@pytest.mark.parametrize("shape", [(1, 4, 3, 2), (5, 4, 1, 2), (5, 4, 3, 2)], ids=str)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_memory_format_is_kept_forward_and_backward(over, shape, memory_format):
    h = torch.randn(shape).contiguous(memory_format=memory_format).requires_grad_()
    new = exchange_moments(h, torch.arange(shape[0]).roll(1), over)
    assert new.is_contiguous(memory_format=memory_format)
    gradient = torch.autograd.grad(new, h, torch.randn(shape))[0]
    assert gradient.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_volumes_keep_their_memory_format(over):
    h = torch.randn(3, 4, 2, 3, 2).to(memory_format=torch.channels_last_3d)
    new = exchange_moments(h, torch.tensor([1, 2, 0]), over)
    assert new.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_layouts_in_memory_do_not_matter(over):
    h, upstream = torch.randn(5, 4, 3, 2, dtype=torch.float64), torch.randn(5, 4, 3, 2, dtype=torch.float64)
    wanted = _value_and_gradient(lambda h: exchange_moments(h, INDEX, over), h, upstream)
    wide = torch.zeros(5, 8, 3, 2, dtype=torch.float64)
    wide[:, ::2] = h
    for same in (h.to(memory_format=torch.channels_last), wide[:, ::2], h.movedim(1, 3).contiguous().movedim(3, 1)):
        x = same.detach().requires_grad_()
        new = exchange_moments(x, INDEX, over)
        assert_close(new, wanted[0])
        assert_close(torch.autograd.grad(new, x, upstream.to(memory_format=torch.channels_last))[0], wanted[1])


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_a_gradient_that_is_one_number_everywhere_may_arrive_expanded(over):
    h = torch.randn(5, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    expanded = torch.autograd.grad(exchange_moments(h, INDEX, over).sum(), h)[0]
    full = torch.autograd.grad(exchange_moments(h, INDEX, over), h, torch.ones(5, 4, 3, 2, dtype=torch.float64))[0]
    assert_close(expanded, full)


def test_the_source_of_a_view_gets_its_gradient():
    source = torch.randn(1, 8, 3, 2, dtype=torch.float64, requires_grad=True)
    h = source.expand(5, -1, -1, -1)[:, ::2]
    index, factor = torch.tensor([1, 1, 0, 3, 2]), torch.arange(1.0, 6.0).view(-1, 1, 1, 1)
    groups = reference.places_of((5, 4, 3, 2), True, False, 1)
    wanted = reference.exchange(h * factor, index, groups)
    new = exchange_moments(h * factor, index)
    assert_close(*(torch.autograd.grad(y.sin().sum(), source, retain_graph=True)[0] for y in (new, wanted)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("over", "kind"), fitting("images", "masked", "ragged"), ids=str)
def test_it_works_where_nothing_is_differentiated(over, kind, mode):
    h, arguments, samples, _ = KINDS[kind](torch.float32)
    index = indices_for(samples)["no permutation"]
    wanted = exchange_moments(h.requires_grad_(), index, over, **arguments)
    with mode():
        new = exchange_moments(h, index, over, **arguments)
    assert_same_bits(new, wanted)
    assert not new.requires_grad
    assert not exchange_moments(h.detach(), index, over, **arguments).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_autocast_changes_nothing(over, dtype):
    h, upstream = (100 + torch.randn(5, 4, 3, 2)).to(dtype), torch.randn(5, 4, 3, 2).to(dtype)
    wanted = _value_and_gradient(lambda h: exchange_moments(h, INDEX, over), h, upstream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        new = _value_and_gradient(lambda h: exchange_moments(h, INDEX, over), h, upstream)
    for ours, without in zip(new, wanted, strict=True):
        assert_same_bits(ours, without)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_short_dtypes_are_rounded_once_at_the_end(over, dtype):
    h = (100 + torch.randn(5, 4, 3, 2)).to(dtype)
    wanted = exchange_moments(h.float(), INDEX, over).to(dtype)
    assert_close(exchange_moments(h, INDEX, over), wanted)
    assert (exchange_moments(h, INDEX, over) == wanted).float().mean() > 0.95


# --- what is kept for backward ---------------------------------------------------------------------------------------


def _kept_beyond(h, call):
    """Bytes that are saved for backward in memory that is not that of `h`."""
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() != h.untyped_storage().data_ptr():
            kept[storage.data_ptr()] = (storage.nbytes(), t.dtype)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(h)
    return kept, out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("over", [*OVERS, GN(4)], ids=repr)
def test_two_moment_maps_in_float32_and_the_index_are_kept_for_backward_and_nothing_else(over, dtype):
    h = torch.randn(5, 8, 3, 2).to(dtype).requires_grad_()
    kept, out = _kept_beyond(h, lambda h: exchange_moments(h, INDEX, over))
    map_size = 5 * (groups_of(over) if has_channels(over) else 8) * (1 if has_space(over) else 6)
    assert sorted(bytes_ for bytes_, _ in kept.values()) == sorted([4 * map_size, 4 * map_size, 8 * len(INDEX)])
    assert {kind for _, kind in kept.values()} == {torch.float32, torch.int64}
    assert out.requires_grad


@pytest.mark.parametrize(("over", "kind"), fitting("channels last", "tokens", "prefix", "masked", "ragged"), ids=str)
def test_layouts_masks_and_sets_keep_no_copy_of_the_features(over, kind):
    h, arguments, samples, _ = KINDS[kind](torch.float32)
    h, index = h.requires_grad_(), indices_for(samples)["no permutation"]
    kept, _ = _kept_beyond(h, lambda h: exchange_moments(h, index, over, **arguments))
    assert len(kept) <= 3
    assert all(bytes_ < h.nbytes for bytes_, _ in kept.values()) or has_channels(over) is False


def test_nothing_is_kept_where_nothing_is_differentiated():
    kept, _ = _kept_beyond(torch.randn(5, 4, 3, 2), lambda h: exchange_moments(h, INDEX, LRN()))
    assert not kept
