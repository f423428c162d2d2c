"""The step: what a block does, what it refuses, and that a step depends on (seed, step, rank) alone."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentex import IN, Beta, MomentExchange, Plan, Targets
from momentex.errors import (
    GroupError,
    LayerDidNotFire,
    LayerNotFound,
    MomentexWarning,
    OutOfRange,
    PairingError,
    ShapeError,
    StepError,
    TargetError,
)
from tests.models import (
    CLASSES,
    Net,
    Tokens,
    assert_same_gradients,
    batch,
    differ,
    gradients,
    loss_by_hand,
    loss_in_block,
    net,
    off,
    plan,
    rolled,
    same,
    twin,
)


def attached(p: float = 1.0, **arguments) -> tuple[Net, MomentExchange]:
    model = net()
    return model, MomentExchange(model, "layer1", p=p, **arguments)


def assert_plain(model: nn.Module, moex: MomentExchange) -> None:
    """Nothing is open and the model computes what one without a hook computes."""
    at, untouched = batch(), net()
    untouched.load_state_dict(model.state_dict())
    assert moex._blocks.open is None
    assert same(model.eval()(at.x), untouched.eval()(at.x))
    model.train()


# --- what a block does -----------------------------------------------------------------------------------------------


def test_a_block_computes_the_loss_and_the_gradients_of_the_operator_written_by_hand() -> None:
    (model, moex), by_hand, at = attached(), net(), batch()
    loss_in_block(model, moex, at, plan()).backward()
    loss_by_hand(by_hand, at, plan()).backward()
    assert_same_gradients(model, by_hand)


def test_a_block_differs_from_the_plain_step() -> None:
    (model, moex), plain, at = attached(), net(), batch()
    loss_in_block(model, moex, at, plan()).backward()
    F.cross_entropy(plain(at.x), at.y).backward()
    assert differ(gradients(model).values(), gradients(plain).values())


def test_lam_is_the_weight_of_the_sample_itself() -> None:
    _, moex = attached()
    with pytest.raises(LayerDidNotFire), moex(torch.arange(4), plan=plan(4, lam=0.75)) as targets:
        pass
    expected = torch.eye(4) * 0.75 + torch.eye(4)[rolled(4)] * 0.25
    torch.testing.assert_close(targets.probabilities(4), expected)


def test_an_off_step_is_bitwise_the_plain_step() -> None:
    (model, moex), plain, at = attached(p=0.0), net(), batch()
    loss = loss_in_block(model, moex, at)
    plain_loss = F.cross_entropy(plain(at.x), at.y)
    loss.backward()
    plain_loss.backward()
    assert same(loss, plain_loss)
    assert all(same(a, b) for a, b in zip(gradients(model).values(), gradients(plain).values(), strict=True))


def test_off_steps_do_not_require_the_layer_to_fire() -> None:
    _, moex = attached(p=0.0)
    with moex(batch().y) as targets:
        pass
    assert len(targets.terms) == 1


def test_the_share_of_exchanging_steps_is_p() -> None:
    model, moex = attached(p=0.3)
    on = 0
    for _ in range(400):
        with moex(batch(2).y):
            if moex.plan.on:
                on += 1
                model.layer1(torch.ones(2, 8, 2, 2))
    assert 0.22 < on / 400 < 0.38


def test_gradient_accumulation_draws_a_plan_for_every_block_and_sums_the_gradients() -> None:
    (model, moex), by_hand, plans = attached(), net(), []
    for seed in range(3):
        loss_in_block(model, moex, batch(seed=seed)).backward()
        plans.append(moex.plan)
        loss_by_hand(by_hand, batch(seed=seed), moex.plan).backward()
    assert_same_gradients(model, by_hand)
    assert len({tuple(p.index.tolist()) for p in plans}) == 3


def test_three_blocks_before_one_backward_have_the_gradients_of_three_backwards() -> None:
    (model, moex), by_hand, plans = attached(), net(), [plan(), off(), plan(by=2, lam=0.6)]
    sum(loss_in_block(model, moex, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    for i, p in enumerate(plans):
        loss_by_hand(by_hand, batch(seed=i), p).backward()
    assert_same_gradients(model, by_hand)


def test_two_objects_at_two_layers_may_be_nested_and_their_labels_compose() -> None:
    model, at = net(), batch(4)
    first, second = MomentExchange(model, "layer1"), MomentExchange(model, "layer2")
    with first(at.y, plan=plan(4)) as once, second(once, plan=plan(4, "layer2", by=2)) as twice:
        model(at.x)
    assert len(twice.terms) == 4
    torch.testing.assert_close(twice.probabilities(CLASSES).sum(1), torch.ones(4))


# --- a step is used once, and for one forward pass -------------------------------------------------------------------


def test_a_step_can_be_entered_only_once() -> None:
    (model, moex), at = attached(), batch()
    step = moex(at.y)
    with step:
        model(at.x)
    with pytest.raises(StepError, match=r"entered before; ask for a new one for every forward pass: moex\(y\)"), step:
        pass


def test_blocks_of_one_object_cannot_be_nested() -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(StepError, match="blocks of one object cannot be nested"), moex(at.y), moex(at.y):
        model(at.x)
    assert_plain(model, moex)


def test_a_refused_nested_block_leaves_the_outer_one_open() -> None:
    (model, moex), at = attached(), batch()
    with moex(at.y, plan=plan()) as targets:
        with pytest.raises(StepError, match="cannot be nested"), moex(at.y):
            pass
        loss = targets.loss(F.cross_entropy, model(at.x))
    assert same(loss, loss_by_hand(net(), at, plan()))


def test_a_block_without_a_forward_pass_is_an_error() -> None:
    model, moex = attached()
    with pytest.raises(LayerDidNotFire, match="'layer1' did not fire in this block"), moex(batch().y):
        pass
    assert_plain(model, moex)


def test_a_block_around_the_forward_pass_of_another_model_is_an_error() -> None:
    (_, moex), other = attached(), net()
    with pytest.raises(LayerDidNotFire, match="Call the model that MomentExchange was attached to inside"):
        loss_in_block(other, moex, batch())


def test_two_forward_passes_in_one_block_are_an_error() -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(LayerDidNotFire, match=r"fired 2 times in one block.*Use one block"), moex(at.y):  # noqa: PT012
        model(at.x)
        model(at.x)
    assert_plain(model, moex)


def test_the_block_that_follows_a_failed_one_is_as_good_as_the_first() -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(LayerDidNotFire), moex(at.y):
        pass
    assert same(loss_in_block(model, moex, at, plan()), loss_by_hand(net(), at, plan()))


def test_an_exception_inside_the_block_propagates_and_disarms() -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(ZeroDivisionError), moex(at.y):  # noqa: PT012
        model(at.x)
        raise ZeroDivisionError
    assert_plain(model, moex)


def test_an_exception_before_the_forward_pass_is_not_hidden_by_ours() -> None:
    model, moex = attached()
    with pytest.raises(ZeroDivisionError), moex(batch().y):
        raise ZeroDivisionError
    assert_plain(model, moex)


def test_leaving_a_loop_from_inside_a_block_disarms() -> None:
    (model, moex), at = attached(), batch()
    for _ in range(2):
        with moex(at.y):
            model(at.x)
            break
    assert_plain(model, moex)


# --- bad input is refused before anything is changed -----------------------------------------------------------------


def test_labels_of_another_batch_size_are_refused_at_the_layer() -> None:
    (model, moex), at = attached(), batch(6)
    with pytest.raises(
        StepError, match=r"layer 'layer1' sees a batch of 6 .features \(6, 8, 6, 6\)., and the labels are 4"
    ):
        loss_in_block(model, moex, at._replace(y=at.y[:4]))
    assert_plain(model, moex)


def test_labels_that_are_no_tensor_are_refused() -> None:
    _, moex = attached()
    with pytest.raises(TargetError, match="labels are a list; they must be a tensor whose first axis is the batch"):
        moex([0, 1, 2])
    with pytest.raises(TargetError, match="labels are a number"):
        moex(torch.tensor(3))


BAD_INDEX = {
    "longer": (torch.arange(7), "index has 7 entries for 6 labels"),
    "shorter": (torch.arange(5), "index has 5 entries for 6 labels"),
    "floats": (torch.arange(6.0), r"index is torch\.float32 \(6,\); it must be a tensor of whole numbers"),
    "bools": (torch.ones(6, dtype=torch.bool), r"index is torch\.bool"),
    "two axes": (torch.zeros(6, 1, dtype=torch.int64), r"torch\.int64 \(6, 1\).*one axis"),
    "a list": ([1, 0, 2, 3, 4, 5], "index is a list"),
    "too large": (torch.tensor([0, 1, 2, 3, 4, 6]), r"entries from 0 to 6; for a batch of 6 they must .*5"),
    "negative": (torch.tensor([0, 1, 2, 3, 4, -1]), "entries from -1 to 4"),
}


@pytest.mark.parametrize(("index", "message"), BAD_INDEX.values(), ids=BAD_INDEX)
def test_a_bad_index_is_refused_whether_shared_or_in_a_plan(index, message: str) -> None:
    _, moex = attached()
    with pytest.raises(PairingError, match=message):
        moex(batch().y, index=index)
    with pytest.raises(PairingError, match=message):
        moex(batch().y, plan=Plan(index, 0.9, "layer1"))
    assert moex.step == 0


def test_index_and_plan_together_are_refused() -> None:
    _, moex = attached()
    with pytest.raises(PairingError, match="both index= and plan= were given"):
        moex(batch().y, index=rolled(6), plan=plan())


def test_a_plan_that_is_none_is_refused() -> None:
    _, moex = attached()
    with pytest.raises(PairingError, match=r"plan is a Tensor; it must be a Plan: `moex\.plan` is the last one"):
        moex(batch().y, plan=rolled(6))


@pytest.mark.parametrize("seed", [None, 1.0, "1"])
def test_a_seed_that_is_no_whole_number_is_refused(seed) -> None:
    with pytest.raises(OutOfRange, match=f"seed is {seed!r}; it must be a whole number, of which every plan"):
        attached(seed=seed)


def test_a_plan_for_another_layer_is_refused_with_the_layers_there_are() -> None:
    _, moex = attached()
    with pytest.raises(LayerNotFound, match=r"plan is for layer 'layer2'; attached are \('layer1',\)"):
        moex(batch().y, plan=plan(layer="layer2"))


@pytest.mark.parametrize("lam", [1.5, -0.1, math.nan, torch.full((6,), 1.5), torch.full((6,), math.nan)])
def test_a_plan_with_a_bad_lam_is_refused_and_leaves_nothing_armed(lam) -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(OutOfRange, match="lam"):
        loss_in_block(model, moex, at, Plan(rolled(6), lam, "layer1"))
    assert_plain(model, moex)
    loss_in_block(model, moex, at)


def test_a_plan_with_a_lam_of_another_length_is_refused_and_leaves_nothing_armed() -> None:
    (model, moex), at = attached(), batch()
    with pytest.raises(ShapeError, match="lam"):
        loss_in_block(model, moex, at, Plan(rolled(6), torch.full((4,), 0.5), "layer1"))
    assert_plain(model, moex)


BAD_MASK = {
    "a list": ([[1, 0]] * 6, r"mask is a list; it must be a tensor: \(batch, \*space\), true where an element"),
    "no space": (torch.ones(6, dtype=torch.bool), "mask is torch.bool .6,. for 6 labels"),
    "another batch": (torch.ones(5, 6, 6, dtype=torch.bool), r"mask is torch.bool \(5, 6, 6\) for 6 labels"),
    "floats": (torch.ones(6, 6, 6), r"mask is torch.float32 .*it must be bool \(batch, \*space\)"),
}


@pytest.mark.parametrize(("mask", "message"), BAD_MASK.values(), ids=BAD_MASK)
def test_a_mask_that_cannot_fit_is_refused_before_the_step(mask: Tensor, message: str) -> None:
    _, moex = attached(over=IN())
    with pytest.raises(ShapeError, match=message):
        moex(batch().y, mask=mask)
    assert moex.step == 0


def test_a_mask_of_another_resolution_is_refused_at_the_layer() -> None:
    model, moex = attached(over=IN())
    step = moex(batch().y, mask=torch.ones(6, 5, 5, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"mask \(6, 5, 5\).*\(6, 6, 6\)"), step:
        model(batch().x)
    assert_plain(model, moex)


def test_a_mask_with_positional_moments_is_refused_and_others_are_advised() -> None:
    model, moex = attached()
    step = moex(batch().y, mask=torch.ones(6, 6, 6, dtype=torch.bool))
    with pytest.raises(GroupError, match=r"mask.*Use IN\(\), LN\(\) or GN"), step:
        model(batch().x)
    assert_plain(model, moex)


BAD_SETS = {
    "floats": torch.zeros(12),
    "bools": torch.zeros(12, dtype=torch.bool),
    "a list": [0] * 12,
    "two axes": torch.zeros(12, 1, dtype=torch.int64),
    "more sets than labels": torch.arange(12),
    "negative": torch.arange(12) - 8,
}


@pytest.mark.parametrize("sets", BAD_SETS.values(), ids=BAD_SETS)
def test_a_bad_batch_vector_is_an_error_of_ours_and_leaves_nothing_armed(sets: Tensor) -> None:
    model = nn.Sequential(OrderedDict(stem=nn.Linear(3, 6), mix=nn.Identity()))
    moex = MomentExchange(model, "mix", over=IN(), p=1.0)
    with pytest.raises((ShapeError, PairingError), match="batch"), moex(torch.arange(4), batch=sets):
        model(torch.ones(12, 3))
    assert moex._blocks.open is None


BAD_FRACTIONS = [-0.1, 1.1, math.nan, math.inf, "0.5", None]


@pytest.mark.parametrize("value", BAD_FRACTIONS)
@pytest.mark.parametrize("name", ["lam", "p"])
def test_lam_and_p_outside_of_zero_to_one_are_refused_and_leave_no_hook(name: str, value) -> None:
    model = net()
    with pytest.raises(OutOfRange, match=f"{name} is .*; it must be a number between 0 and 1"):
        MomentExchange(model, "layer1", **{name: value})
    assert not model.layer1._forward_pre_hooks


@pytest.mark.parametrize("value", BAD_FRACTIONS)
@pytest.mark.parametrize("name", ["lam", "p"])
def test_lam_and_p_are_checked_when_they_are_assigned_later(name: str, value) -> None:
    _, moex = attached()
    before = getattr(moex, name)
    with pytest.raises(OutOfRange, match=f"{name} is"):
        setattr(moex, name, value)
    assert getattr(moex, name) == before


@pytest.mark.parametrize("name", ["lam", "p"])
def test_what_a_schedule_returns_is_checked_and_leaves_nothing_armed(name: str) -> None:
    model, moex = attached()
    setattr(moex, name, lambda step: math.nan)
    with pytest.raises(OutOfRange, match=f"{name} is nan"), moex(batch().y):
        pass
    assert moex.step == 0
    assert_plain(model, moex)


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    model = net()
    with pytest.raises(TypeError, match=r"unexpected keyword 'chanel_dim'.*Did you mean 'channel_dim'"):
        MomentExchange(model, "layer1", chanel_dim=1)
    assert not model.layer1._forward_pre_hooks


@pytest.mark.parametrize(("name", "value"), [("pairing", "derangment"), ("per", "batches")])
def test_an_unknown_policy_is_refused_and_leaves_no_hook(name: str, value: str) -> None:
    model = net()
    with pytest.raises(PairingError, match=f"{name} is '{value}'"):
        MomentExchange(model, "layer1", **{name: value})
    assert not model.layer1._forward_pre_hooks


def test_a_pairing_by_class_without_classes_is_refused_and_leaves_nothing_armed() -> None:
    model, moex = attached(pairing="other_class")
    with pytest.raises(PairingError, match="needs one class for each of the 4 samples"), moex(torch.rand(4)):
        pass
    assert moex.step == 0
    assert_plain(model, moex)


def test_lam_per_sample_with_a_criterion_that_returned_one_number_is_refused() -> None:
    (model, moex), at = attached(lam=Beta(1.0, per="sample")), batch()
    with pytest.raises(TargetError, match=r'λ differs from sample to sample.*Use reduction="none"'):
        loss_in_block(model, moex, at)
    assert_plain(model, moex)


def test_lam_per_sample_with_one_loss_for_each_sample_is_exact() -> None:
    (model, moex), plain, at = attached(lam=Beta(1.0, per="sample")), net(), batch()
    with moex(at.y) as targets:
        loss = targets.loss(F.cross_entropy, model(at.x), reduction="none").mean()
    losses = [loss_by_hand(plain, at, Plan(moex.plan.index, lam, "layer1")) for lam in (1.0, 0.0)]
    assert moex.plan.lam.shape == (6,)
    assert not same(losses[0], losses[1])
    # With w weights of one batch, λ_i for each sample: check against the soft form, which is exact for cross-entropy.
    soft = targets.probabilities(CLASSES)
    with moex(at.y, plan=moex.plan):
        torch.testing.assert_close(loss, F.cross_entropy(model(at.x), soft))


# --- what may change while training ----------------------------------------------------------------------------------


def test_p_and_lam_may_be_assigned_while_training() -> None:
    (model, moex), at = attached(), batch()
    moex.lam, moex.p = 0.25, 1
    loss_in_block(model, moex, at)
    assert moex.plan.lam == 0.25
    moex.p = 0.0
    with moex(at.y):
        pass
    assert not moex.plan.on


def test_schedules_are_functions_of_the_step() -> None:
    model, moex = attached(p=lambda step: float(step >= 2), lam=lambda step: step / 10)
    seen = []
    for _ in range(4):
        loss_in_block(model, moex, batch())
        seen.append((moex.plan.on, moex.plan.lam))
    assert seen == [(False, 1.0), (False, 1.0), (True, 0.2), (True, 0.3)]


def test_lam_from_a_beta_is_one_number_a_step_and_varies() -> None:
    model, moex = attached(lam=Beta(2.0, 2.0))
    lams = []
    for _ in range(5):
        loss_in_block(model, moex, batch())
        lams.append(moex.plan.lam)
    assert len(set(lams)) == 5
    assert all(isinstance(lam, float) and 0 <= lam <= 1 for lam in lams)


def test_enabled_false_turns_everything_off_and_keeps_the_sequence_of_plans() -> None:
    (model, moex), (_, other), at = attached(), attached(), batch()
    moex.enabled = False
    assert same(loss_in_block(model, moex, at), F.cross_entropy(net()(at.x), at.y))
    moex.enabled = True
    loss_in_block(model, moex, at)
    other.step = 1
    with pytest.raises(LayerDidNotFire), other(at.y):
        pass
    assert torch.equal(moex.plan.index, other.plan.index)


# --- reproducible, resumable, replayable -----------------------------------------------------------------------------


def plans(moex: MomentExchange, model: nn.Module, steps: int) -> list[tuple]:
    found = []
    for _ in range(steps):
        loss_in_block(model, moex, batch())
        found.append((moex.plan.on, moex.plan.lam, tuple(moex.plan.index.tolist())))
    return found


def test_objects_of_one_seed_draw_the_same_plans_and_those_of_another_do_not() -> None:
    drawn = [plans(moex, model, 8) for model, moex in (attached(0.5, seed=s, lam=Beta(1.0)) for s in (1, 1, 2))]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_resuming_from_the_state_goes_on_with_the_same_plans() -> None:
    (model, moex), (resumed_model, resumed) = attached(0.5, seed=3), attached(0.5, seed=9)
    plans(moex, model, 3)
    state = moex.state_dict()
    assert state == {"seed": 3, "step": 3}
    resumed.load_state_dict(state)
    assert plans(resumed, resumed_model, 6) == plans(moex, model, 6)


def test_plans_neither_use_nor_change_torchs_random_state() -> None:
    model, moex = attached(0.5, lam=Beta(1.0, per="sample"), per="sample", pairing="other_class")
    before = torch.get_rng_state()
    with moex(batch().y):
        model(batch().x)
    assert torch.equal(torch.get_rng_state(), before)
    first = moex.plan
    torch.manual_seed(99)
    moex.step = 0
    with moex(batch().y):
        model(batch().x)
    assert torch.equal(first.index, moex.plan.index)
    assert torch.equal(first.lam, moex.plan.lam)


def test_a_replayed_plan_gives_equal_outputs_and_does_not_advance_the_step() -> None:
    """As SAM needs it: the second pass of one batch, with perturbed weights or not, pairs as the first did."""
    (model, moex), at, outputs = attached(), batch(), []
    with moex(at.y) as first:
        outputs.append(model(at.x))
    with moex(at.y, plan=moex.plan) as second:
        outputs.append(model(at.x))
    assert moex.step == 1
    assert same(*outputs)
    assert same(first.probabilities(CLASSES), second.probabilities(CLASSES))


def test_a_replayed_off_plan_is_off() -> None:
    (model, moex), at = attached(p=0.0), batch()
    loss_in_block(model, moex, at)
    moex.p = 1.0
    assert same(loss_in_block(model, moex, at, moex.plan), F.cross_entropy(net()(at.x), at.y))


def test_an_index_shared_with_mixed_targets_gives_the_four_terms_of_the_authors() -> None:
    """CutMix with its own λ, then MoEx with the same partners: λ and coin of each are its own."""
    (model, moex), at, index = attached(lam=0.8), batch(4), rolled(4)
    cut = Targets(at.y).mixed_with(index, 0.6)
    with moex(cut, index=index) as targets:
        model(at.x)
    assert torch.equal(moex.plan.index, index)
    weights = [round(float(weight), 6) for _, weight in targets.terms]
    assert weights == [0.48, 0.32, 0.12, 0.08]
    assert torch.equal(targets.terms[1].labels, targets.terms[2].labels)


def test_a_shared_index_still_asks_the_coin_and_still_advances_the_step() -> None:
    model, moex = attached(p=0.5)
    on = []
    for _ in range(16):
        with moex(batch().y, index=rolled(6)):
            model(batch().x)
        on.append(moex.plan.on)
    assert set(on) == {True, False}
    assert moex.step == 16


# --- coins and λ of single samples, and batches that are odd ---------------------------------------------------------


def test_with_a_coin_for_each_sample_some_take_part_and_the_others_are_bit_identical() -> None:
    model = nn.Sequential(OrderedDict(mix=nn.Identity()))
    moex = MomentExchange(model, "mix", p=0.5, per="sample", pairing="derangement", lam=0.7)
    h, y = batch(16).x, torch.arange(16)
    with moex(y) as targets:
        out = model(h)
    stays = moex.plan.index == torch.arange(16)
    assert 0 < int(stays.sum()) < 16
    assert same(out[stays], h[stays])
    assert all(differ([out[i]], [h[i]]) for i in range(16) if not stays[i])
    own = targets.probabilities(16).diagonal()
    torch.testing.assert_close(own, torch.where(stays, 1.0, 0.7))


@pytest.mark.parametrize("pairing", ["permutation", "derangement", "other_class", "same_class"])
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_a_batch_of_one_exchanges_nothing_and_mixes_nothing(pairing: str, per: str) -> None:
    model = net(batch_norm=False)
    moex = MomentExchange(model, "layer1", p=1.0, pairing=pairing, per=per)
    at = batch(1)
    loss = loss_in_block(model, moex, at)
    assert same(loss, F.cross_entropy(net(batch_norm=False)(at.x), at.y))


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_short_and_odd_batches_are_exchanged_as_by_hand(size: int) -> None:
    (model, moex), by_hand = attached(), net()
    for n in (8, size):
        loss = loss_in_block(model, moex, batch(n))
        assert same(loss, loss_by_hand(by_hand, batch(n), moex.plan))


def test_an_empty_batch_passes_through() -> None:
    model = nn.Sequential(OrderedDict(mix=nn.Identity()))
    moex = MomentExchange(model, "mix", p=1.0)
    with moex(torch.zeros(0, dtype=torch.int64)):
        assert model(torch.zeros(0, 3, 2)).shape == (0, 3, 2)


def test_samples_without_two_valid_positions_keep_their_features_and_their_labels() -> None:
    model = Tokens()
    moex = MomentExchange(model, "mix", over=IN(), channel_dim=-1, lam=0.5)
    seen: list[Tensor] = []
    model.mix.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    x, mask = torch.randn(4, 5, 3), torch.ones(4, 5, dtype=torch.bool)
    mask[1, 1:] = False
    with moex(torch.arange(4), mask=mask, plan=Plan(rolled(4), 0.5, "mix")) as targets:
        model(x)
    plain = model.stem(x)
    assert same(seen[0][1], plain[1])  # has one position: gets nothing
    assert same(seen[0][2], plain[2])  # its partner has one position: nothing to get
    assert differ([seen[0][0]], [plain[0]])
    own = targets.probabilities(4).diagonal()
    torch.testing.assert_close(own, torch.tensor([0.5, 1.0, 1.0, 0.5]))


def test_positions_that_are_skipped_do_not_count_as_valid() -> None:
    model = Tokens()
    moex = MomentExchange(model, "mix", over=IN(), channel_dim=-1, skip=1)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 2:] = False  # the class token and one more: one position that counts
    with moex(torch.arange(3), mask=mask, plan=Plan(rolled(3), 0.5, "mix")) as targets:
        model(torch.randn(3, 5, 3))
    assert targets.probabilities(3)[0, 0] == 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_on_a_gpu_a_shared_index_and_a_plan_may_be_on_either_device(where: str) -> None:
    model, index = net().cuda(), rolled(6).to(where)
    moex = MomentExchange(model, "layer1", p=1.0)
    at = [t.cuda() for t in batch()]
    for given in ({"index": index}, {"plan": Plan(index, 0.9, "layer1")}):
        with moex(at[1], **given) as targets:
            targets.loss(F.cross_entropy, model(at[0])).backward()
        assert torch.equal(moex.plan.index.cpu(), rolled(6))
    assert moex.diagnostics().exchanged_samples == 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("pairing", ["permutation", "other_class"])
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_on_a_gpu_every_policy_trains_at_a_layer_without_parameters(pairing: str, per: str) -> None:
    model = net().cuda()
    moex = MomentExchange(model, "layer1.2", p=0.5, per=per, pairing=pairing, lam=Beta(1.0, per=per))
    for seed in range(4):
        at = [t.cuda() for t in batch(seed=seed)]
        with moex(at[1]) as targets:
            targets.loss(F.cross_entropy, model(at[0]), reduction="none").mean().backward()
    assert moex.diagnostics().steps == 4


@pytest.mark.gpu
def test_on_a_gpu_a_mask_may_be_on_the_cpu_as_loaders_hand_it_over() -> None:
    model = Tokens().cuda()
    moex = MomentExchange(model, "mix", over=IN(), channel_dim=-1, p=1.0)
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 4]).view(4, 1)
    with moex(torch.arange(4).cuda(), mask=mask) as targets:
        targets.loss(F.cross_entropy, model(torch.randn(4, 5, 3).cuda())).backward()


# --- diagnostics -----------------------------------------------------------------------------------------------------


def test_shares_of_many_steps_are_counted_exactly() -> None:
    model, moex = attached(p=0.5)
    counted = {"on": 0, "moved": 0, "asked": 0, "same": 0}
    for seed in range(40):
        at = batch(6, seed)
        loss_in_block(model, moex, at)
        moved = moex.plan.index != torch.arange(6)
        counted["on"] += moex.plan.on
        counted["asked"] += 6 * moex.plan.on
        counted["moved"] += int(moved.sum())
        counted["same"] += int((moved & (at.y == at.y[moex.plan.index])).sum())
    report = moex.diagnostics()
    assert report.steps == 40
    assert report.exchanged_steps == counted["on"] / 40
    assert report.exchanged_samples == counted["moved"] / 240
    assert report.self_pairs == (counted["asked"] - counted["moved"]) / counted["asked"]
    assert report.same_class_pairs == counted["same"] / counted["moved"]


def test_a_coin_for_each_sample_is_not_counted_as_self_pairs() -> None:
    model, moex = attached(p=0.5, per="sample", pairing="derangement")
    for seed in range(10):
        loss_in_block(model, moex, batch(8, seed))
    report = moex.diagnostics()
    assert report.self_pairs == 0.0
    assert 0.3 < report.exchanged_samples < 0.7


def test_a_derangement_has_no_self_pairs_and_other_class_no_pairs_of_one_class() -> None:
    for pairing, share in (("derangement", "self_pairs"), ("other_class", "same_class_pairs")):
        model, moex = attached(pairing=pairing)
        for seed in range(5):
            loss_in_block(model, moex, batch(8, seed))
        assert getattr(moex.diagnostics(), share) == 0.0


def test_labels_without_classes_have_no_share_of_same_class_pairs() -> None:
    model, moex = attached()
    with moex(F.one_hot(batch().y, CLASSES).float()) as targets:
        targets.loss(F.cross_entropy, model(batch().x))
    report = moex.diagnostics()
    assert report.same_class_pairs is None
    assert "same_class_pairs" not in report.flat()


def test_a_reset_starts_the_counts_again_after_the_report() -> None:
    model, moex = attached()
    loss_in_block(model, moex, batch())
    assert moex.diagnostics(reset=True).steps == 1
    assert moex.diagnostics().steps == 0
    assert moex.diagnostics().exchanged_steps == 0.0


def test_before_the_first_step_there_is_nothing_to_report_and_nothing_fails() -> None:
    report = attached()[1].diagnostics()
    assert (report.steps, report.strength, report.self_pairs) == (0, None, 0.0)


def test_flat_gives_every_number_by_name() -> None:
    model, moex = attached()
    loss_in_block(model, moex, batch())
    flat = moex.diagnostics().flat()
    assert set(flat) == {
        "steps", "exchanged_steps", "exchanged_samples", "self_pairs", "same_class_pairs",
        "gain_q05", "gain_median", "gain_q95", "gain_max", "constant_groups",
    }  # fmt: skip
    assert all(type(value) is float for value in flat.values())


def test_the_strength_is_the_ratio_of_the_deviations() -> None:
    model = nn.Sequential(OrderedDict(mix=nn.Identity()))
    moex = MomentExchange(model, "mix")
    h = torch.randn(1, 64, 3, 3) * torch.tensor([1.0, 4.0]).view(2, 1, 1, 1)
    with moex(torch.arange(2), plan=Plan(rolled(2), 0.9, "mix")):
        model(h)
    strength = moex.diagnostics().strength
    assert strength.gain_max == pytest.approx(4.0, rel=1e-3)
    assert strength.gain_q05 == pytest.approx(0.25, rel=1e-3)
    assert strength.constant_groups == 0.0


def test_of_several_layers_the_strength_is_that_of_the_last_exchange() -> None:
    class Doubled(nn.Identity):
        def forward(self, h: Tensor) -> Tensor:
            return h * torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)

    model = nn.Sequential(OrderedDict(first=nn.Identity(), doubled=Doubled(), second=nn.Identity()))
    moex = MomentExchange(model, ("first", "second"))
    h = torch.randn(1, 64, 3, 3).expand(2, -1, -1, -1)
    for layer in ("second", "first"):
        with moex(torch.arange(2), plan=Plan(rolled(2), 0.9, layer)):
            model(h)
    assert moex.diagnostics().strength.gain_max == pytest.approx(1.0, rel=1e-3)


class Dead(nn.Module):
    """ReLU and pooling as they leave features that are constant zeros in half of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.pool, self.mix = nn.ReLU(), nn.MaxPool2d(2), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.pool(self.act(x)))


