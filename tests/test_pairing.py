"""Plans are functions of (seed, step, stream, rank); partners are who they should be; nothing else is drawn."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from momentex import Beta, pair, stream
from momentex.errors import MomentexError, OutOfRange, PairingError
from momentex.pairing import PAIRINGS, Policy, check_lam, check_pairing, check_per

ALWAYS = Policy(lam=0.9, p=1.0, per="batch", pairing="permutation", layers=("layer1",))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
numbers = st.integers(-(2**70), 2**70)


def _draw(policy, seed=0, step=0, rank=0, size=8, **given):
    return policy.draw(seed, step, size, rank=rank, labels=LABELS[:size], **given)


def _facts(plan):
    lam = plan.lam.tolist() if isinstance(plan.lam, torch.Tensor) else plan.lam
    return plan.index.tolist(), lam, plan.layer, plan.on, plan.asked


POLICIES = [
    ALWAYS,
    replace(ALWAYS, p=0.5),
    replace(ALWAYS, p=0.5, per="sample"),
    *(replace(ALWAYS, pairing=pairing) for pairing in PAIRINGS),
    replace(ALWAYS, lam=Beta(0.4)),
    replace(ALWAYS, lam=Beta(0.4, per="sample"), per="sample", p=0.7),
    replace(ALWAYS, layers=("layer1", "layer2", "layer3")),
]


# --- a function of (seed, step, stream, rank) ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_plan_drawn_twice_is_the_same(policy):
    for step in range(20):
        torch.manual_seed(step)
        first = _draw(policy, seed=3, step=step, rank=2)
        torch.manual_seed(100 + step)
        assert _facts(first) == _facts(_draw(policy, seed=3, step=step, rank=2))


@pytest.mark.parametrize("changed", ["seed", "step", "rank"])
@pytest.mark.parametrize(
    "policy", [ALWAYS, replace(ALWAYS, pairing="derangement"), replace(ALWAYS, per="sample", p=0.5)]
)
def test_pairings_change_with_the_seed_the_step_and_the_rank(policy, changed):
    plans = {tuple(_draw(policy, size=8, **{changed: n}).index.tolist()) for n in range(20)}
    assert len(plans) >= 15


@given(numbers, numbers, st.sampled_from(["coin", "lam", "pairing"]), st.integers(0, 2**40))
def test_a_stream_is_a_function_of_its_key(seed, step, name, rank):
    first, again = (torch.rand(4, generator=stream(seed, step, name, rank)) for _ in range(2))
    assert first.equal(again)
    for other in ((seed + 1, step, name, rank), (seed, step + 1, name, rank), (seed, step, name + "s", rank)):
        assert not torch.rand(4, generator=stream(*other)).equal(first)
    assert not torch.rand(4, generator=stream(seed, step, name, rank + 1)).equal(first)


@pytest.mark.parametrize("bit", [32, 33, 40, 63, 64, 100])
def test_bits_beyond_the_thirty_second_count(bit):
    key = [(7 + 2**bit, 5, 0), (7, 5 + 2**bit, 0), (7, 5, 2**bit), (7, 5, 0)]
    drawn = {tuple(torch.rand(4, generator=stream(seed, step, "coin", rank)).tolist()) for seed, step, rank in key}
    assert len(drawn) == 4


def test_neighbouring_keys_do_not_meet():
    keys = [
        (seed, step, name, rank) for seed in (1, 11, 111) for step in (1, 11, 111) for name in "ab" for rank in (1, 11)
    ]
    assert len({stream(*key).initial_seed() for key in keys}) == len(keys)
    assert all(stream(*key).initial_seed() < 2**32 for key in keys)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_coin_lambda_of_the_batch_and_layer_ignore_the_rank(policy):
    policy = replace(policy, per="batch", lam=policy.lam if policy.lam == 0.9 else Beta(0.4))
    for step in range(20):
        plans = [_draw(policy, step=step, rank=rank) for rank in range(4)]
        assert len({(plan.on, plan.layer, plan.lam) for plan in plans}) == 1


def test_what_belongs_to_single_samples_does_not_ignore_the_rank():
    policy = replace(ALWAYS, per="sample", p=0.5, lam=Beta(1.0, per="sample"))
    plans = [_draw(policy, rank=rank) for rank in range(8)]
    assert len({tuple(plan.index.tolist()) for plan in plans}) == 8
    assert len({tuple(plan.lam.tolist()) for plan in plans}) == 8


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_default_device_of_the_user_changes_no_plan(policy):
    here = _draw(policy)
    with torch.device("meta"):
        there = _draw(policy)
    assert there.index.equal(here.index)
    assert torch.as_tensor(there.lam).equal(torch.as_tensor(here.lam))
    assert (there.layer, there.on) == (here.layer, here.on)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_drawing_leaves_the_global_generators_alone(policy):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    for step in range(5):
        _draw(policy, step=step)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def test_coin_pairing_and_lambda_are_drawn_apart():
    policy = replace(ALWAYS, p=0.5, lam=Beta(1.0))
    sure = [_draw(replace(policy, p=1.0), step=step) for step in range(30)]
    for step, certain in enumerate(sure):
        plan = _draw(policy, step=step)
        if plan.on:
            assert _facts(plan) == _facts(certain)


# --- who is paired ---------------------------------------------------------------------------------------------------


def _counts(pairing, draws=4000, size=4):
    return Counter(tuple(pair(pairing, size, stream(1, step, "pairing")).tolist()) for step in range(draws))


def test_permutations_are_uniform():
    counts = _counts("permutation")
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_derangements_are_uniform():
    counts = _counts("derangement")
    assert len(counts) == 9
    assert all(i != j for index in counts for i, j in enumerate(index))
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


@given(st.integers(2, 40), st.integers(0, 2**31))
def test_a_derangement_is_a_permutation_without_fixed_point(size, seed):
    index = pair("derangement", size, stream(seed, 0, "pairing"))
    assert index.sort().values.tolist() == list(range(size))
    assert not (index == torch.arange(size)).any()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 2**31))
def test_partners_are_of_another_class_or_of_the_same_and_nobody_else(labels, seed):
    labels = torch.tensor(labels)
    me, same = torch.arange(len(labels)), labels[:, None] == labels[None]
    other = pair("other_class", len(labels), stream(seed, 0, "pairing"), labels)
    assert ((labels[other] != labels) | ((other == me) & same.all(1))).all()
    alike = pair("same_class", len(labels), stream(seed, 0, "pairing"), labels)
    assert (labels[alike] == labels).all()
    assert ((alike != me) | (same.sum(1) == 1)).all()


def test_partners_by_class_are_uniform_among_those_who_qualify():
    labels = torch.tensor([0, 1, 1, 1, 0])
    draws = torch.stack([pair("other_class", 5, stream(1, step, "pairing"), labels) for step in range(3000)])
    counts = draws[:, 0].bincount(minlength=5).tolist()
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(counts[1:4]).pvalue > 0.01


def test_soft_labels_say_the_class_by_their_largest_entry():
    soft = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    assert pair("other_class", 3, stream(0, 0, "pairing"), soft)[:2].tolist() == [2, 2]
    assert pair("same_class", 3, stream(0, 0, "pairing"), soft).tolist() == [1, 0, 2]


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("size", [0, 1])
def test_nobody_and_one_alone_have_no_partner(pairing, size):
    index = pair(pairing, size, stream(0, 0, "pairing"), LABELS[:size])
    assert index.tolist() == list(range(size))
    assert index.dtype == torch.int64


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_an_index_is_whole_numbers_on_the_cpu(pairing):
    index = pair(pairing, 8, stream(0, 0, "pairing"), LABELS)
    assert (index.dtype, index.device.type, index.shape) == (torch.int64, "cpu", (8,))


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_p_zero_never_exchanges_and_p_one_always_does(per):
    for step in range(50):
        off = _draw(replace(ALWAYS, p=0.0, per=per), step=step)
        assert _facts(off)[:1] + _facts(off)[3:4] == (list(range(8)), False)
        assert off.lam == 1.0
        on = _draw(replace(ALWAYS, p=1.0, per=per), step=step)
        assert (on.on, on.lam, on.asked) == (True, 0.9, 8)
        assert on.index.equal(pair("permutation", 8, stream(0, step, "pairing")))


def test_p_is_the_share_of_batches():
    on = sum(_draw(replace(ALWAYS, p=0.3), step=step).on for step in range(3000))
    assert stats.binomtest(on, 3000, 0.3).pvalue > 0.01


def test_p_per_sample_is_the_share_of_samples():
    policy = replace(ALWAYS, p=0.3, per="sample", pairing="derangement")
    plans = [_draw(policy, step=step) for step in range(500)]
    moved = sum(int((plan.index != torch.arange(8)).sum()) for plan in plans)
    assert moved == sum(plan.asked for plan in plans)
    assert stats.binomtest(moved, 4000, 0.3).pvalue > 0.01


def test_layers_are_drawn_evenly():
    counts = Counter(_draw(POLICIES[-1], step=step).layer for step in range(3000))
    assert set(counts) == {"layer1", "layer2", "layer3"}
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_of_one_exchanges_nothing_and_mixes_nothing(policy, size):
    plan = _draw(policy, size=size)
    assert (plan.index.tolist(), plan.lam, plan.on) == (list(range(size)), 1.0, False)


def test_a_pairing_that_is_handed_in_is_used():
    index = torch.arange(8).roll(3)
    assert _draw(ALWAYS, index=index).index.equal(index)
    assert _draw(replace(ALWAYS, p=0.0), index=index).index.tolist() == list(range(8))
    some = _draw(replace(ALWAYS, p=0.5, per="sample"), index=index).index
    assert ((some == index) | (some == torch.arange(8))).all()


# --- λ ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.2), (1.0, 1.0), (5.0, 1.0), (0.5, 3.0)])
def test_lambda_has_the_beta_distribution(a, b):
    drawn = Beta(a, b).draw(stream(1, 0, "lam"), 4000)
    assert stats.kstest(drawn.numpy(), stats.beta(a, b).cdf).pvalue > 0.01
    of_steps = [_draw(replace(ALWAYS, lam=Beta(a, b)), step=step).lam for step in range(1000)]
    assert stats.kstest(of_steps, stats.beta(a, b).cdf).pvalue > 0.01


@pytest.mark.parametrize("parameters", [(1e-3,), (0.2,), (1.0,), (5.0, 1.0), (50.0, 0.5)])
def test_one_lambda_is_that_of_a_batch_of_one(parameters):
    for step in range(50):
        wanted = float(Beta(*parameters).draw(stream(1, step, "lam"), 1))
        assert Beta(*parameters).draw_one(stream(1, step, "lam")) == pytest.approx(wanted, rel=1e-12)


def test_a_tiny_beta_is_near_zero_or_one_and_not_a_half():
    drawn = Beta(1e-3).draw(stream(1, 0, "lam"), 2000)
    assert drawn.isfinite().all()
    assert ((drawn < 1e-6) | (drawn > 1 - 1e-6)).double().mean() > 0.95


def test_lambda_per_sample_is_one_number_for_each():
    plan = _draw(replace(ALWAYS, lam=Beta(1.0, per="sample")))
    assert plan.lam.shape == (8,)
    assert plan.lam.dtype == torch.float32
    assert len(plan.lam.unique()) == 8
    assert ((plan.lam >= 0) & (plan.lam <= 1)).all()


def test_beta_of_one_number_is_symmetric():
    assert Beta(0.3) == Beta(0.3, 0.3)
    assert Beta(0.3, 2.0) != Beta(0.3)


# --- bad input -------------------------------------------------------------------------------------------------------

REFUSED = {
    "Beta of zero": (OutOfRange, lambda: Beta(0.0), r"^Beta\(0\.0, 0\.0\): both parameters must be greater than 0"),
    "Beta below zero": (OutOfRange, lambda: Beta(1.0, -1.0), r"^Beta\(1\.0, -1\.0\): both parameters must be greater"),
    "Beta with zero": (OutOfRange, lambda: Beta(1.0, 0.0), r"^Beta\(1\.0, 0\.0\): both parameters must be greater"),
    "Beta of nan": (OutOfRange, lambda: Beta(float("nan")), r"^Beta\(nan, nan\): both parameters must be greater"),
    "Beta of infinity": (OutOfRange, lambda: Beta(float("inf")), r"^Beta\(inf, inf\): both parameters must be"),
    "per": (PairingError, lambda: Beta(1.0, per="step"), r"^per is 'step'; it is 'batch' \(one .*\) or 'sample' \("),
    "per again": (PairingError, lambda: check_per("x"), r"^per is 'x'; it is 'batch'"),
    "lam": (OutOfRange, lambda: check_lam(1.5), r"^lam is 1\.5; it must be a number between 0 and 1\.$"),
    "lam nan": (OutOfRange, lambda: check_lam(float("nan")), r"^lam is nan; it must be a number between 0 and 1\.$"),
    "lam text": (OutOfRange, lambda: check_lam("0.5"), r"^lam is '0\.5'; it must be a number between 0 and 1\.$"),
    "a near name": (
        PairingError,
        lambda: check_pairing("permutaton"),
        r"^pairing is 'permutaton'; known are 'permutation', 'derangement', 'other_class', 'same_class'\. "
        r"Did you mean 'permutation'\?$",
    ),
    "no name at all": (PairingError, lambda: check_pairing(None), r"^pairing is None; known are .*'same_class'\.$"),
    "an unknown pairing": (
        PairingError,
        lambda: pair("other_clas", 8, stream(0, 0, "pairing"), LABELS),
        r"^pairing is 'other_clas'; known are .* Did you mean 'other_class'",
    ),
    "p of a policy": (OutOfRange, lambda: Policy(p=1.5), r"^p is 1\.5; it must be a number between 0 and 1\.$"),
    "lam of a policy": (OutOfRange, lambda: Policy(lam=-1.0), r"^lam is -1\.0; it must be a number between 0 and 1\.$"),
    "per of a policy": (PairingError, lambda: Policy(per="step"), r"^per is 'step'; it is 'batch'"),
    "pairing of a policy": (
        PairingError,
        lambda: Policy(pairing="same_clas"),
        r"^pairing is 'same_clas'; .* 'same_class'",
    ),
    "a pairing of another batch": (
        PairingError,
        lambda: ALWAYS.draw(0, 0, 8, index=torch.tensor([1, 0])),
        r"^index has 2 entries for a batch of 8; it needs one for each",
    ),
    "a pairing out of reach": (
        PairingError,
        lambda: ALWAYS.draw(0, 0, 2, index=torch.tensor([1, 2])),
        r"^index has entries from 1 to 2; for a batch of 2 they must",
    ),
    "no labels": (
        PairingError,
        lambda: pair("other_class", 4, stream(0, 0, "pairing")),
        r"^pairing='other_class' needs one class for each of the 4 samples: class indices \(batch,\) or soft rows "
        r"\(batch, classes\)\. Labels given: none\. Use pairing='permutation', or hand in index=\.$",
    ),
    "real numbers": (
        PairingError,
        lambda: pair("same_class", 4, stream(0, 0, "pairing"), torch.rand(4)),
        r"^pairing='same_class' needs one class .* Labels given: torch\.float32 \(4,\)\.",
    ),
    "sequences": (
        PairingError,
        lambda: pair("same_class", 4, stream(0, 0, "pairing"), torch.zeros(4, 7, dtype=torch.int64)),
        r"Labels given: torch\.int64 \(4, 7\)\.",
    ),
    "labels of another batch": (
        PairingError,
        lambda: pair("same_class", 4, stream(0, 0, "pairing"), LABELS),
        r"one class for each of the 4 samples.* Labels given: torch\.int64 \(8,\)\.",
    ),
}


@pytest.mark.parametrize(("kind", "call", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_drawn_is_refused_with_a_text_that_helps(kind, call, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MomentexError)
