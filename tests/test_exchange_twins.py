"""The fast path against the readable reference, derivatives of both orders, and torch's other ways to differentiate."""

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck

import momentex.exchange
from momentex import IN, LN, LRN, PONO, exchange_moments
from momentex.exchange import How, Layout, _Fast, _readable, sit_out
from momentex.opened import open_features
from tests.compare import assert_close, assert_same_bits
from tests.strategies import KINDS, OVERS, fitting, indices_for

# torch itself scripts its decompositions when forward mode is first used.
scripted = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")


def _opened(h, index, over, arguments, detach=False, eps=1e-5):
    """What both paths are given: opened features that want a gradient, the index, the groups and what moves."""
    layout = Layout(*(arguments.get(name, d) for name, d in (("channel_dim", 1), ("batch_dim", 0), ("skip", 0))))
    opened = open_features(
        h,
        over,
        layout,
        mask=arguments.get("mask"),
        batch=arguments.get("batch"),
        sets=len(index),
        eps=eps,
        correction=1,
    )
    groups = opened.groups
    return opened.v.detach().requires_grad_(), sit_out(index, groups.enough), groups, How(over, detach=detach).moves


def _assert_twins(case):
    v = case[0]
    fast, mean, std = _Fast.apply(*case)
    readable, moments = _readable(*case)
    assert_close(fast, readable)
    assert_close(mean, moments.mean)
    assert_close(std, moments.std)
    upstream = torch.randn_like(v)
    assert_close(*(grad(out, v, upstream)[0] for out in (fast, readable)))