def test_a_gain_that_explodes_on_constant_features_is_warned_about_with_the_ways_out() -> None:
    model = Dead()
    moex = MomentExchange(model, "mix", p=1.0)
    x = torch.randn(4, 8, 6, 6).abs() * torch.tensor([5.0, -5.0, 5.0, -5.0]).view(4, 1, 1, 1)
    with moex(torch.arange(4), plan=Plan(rolled(4), 0.9, "mix")):
        assert model(x).isfinite().all()
    with pytest.warns(MomentexWarning, match=r"layer 'mix': 50\.0% of the groups are constant.*attach before the ReLU"):
        report = moex.diagnostics()
    assert report.strength.constant_groups == 0.5
    assert report.strength.gain_max > 100


def test_ordinary_features_are_not_warned_about() -> None:
    model, moex = attached()
    loss_in_block(model, moex, batch())
    assert moex.diagnostics().strength.gain_max < 100


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_of_model_and_object_together_works_by_itself() -> None:
    (model, moex), at = attached(seed=5), batch()
    copied_model, copied = copy.deepcopy((model, moex))
    assert same(loss_in_block(copied_model, copied, at), loss_in_block(model, moex, at))
    with pytest.raises(LayerDidNotFire):
        loss_in_block(model, copied, at)


def test_a_copy_that_is_taken_inside_a_block_is_not_in_a_block() -> None:
    (model, moex), at = attached(), batch()
    with moex(at.y):
        copied_model, copied = copy.deepcopy((model, moex))
        model(at.x)
    assert_plain(copied_model, copied)
    assert same(loss_in_block(copied_model, copied, at, plan()), loss_by_hand(twin(copied_model), at, plan()))


def test_the_text_of_the_object_says_where_and_how() -> None:
    assert repr(attached()[1]) == ("MomentExchange(layer=('layer1',), over=PONO(groups=1, only=None), lam=0.9, p=1.0)")
