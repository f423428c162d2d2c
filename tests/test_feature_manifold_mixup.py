"""Manifold mixup: the formula by hand, at every layer, through everything that Moment Exchange goes through."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from momentex import Beta, MomentExchange, Plan, Targets, exchange_moments
from momentex.errors import FeatureError, LayerDidNotFire, LayerNotFound, OutOfRange, PairingError, StepError
from momentex.feature.manifold_mixup import ManifoldMixup, manifold_mixup
from tests.models import (
    Batch,
    Checkpointed,
    Net,
    Tokens,
    assert_same_gradients,
    assert_same_state,
    batch,
    differ,
    gradients,
    net,
    rolled,
    same,
    twin,
)

LAYERS = ("stem", "layer1", "layer2")  # the input of the stem is that of the model


def mixed_by_hand(h: Tensor, given: Plan) -> Tensor:
    """λ h_i + (1 − λ) h_index[i], sample by sample."""
    lam = torch.as_tensor(given.lam).expand(len(h))
    return torch.stack([lam[i] * h[i] + (1 - lam[i]) * h[given.index[i]] for i in range(len(h))])


def loss_by_hand(model: Net, at: Batch, given: Plan) -> Tensor:
    h = at.x
    for name in (*LAYERS, "head"):
        if given.on and name == given.layer:
            h = mixed_by_hand(h, given)
        layer = getattr(model, name)
        h = layer(h.mean((2, 3)) if name == "head" else h)
    lam = torch.as_tensor(given.lam).expand(len(at.y))
    own, other = (F.cross_entropy(h, y, reduction="none") for y in (at.y, at.y[given.index]))
    return (lam * own + (1 - lam) * other).mean()


def loss_in_block(model: nn.Module, mixup: ManifoldMixup, at: Batch, given: Plan | None = None) -> Tensor:
    with mixup(at.y, plan=given) as targets:
        return targets.cross_entropy(model(at.x))


def plan(layer: str = "layer1", lam: float | Tensor = 0.7, by: int = 1, size: int = 6) -> Plan:
    return Plan(rolled(size, by), lam, layer)


OFF = Plan(torch.arange(6), 1.0, "layer1", on=False)
EACH = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7, 1.0])


# --- the operation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.3, 0.8, EACH], ids=["small", "large", "each its own"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_it_is_the_formula_by_hand_in_values_and_gradients(dtype: torch.dtype, lam: float | Tensor) -> None:
    given = plan(lam=lam)
    found, by_hand = (batch().x.to(dtype).requires_grad_() for _ in range(2))
    up = torch.randn(found.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    ours, theirs = manifold_mixup(found, given.index, lam), mixed_by_hand(by_hand, given)
    ours.backward(up)
    theirs.to(dtype).backward(up)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(ours, theirs.to(dtype), **close)
    torch.testing.assert_close(found.grad, by_hand.grad, **close)


def test_samples_that_are_their_own_partners_come_out_bit_identical() -> None:
    h = torch.tensor([[-0.0, 1e30, 1e-40], [3.0, -0.1, 7.0], [1.0, 2.0, 3.0]])
    mixed = manifold_mixup(h, torch.tensor([0, 2, 2]), 0.3)
    assert same(mixed[0], h[0])
    assert same(mixed[2], h[2])
    torch.testing.assert_close(mixed[1], 0.3 * h[1] + 0.7 * h[2])


def test_halves_are_weighted_with_a_lam_that_is_not_rounded_to_halves() -> None:
    h = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16).expand(2, 4096)
    mixed = manifold_mixup(h * 256, torch.tensor([1, 0]), 0.9)
    assert mixed[0, 0] == torch.tensor(230.4).to(torch.bfloat16)


def test_the_batch_may_be_another_axis() -> None:
    h = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    across = manifold_mixup(h, rolled(6), 0.4, batch_dim=1)
    torch.testing.assert_close(across, manifold_mixup(h.transpose(0, 1), rolled(6), 0.4).transpose(0, 1))


@pytest.mark.parametrize(
    ("h", "index", "lam", "error", "text"),
    [
        (torch.arange(6).view(3, 2), rolled(3), 0.5, FeatureError, "int64: what lies between two of them"),
        (torch.zeros(3, 2), rolled(4), 0.5, PairingError, r"index has 4 entries for features \(3, 2\)"),
        (torch.zeros(3, 2), rolled(3), torch.ones(2), PairingError, r"lam is a tensor \(2,\) for 3 samples"),
    ],
    ids=["whole numbers", "another batch", "another number of λ"],
)
def test_what_cannot_be_mixed_is_said(h: Tensor, index: Tensor, lam: float | Tensor, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        manifold_mixup(h, index, lam)


# --- attached --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.7, EACH], ids=["one λ", "each its own"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_block_computes_the_loss_and_gradients_by_hand_at_every_layer(layer: str, lam: float | Tensor) -> None:
    model, by_hand = net(), net()
    mixup = ManifoldMixup(model, LAYERS)
    ours, theirs = (
        loss_in_block(model, mixup, batch(), plan(layer, lam)),
        loss_by_hand(by_hand, batch(), plan(layer, lam)),
    )
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    assert_same_gradients(model, by_hand)
    plain = net()
    F.cross_entropy(plain(batch().x), batch().y).backward()
    assert differ(gradients(model).values(), gradients(plain).values())


def test_at_the_input_of_the_first_layer_it_is_mixup() -> None:
    model, other, at = net(), net(), batch()
    mixup, given = ManifoldMixup(model, "stem"), plan("stem", 0.6)
    x = 0.6 * at.x + 0.4 * at.x[given.index]
    targets = Targets(at.y).mixed_with(given.index, 0.6)
    torch.testing.assert_close(loss_in_block(model, mixup, at, given), targets.cross_entropy(other(x)))


def test_outside_of_blocks_the_model_is_plain_and_its_state_has_the_same_keys() -> None:
    model, plain = net(), net()
    mixup = ManifoldMixup(model, LAYERS)
    loss_in_block(model, mixup, batch())
    plain.load_state_dict(model.state_dict())
    assert_same_state(model, plain)
    assert same(model(batch().x), plain(batch().x))
    copied = copy.deepcopy(model)
    with mixup(batch().y):
        assert same(copied.eval()(batch().x), plain.eval()(batch().x))
        model(batch().x)
    mixup.remove()
    with pytest.raises(StepError, match="this ManifoldMixup was removed from its model"):
        mixup(batch().y)


@pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])
def test_recomputed_layers_find_the_weight_of_their_own_block(reentrant: bool) -> None:
    model, by_hand = net(Checkpointed, reentrant=reentrant, batch_norm=False), net(batch_norm=False)
    mixup = ManifoldMixup(model, LAYERS)
    plans = [plan("layer1", 0.9), OFF, plan("layer2", 0.2, by=2), plan("layer1", EACH, by=3)]
    sum(loss_in_block(model, mixup, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    assert_same_gradients(model, by_hand)


def test_a_compiled_model_is_the_eager_one_and_neither_lam_nor_pairs_recompile() -> None:
    torch._dynamo.reset()
    model, eager = net(batch_norm=False), net(batch_norm=False)
    mixup, other = ManifoldMixup(model, "layer1"), ManifoldMixup(eager, "layer1")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for given in (plan(), OFF, plan(lam=0.1), plan(lam=EACH, by=2), plan(lam=0.55)):
        found = []
        for called, owner in ((compiled, mixup), (eager, other)):
            with owner(batch().y, plan=given) as targets:
                found.append(targets.cross_entropy(called(batch().x)))
        torch.testing.assert_close(*found)
    assert counter.frame_count == 2
    torch._dynamo.reset()


def test_one_shared_step_object_is_entered_once_and_a_layer_that_does_not_fire_is_found() -> None:
    model = net()
    mixup = ManifoldMixup(model, LAYERS)
    step = mixup(batch().y)
    with step:
        model(batch().x)
    with pytest.raises(StepError, match=r"ask for a new one for every forward pass: mixup\(y\)"), step:
        pass
    with (
        pytest.raises(LayerDidNotFire, match="Call the model that ManifoldMixup was attached to"),
        mixup(batch().y),
    ):
        pass


# --- plans -----------------------------------------------------------------------------------------------------------


def drawn(**arguments: object) -> list[Plan]:
    """The plans of forty steps."""
    mixup = ManifoldMixup(net(), LAYERS, **arguments)
    return [mixup.draw(torch.arange(6)) for _ in range(40)]


def test_layers_are_drawn_anew_for_each_step_and_all_are_eligible() -> None:
    plans = drawn()
    assert {p.layer for p in plans} == set(LAYERS)
    assert len({p.lam for p in plans}) == len(plans)
    assert [p.layer for p in plans] == [p.layer for p in drawn()] != [p.layer for p in drawn(seed=1)]


def test_lam_is_of_the_beta_distribution_that_alpha_names() -> None:
    mixup = ManifoldMixup(net(), LAYERS, alpha=0.2, per="sample")
    assert mixup.lam == Beta(0.2, per="sample")
    lam = torch.cat([torch.as_tensor(mixup.draw(torch.arange(500)).lam) for _ in range(8)])
    assert abs(lam.mean() - 0.5) < 0.03
    assert abs(lam.var() - 1 / (4 * (2 * 0.2 + 1))) < 0.02


def test_pairs_are_those_of_moment_exchange_and_coins_and_lam_its_own() -> None:
    moex = MomentExchange(net(), "layer1", p=0.5, lam=Beta(1.0))
    exchanged = [moex._draw(6, torch.arange(6), None) for _ in range(40)]
    mixed = drawn(p=0.5)
    assert any(a.on != b.on for a, b in zip(exchanged, mixed, strict=True))
    both = [(a, b) for a, b in zip(exchanged, mixed, strict=True) if a.on and b.on]
    assert both
    assert all(torch.equal(a.index, b.index) and a.lam != b.lam for a, b in both)


def test_all_ranks_take_the_same_branch_with_pairs_of_their_own() -> None:
    zero, one = drawn(rank=0), drawn(rank=1)
    assert [(p.layer, p.lam, p.on) for p in zero] == [(p.layer, p.lam, p.on) for p in one]
    assert any(not torch.equal(a.index, b.index) for a, b in zip(zero, one, strict=True))


def test_it_goes_on_where_its_state_was_taken() -> None:
    first = ManifoldMixup(net(), LAYERS, seed=3)
    [first.draw(torch.arange(6)) for _ in range(5)]
    second = ManifoldMixup(net(), LAYERS)
    second.load_state_dict(first.state_dict())
    a, b = (m.draw(torch.arange(6)) for m in (first, second))
    assert (a.lam, a.layer, a.index.tolist()) == (b.lam, b.layer, b.index.tolist())


# --- with Moment Exchange --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed_at", ["stem", "layer2"], ids=["mixed first", "exchanged first"])
def test_with_moment_exchange_labels_are_those_that_went_into_each_sample(mixed_at: str) -> None:
    """Pairs of their own: each sample may hold four samples, in the order of the layers."""
    model, by_hand, at = net(), net(), batch()
    moex, mixup = MomentExchange(model, "layer1", p=1.0), ManifoldMixup(model, LAYERS)
    exchanged, mixed = Plan(rolled(6, 2), 0.9, "layer1"), plan(mixed_at, 0.6)
    outer, inner = (mixup, moex) if mixed_at == "stem" else (moex, mixup)
    plans = {id(moex): exchanged, id(mixup): mixed}
    with outer(at.y, plan=plans[id(outer)]) as some, inner(some, plan=plans[id(inner)]) as targets:
        ours = targets.cross_entropy(model(at.x))
    h = by_hand.stem(mixed_by_hand(at.x, mixed) if mixed_at == "stem" else at.x)
    h = by_hand.layer1(exchange_moments(h, exchanged.index))
    h = by_hand.layer2(mixed_by_hand(h, mixed) if mixed_at == "layer2" else h)
    soft = F.one_hot(at.y, 5).float()
    for given in (mixed, exchanged) if mixed_at == "stem" else (exchanged, mixed):
        soft = mixed_by_hand(soft, given)
    theirs = F.cross_entropy(by_hand.head(h.mean((2, 3))), soft)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    assert_same_gradients(model, by_hand)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"layers": "layer1", "alpha": 0.0}, OutOfRange, "both parameters must be greater than 0"),
        ({"layers": "layer1", "p": 1.5}, OutOfRange, "p is 1.5"),
        ({"layers": ("layer1", "layr2")}, LayerNotFound, "Did you mean 'layer2'"),
        ({"layers": ()}, LayerNotFound, "name one layer"),
        ({"layers": "layer1", "per": "element"}, PairingError, "per is 'element'"),
    ],
    ids=["alpha", "p", "layer", "no layer", "per"],
)
def test_arguments_that_cannot_be_are_refused_and_leave_the_model_alone(
    arguments: dict, error: type, text: str
) -> None:
    model = net()
    before = twin(model)
    with pytest.raises(error, match=text):
        ManifoldMixup(model, **arguments)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert_same_state(model, before)


def test_inputs_that_are_no_numbers_to_mix_are_an_error_in_the_block() -> None:
    model = Tokens(nn.Identity())
    model.stem = nn.Embedding(9, 6)
    mixup = ManifoldMixup(model, ("stem", "mix"))
    tokens = torch.randint(9, (6, 4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(FeatureError, match="Mix after embedding"), mixup(rolled(6), plan=plan("stem")):
        model(tokens)
    with mixup(rolled(6) % 5, plan=plan("mix")) as targets:
        targets.cross_entropy(model(tokens)).backward()