@pytest.mark.parametrize("block", [1, 50, 2**20])
@pytest.mark.parametrize(("over", "kind"), fitting(), ids=str)
def test_the_fast_path_is_the_readable_reference(over, kind, block, monkeypatch):
    monkeypatch.setattr(momentex.exchange, "_BLOCK", block)
    h, arguments, samples, _ = KINDS[kind](torch.float64)
    for index in indices_for(samples).values():
        _assert_twins(_opened(h, index, over, arguments))
        _assert_twins(_opened(h, index, over, arguments, detach=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("over", "kind"), fitting("images", "channels last", "masked", "ragged"), ids=str)
def test_the_fast_path_is_the_readable_reference_in_short_dtypes(over, kind, dtype, monkeypatch):
    monkeypatch.setattr(momentex.exchange, "_BLOCK", 50)
    monkeypatch.setattr(momentex.exchange, "_NARROW_LEAST", 50)
    monkeypatch.setattr(momentex.exchange, "_NARROW_MOST", 50)
    h, arguments, samples, _ = KINDS[kind](dtype)
    v, *rest = _opened(h, indices_for(samples)["no permutation"], over, arguments, eps=1e-2)
    upstream = torch.randn_like(v)
    fast, readable = _Fast.apply(v, *rest)[0], _readable(v, *rest)[0]
    assert_close(fast, readable)
    assert fast.dtype == readable.dtype == dtype
    exact = v.detach().double().requires_grad_()
    wanted = grad(_readable(exact, *rest)[0], exact, upstream.double())[0]
    assert_close(grad(fast, v, upstream)[0], wanted, dtype)


@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize(("over", "kind"), fitting("images", "masked", "ragged"), ids=str)
def test_samples_that_keep_themselves_get_their_own_gradient_bit_by_bit(over, kind, block, monkeypatch):
    monkeypatch.setattr(momentex.exchange, "_BLOCK", block)
    h, arguments, samples, _ = KINDS[kind](torch.float32)
    case, upstream = _opened(h, torch.arange(samples), over, arguments), torch.randn_like(h)
    for out in (_Fast.apply(*case)[0], _readable(*case)[0]):
        assert_same_bits(grad(out, case[0], upstream.view_as(out))[0], upstream.view_as(out))


SMALL = {
    "images": (torch.randn(3, 4, 2, 2, dtype=torch.float64), {}),
    "masked": (
        torch.randn(4, 4, 4, dtype=torch.float64),
        {"mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [0, 1, 0, 0], [1, 1, 0, 0]])},
    ),
    "ragged": (torch.randn(9, 4, dtype=torch.float64), {"batch": torch.tensor([0, 1, 1, 0, 2, 3, 3, 3, 0])}),
    "prefix": (torch.randn(3, 4, 4, dtype=torch.float64), {"channel_dim": -1, "skip": 1}),
}
PAIRED = {"permutation": [1, 2, 0], "no permutation": [1, 1, 0]}


def _small(kind, paired):
    h, arguments = SMALL[kind]
    index = torch.tensor([*PAIRED[paired], 0] if kind in ("masked", "ragged") else PAIRED[paired])
    return h.clone().requires_grad_(), index, arguments


SMALL_CASES = [
    (over, kind) for over in OVERS for kind in SMALL if kind not in ("masked", "ragged") or isinstance(over, IN | LN)
]


@pytest.mark.parametrize("paired", PAIRED)
@pytest.mark.parametrize(("over", "kind"), SMALL_CASES, ids=str)
def test_gradients_are_those_of_finite_differences(over, kind, paired, monkeypatch):
    monkeypatch.setattr(momentex.exchange, "_BLOCK", 20)
    h, index, arguments = _small(kind, paired)
    assert gradcheck(lambda h: exchange_moments(h, index, over, eps=1e-2, **arguments), h, check_batched_grad=False)


@pytest.mark.parametrize(("over", "kind"), SMALL_CASES, ids=str)
def test_gradients_of_gradients_are_those_of_finite_differences(over, kind):
    h, index, arguments = _small(kind, "no permutation")
    assert gradgradcheck(lambda h: exchange_moments(h, index, over, eps=1e-2, **arguments), h, fast_mode=True)


@pytest.mark.parametrize("over", [PONO(), IN(), LN(only="std")], ids=repr)
@pytest.mark.parametrize("detach", [False, True])
def test_a_gradient_with_a_graph_equals_one_without(over, detach):
    h, index, _ = _small("images", "no permutation")
    loss = exchange_moments(h, index, over, detach=detach).square().sum()
    with_graph = grad(loss, h, create_graph=True)[0]
    assert with_graph.requires_grad
    assert_close(with_graph.detach(), grad(loss, h)[0])


@pytest.mark.parametrize("over", [PONO(), LN()], ids=repr)
def test_a_gradient_penalty_is_differentiated_through_the_readable_reference(over):
    h, index, _ = _small("images", "no permutation")
    case, upstream = _opened(h, index, over, {}), torch.randn(3, 4, 2, 2, dtype=torch.float64)
    penalties = []
    for out in (_Fast.apply(*case)[0], _readable(*case)[0]):
        first = grad(out.sin(), case[0], upstream.view_as(out), create_graph=True)[0]
        penalties.append(grad(first.square().sum(), case[0])[0])
    assert_close(*penalties)


@pytest.mark.parametrize(("over", "kind"), fitting("masked", "masked images", "ragged"), ids=str)
@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30])
def test_padding_never_matters_to_compilers_and_second_derivatives_either(over, kind, fill):
    h, arguments, samples, _ = KINDS[kind](torch.float64)
    if "mask" in arguments:
        valid = arguments["mask"].bool()[:, None].expand_as(h)
        dirty = torch.where(valid, h, fill)
    else:
        valid, dirty = torch.ones_like(h, dtype=torch.bool), h
    index = indices_for(samples)["no permutation"]
    first = [_first_and_second(t, index, over, arguments, valid) for t in (h, dirty)]
    for clean_one, dirty_one in zip(*first, strict=True):
        assert_same_bits(dirty_one, clean_one)


def _first_and_second(h, index, over, arguments, valid):
    h = h.clone().requires_grad_()
    loss = exchange_moments(h, index, over, **arguments)[valid].sin().sum()
    first = grad(loss, h, create_graph=True)[0]
    return first.detach(), grad(first[valid].square().sum(), h)[0]


@pytest.mark.parametrize(("over", "kind"), fitting("images", "masked", "tokens", "ragged"), ids=str)
def test_the_functional_gradient_is_the_gradient(over, kind):
    h, arguments, samples, _ = KINDS[kind](torch.float64)
    index = indices_for(samples)["no permutation"]
    x = h.clone().requires_grad_()

    def loss(h):
        return exchange_moments(h, index, over, **arguments).sin().sum()

    assert_close(torch.func.grad(loss)(h), grad(loss(x), x)[0])


@pytest.mark.parametrize("over", [PONO(), IN(), LN(), LRN()], ids=repr)
def test_vmap_is_a_loop(over):
    h, indices = torch.randn(4, 5, 4, 3, dtype=torch.float64), torch.tensor([[1, 2, 0, 3, 3], [4, 3, 2, 1, 0]] * 2)
    many = torch.vmap(lambda h, index: exchange_moments(h, index, over))(h, indices)
    for one, x, index in zip(many, h, indices, strict=True):
        assert_close(one, exchange_moments(x, index, over))


@pytest.mark.parametrize(("over", "kind"), [(LN(), "masked"), (IN(), "ragged")], ids=str)
def test_vmap_is_a_loop_for_padded_samples_and_ragged_sets_too(over, kind):
    h, arguments, samples, _ = KINDS[kind](torch.float64)
    index = indices_for(samples)["no permutation"]
    many = torch.vmap(lambda h: exchange_moments(h, index, over, **arguments))(torch.stack([h, h.flip(0)]))
    for one, x in zip(many, (h, h.flip(0)), strict=True):
        assert_close(one, exchange_moments(x, index, over, **arguments))


@pytest.mark.parametrize(("over", "kind"), fitting("images", "masked", "ragged"), ids=str)
def test_backward_twice_is_the_same_twice(over, kind):
    h, arguments, samples, _ = KINDS[kind](torch.float32)
    x = h.requires_grad_()
    loss = exchange_moments(x, indices_for(samples)["no permutation"], over, **arguments).sin().sum()
    assert_same_bits(*(grad(loss, x, retain_graph=True)[0] for _ in range(2)))


@scripted
def test_hessians_of_every_make_agree():
    h, index, _ = _small("images", "no permutation")

    def loss(h):
        return exchange_moments(h, index).sin().sum()

    assert_close(torch.func.hessian(loss)(h.detach()), torch.autograd.functional.hessian(loss, h))


@scripted
@pytest.mark.parametrize("over", [PONO(), IN(), LN(only="std"), LRN()], ids=repr)
def test_forward_mode_agrees_with_backward_mode(over):
    h, index, _ = _small("images", "no permutation")
    tangent, upstream = torch.randn_like(h), torch.randn_like(h)
    out, pushed = torch.func.jvp(lambda h: exchange_moments(h, index, over), (h.detach(),), (tangent,))
    new = exchange_moments(h, index, over)
    assert_close(out, new.detach())
    assert_close((pushed * upstream).sum(), (grad(new, h, upstream)[0] * tangent).sum())


@scripted
def test_jacobians_of_every_make_agree():
    h, index, _ = _small("images", "no permutation")
    by_rows = torch.autograd.functional.jacobian(lambda h: exchange_moments(h, index), h)
    assert_close(torch.func.jacrev(lambda h: exchange_moments(h, index))(h.detach()), by_rows)
    assert_close(torch.func.jacfwd(lambda h: exchange_moments(h, index))(h.detach()), by_rows)


@scripted
def test_many_gradients_at_once_are_right():
    h, index, _ = _small("images", "no permutation")
    by_rows = torch.autograd.functional.jacobian(lambda h: exchange_moments(h, index), h)
    at_once = torch.autograd.functional.jacobian(lambda h: exchange_moments(h, index), h, vectorize=True)
    assert_close(at_once, by_rows)


@scripted
def test_dual_tensors_outside_of_torch_func_are_refused_rather_than_wrong():
    h, index, _ = _small("images", "no permutation")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(h.detach(), torch.ones_like(h))
        with pytest.raises(NotImplementedError, match="forward mode AD"):
            exchange_moments(dual, index)
