"""Activation checkpointing: the forward pass runs again in backward, after the block has closed.

Every test compares with a twin that is not checkpointed; its loss is the operator written by hand into a plain model.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from momentex import MomentExchange, Plan
from tests.models import (
    CLASSES,
    Batch,
    Checkpointed,
    Net,
    assert_same_gradients,
    batch,
    clear_gradients,
    differ,
    gradients,
    loss_by_hand,
    loss_in_block,
    net,
    off,
    plan,
    same,
)

modes = pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])


def pair(reentrant: bool, **arguments) -> tuple[Checkpointed, MomentExchange, Net]:
    """A checkpointed model with its object, and the twin. Without BatchNorm, whose statistics recomputation moves."""
    model = net(Checkpointed, reentrant=reentrant, batch_norm=False)
    return model, MomentExchange(model, "layer1", **({"p": 1.0} | arguments)), net(batch_norm=False)


def assert_twins(model: nn.Module, moex: MomentExchange, by_hand: Net, plans: list[Plan]) -> None:
    """One backward for all blocks: the gradients are those of the twin."""
    sum(loss_in_block(model, moex, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_one_block_has_the_gradients_of_the_model_that_is_not_checkpointed(reentrant: bool) -> None:
    assert_twins(*pair(reentrant), [plan()])


def test_the_comparison_notices_plain_recomputation() -> None:
    model, moex, by_hand = pair(True)
    loss = loss_in_block(model, moex, batch(), plan())
    moex.remove()  # what is recomputed from here on is plain
    loss.backward()
    loss_by_hand(by_hand, batch(), plan()).backward()
    assert differ(gradients(model).values(), gradients(by_hand).values())


@modes
@pytest.mark.parametrize(
    "plans",
    [
        [plan(), plan(by=2), plan(by=3, lam=0.5)],
        [off(), plan(), off()],
        [plan(), off(), plan(by=2)],
        [plan(by=2), plan(), off()],
    ],
    ids=["all_on", "off_on_off", "on_off_on", "on_on_off"],
)
def test_three_blocks_before_one_backward_have_the_gradients_of_the_twin(reentrant: bool, plans: list[Plan]) -> None:
    assert_twins(*pair(reentrant), plans)


@modes
def test_blocks_that_the_coin_mixes_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant, p=0.5)
    losses, plans = [], []
    for i in range(6):
        losses.append(loss_in_block(model, moex, batch(seed=i)))
        plans.append(moex.plan)
    assert {p.on for p in plans} == {True, False}
    sum(losses).backward()
    sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_blocks_of_different_batch_sizes_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    sizes = (6, 4, 1)
    losses = [loss_in_block(model, moex, batch(n)) for n in sizes[:1]]
    plans = [moex.plan]
    for n in sizes[1:]:
        losses.append(loss_in_block(model, moex, batch(n)))
        plans.append(moex.plan)
    sum(losses).backward()
    sum(loss_by_hand(by_hand, batch(n), p) for n, p in zip(sizes, plans, strict=True)).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_losses_that_are_computed_after_all_forward_passes_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    """As in contrastive training: the passes come first, every loss later."""
    model, moex, by_hand = pair(reentrant)
    plans, found = [plan(), plan(by=2)], []
    for i, p in enumerate(plans):
        with moex(batch(seed=i).y, plan=p) as targets:
            found.append((targets, model(batch(seed=i).x)))
    sum(targets.loss(F.cross_entropy, output) for targets, output in found).backward()
    sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate(plans)).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_backward_in_the_order_of_the_blocks_and_against_it(reentrant: bool) -> None:
    for order in (1, -1):
        model, moex, by_hand = pair(reentrant)
        plans = [plan(), off(), plan(by=2)]
        losses = [loss_in_block(model, moex, batch(seed=i), p) for i, p in enumerate(plans)]
        for loss in losses[::order]:
            loss.backward()
        sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate(plans)).backward()
        assert_same_gradients(model, by_hand)


@modes
def test_several_layers_with_one_drawn_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, _, by_hand = pair(reentrant)
    moex = MomentExchange(model, ("layer1", "layer2"))
    loss_in_block(model, moex, batch(seed=1), plan())
    other = loss_in_block(model, moex, batch(), plan(layer="layer2"))
    loss = loss_in_block(model, moex, batch(), plan())
    (loss + 0 * other).backward()
    loss_by_hand(by_hand, batch(), plan()).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_backward_inside_the_block_has_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    at = batch()
    with moex(at.y, plan=plan()) as targets:
        targets.loss(F.cross_entropy, model(at.x)).backward()
    loss_by_hand(by_hand, at, plan()).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_a_block_may_be_open_while_the_loss_of_another_goes_backward(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    first = loss_in_block(model, moex, batch(seed=1), plan())
    with moex(batch().y, plan=plan(by=2)) as targets:
        first.backward()
        second = targets.loss(F.cross_entropy, model(batch().x))
    second.backward()
    for i, p in ((1, plan()), (0, plan(by=2))):
        loss_by_hand(by_hand, batch(seed=i), p).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_a_gradient_that_is_taken_twice_is_the_same_both_times(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    loss, other = (loss_in_block(model, moex, batch(seed=i), p) for i, p in enumerate([plan(), plan(by=2)]))
    other.backward()
    loss.backward(retain_graph=True)
    clear_gradients(model)
    loss.backward()
    loss_by_hand(by_hand, batch(), plan()).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_sam_with_a_replayed_plan_has_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    at = batch()
    for m, loss in ((model, loss_in_block(model, moex, at, plan())), (by_hand, loss_by_hand(by_hand, at, plan()))):
        loss.backward()
        with torch.no_grad():
            for p in m.parameters():
                p.add_(p.grad, alpha=0.1)
        clear_gradients(m)
    loss_in_block(model, moex, at, moex.plan).backward()
    loss_by_hand(by_hand, at, plan()).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_per_sample_losses_and_cross_entropy_of_targets_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    losses = []
    for i, p in enumerate([plan(), plan(by=2)]):
        with moex(batch(seed=i).y, plan=p) as targets:
            output = model(batch(seed=i).x)
        losses.append(
            targets.cross_entropy(output) if i else targets.loss(F.cross_entropy, output, reduction="none").mean()
        )
    sum(losses).backward()
    sum(loss_by_hand(by_hand, batch(seed=i), p) for i, p in enumerate([plan(), plan(by=2)])).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_one_block_whose_loss_did_not_come_from_targets_is_right_too(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    at = batch()
    with moex(at.y, plan=plan()) as targets:
        output = model(at.x)
    F.cross_entropy(output, targets.probabilities(CLASSES)).backward()
    loss_by_hand(by_hand, at, plan()).backward()
    assert_same_gradients(model, by_hand)


class Nested(Checkpointed):
    """A checkpointed segment inside of another one: the layer is recomputed twice."""

    def forward(self, x: Tensor) -> Tensor:
        def outer(h: Tensor) -> Tensor:
            h = checkpoint(self.layer1, h, use_reentrant=False)
            return checkpoint(self.layer2, h, use_reentrant=False)

        return self._pooled_head(checkpoint(outer, self.stem(x), use_reentrant=self.reentrant))


def test_nested_checkpoints_have_the_gradients_of_the_twin() -> None:
    model = net(Nested, reentrant=False, batch_norm=False)
    assert_twins(model, MomentExchange(model, "layer1"), net(batch_norm=False), [plan(), off(), plan(by=2)])


@modes
def test_two_objects_in_nested_blocks_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    found = []
    for model in (net(Checkpointed, reentrant=reentrant, batch_norm=False), net(batch_norm=False)):
        first, second = MomentExchange(model, "layer1"), MomentExchange(model, "layer2")
        losses = []
        for i in range(3):
            at = batch(seed=i)
            with first(at.y, plan=plan(by=1 + i)) as once, second(once, plan=plan(layer="layer2", by=2 + i)) as twice:
                losses.append(twice.loss(F.cross_entropy, model(at.x)))
        sum(losses).backward()
        found.append(model)
    assert_same_gradients(*found)


def test_a_gradient_penalty_through_the_checkpointed_block_has_the_gradients_of_the_twin() -> None:
    """Second derivatives: reentrant checkpoints refuse them themselves."""
    model, moex, by_hand = pair(False)
    for m in (model, by_hand):
        at = batch()._replace(x=batch().x.requires_grad_())
        loss = loss_in_block(model, moex, at, plan()) if m is model else loss_by_hand(by_hand, at, plan())
        (slope,) = torch.autograd.grad(loss, at.x, create_graph=True)
        (loss + slope.square().sum()).backward()
    assert_same_gradients(model, by_hand)


# --- what is plain stays plain ---------------------------------------------------------------------------------------


@modes
def test_a_plain_step_after_a_block_has_plain_gradients(reentrant: bool) -> None:
    """The last epochs without the block: recomputation of a plain pass must not exchange what the last block did."""
    model, moex, plain = pair(reentrant)
    loss_in_block(model, moex, batch(seed=1), plan()).backward()
    clear_gradients(model)
    F.cross_entropy(model(batch().x), batch().y).backward()
    F.cross_entropy(plain(batch().x), batch().y).backward()
    assert_same_gradients(model, plain)


@modes
def test_a_plain_step_of_another_batch_size_after_a_block_works(reentrant: bool) -> None:
    model, moex, plain = pair(reentrant)
    loss_in_block(model, moex, batch(6, seed=1), plan()).backward()
    clear_gradients(model)
    F.cross_entropy(model(batch(4).x), batch(4).y).backward()
    F.cross_entropy(plain(batch(4).x), batch(4).y).backward()
    assert_same_gradients(model, plain)


def block_and_plain(model: nn.Module, block: Tensor, at: Batch) -> Tensor:
    return block + F.cross_entropy(model(at.x), at.y)


@modes
def test_a_plain_pass_after_the_block_in_one_backward_has_plain_gradients(reentrant: bool) -> None:
    """A consistency loss on unlabelled data: one term exchanged, one plain."""
    model, moex, by_hand = pair(reentrant)
    block_and_plain(model, loss_in_block(model, moex, batch(seed=1), plan()), batch()).backward()
    block_and_plain(by_hand, loss_by_hand(by_hand, batch(seed=1), plan()), batch()).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_a_plain_pass_before_the_block_in_one_backward_has_plain_gradients(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    first = F.cross_entropy(model(batch().x), batch().y)
    (first + loss_in_block(model, moex, batch(seed=1), plan())).backward()
    block_and_plain(by_hand, loss_by_hand(by_hand, batch(seed=1), plan()), batch()).backward()
    assert_same_gradients(model, by_hand)


@pytest.mark.parametrize("plain_first", [False, True], ids=["block_first", "plain_first"])
def test_a_plain_pass_and_a_block_in_one_backward_above_a_frozen_stem_have_their_own_gradients(plain_first) -> None:
    model, moex, by_hand = pair(False)
    for m in (model, by_hand):
        m.stem.requires_grad_(False)
        passes = [
            lambda m=m: (
                loss_in_block(m, moex, batch(seed=1), plan()) if m is model else loss_by_hand(m, batch(seed=1), plan())
            ),
            lambda m=m: F.cross_entropy(m(batch().x), batch().y),
        ]
        sum(p() for p in (passes[::-1] if plain_first else passes)).backward()
    assert_same_gradients(model, by_hand)


@modes
def test_eval_inside_and_after_a_checkpointed_block_is_plain_outside_of_it(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    loss = loss_in_block(model, moex, batch(), plan())
    model.eval()
    assert same(model(batch(seed=1).x), by_hand(batch(seed=1).x))
    model.train()
    loss.backward()
    loss_by_hand(by_hand, batch(), plan()).backward()
    assert_same_gradients(model, by_hand)
    assert same(model(batch(seed=1).x), by_hand(batch(seed=1).x))


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise ZeroDivisionError("in backward")


def fail_in_backward(model: nn.Module, moex: MomentExchange, at: Batch) -> None:
    """The gradient of our loss arrives, and something between loss and input then breaks."""
    with moex(at.y, plan=plan(layer=moex.layers[0])) as targets:
        loss = targets.loss(F.cross_entropy, Failing.apply(model(at.x)))
    with pytest.raises(ZeroDivisionError, match="in backward"):
        loss.backward()


@modes
def test_after_a_failed_backward_a_forward_pass_is_plain_and_so_are_its_gradients(reentrant: bool) -> None:
    model, moex, plain = pair(reentrant)
    fail_in_backward(model, moex, batch(seed=1))
    loss = F.cross_entropy(model(batch().x), batch().y)
    plain_loss = F.cross_entropy(plain(batch().x), batch().y)
    assert same(loss, plain_loss)
    clear_gradients(model)
    loss.backward()
    plain_loss.backward()
    assert_same_gradients(model, plain)


@modes
@pytest.mark.gpu
def test_on_a_gpu_whose_backward_runs_in_another_thread_three_blocks_have_the_gradients_of_the_twin(reentrant) -> None:
    model, moex, by_hand = pair(reentrant)
    model.cuda(), by_hand.cuda()
    plans = [plan(), off(), plan(by=2)]
    there = [Batch(*(t.cuda() for t in batch(seed=i))) for i in range(3)]
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        sum(loss_in_block(model, moex, at, p) for at, p in zip(there, plans, strict=True)).backward()
        sum(loss_by_hand(by_hand, at, _there(p)) for at, p in zip(there, plans, strict=True)).backward()
    assert_same_gradients(model, by_hand, close=1e-4)


@modes
@pytest.mark.gpu
def test_on_a_gpu_a_plain_step_after_a_block_and_after_a_failed_one_has_plain_gradients(reentrant: bool) -> None:
    model, moex, plain = pair(reentrant)
    model.cuda(), plain.cuda()
    at = Batch(*(t.cuda() for t in batch()))
    loss_in_block(model, moex, at, plan()).backward()
    fail_in_backward(model, moex, at)
    clear_gradients(model)
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        F.cross_entropy(model(at.x), at.y).backward()
        F.cross_entropy(plain(at.x), at.y).backward()
    assert_same_gradients(model, plain, close=1e-4)


def _there(p: Plan) -> Plan:
    return Plan(p.index.cuda(), p.lam, p.layer, p.on)


# --- with a compiler -------------------------------------------------------------------------------------------------


def compiled(model: nn.Module, *, fullgraph: bool, backend: str = "aot_eager") -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=fullgraph, backend=backend)


MIXED = [plan(), off(), plan(by=2)]

# torch's own: Dynamo looks at .grad of every tensor that it is given.
dynamo_looks_at_grad = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")


@modes
@dynamo_looks_at_grad
def test_compiled_and_checkpointed_one_block_has_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    assert_twins(compiled(model, fullgraph=not reentrant), moex, _named(by_hand), [plan()])


@modes
@dynamo_looks_at_grad
def test_compiled_and_checkpointed_three_blocks_have_the_gradients_of_the_twin(reentrant: bool) -> None:
    model, moex, by_hand = pair(reentrant)
    assert_twins(compiled(model, fullgraph=not reentrant), moex, _named(by_hand), MIXED)


def test_compiled_by_inductor_and_checkpointed_three_blocks_have_the_gradients_of_the_twin() -> None:
    model, moex, by_hand = pair(False)
    assert_twins(compiled(model, fullgraph=True, backend="inductor"), moex, _named(by_hand), MIXED)


class _named(nn.Module):
    """The twin under the parameter names that a compiled model has."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self._orig_mod = model

    def __getattr__(self, name: str):
        return super().__getattr__(name) if name == "_orig_mod" else getattr(self._orig_mod, name)


class CompiledChild(Checkpointed):
    """An eager checkpoint around a compiled part: the part is called again in backward, compiled."""

    def compile_parts(self) -> None:
        torch._dynamo.reset()
        self.layer1.compile(backend="aot_eager")

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.layer1, self.stem(x), use_reentrant=self.reentrant)
        return self._pooled_head(self.layer2(h))


@modes
@dynamo_looks_at_grad
@pytest.mark.parametrize("plans", [[plan()], MIXED], ids=["one_block", "three_blocks"])
@pytest.mark.parametrize("layer", ["layer1", "layer1.0"])
def test_an_eager_checkpoint_around_a_compiled_child_has_the_gradients_of_the_twin(reentrant, plans, layer) -> None:
    model = net(CompiledChild, reentrant=reentrant, batch_norm=False)
    moex = MomentExchange(model, layer)
    model.compile_parts()
    plans = [Plan(p.index, p.lam, layer, p.on) for p in plans]
    assert_twins(model, moex, net(batch_norm=False), plans)


@modes
@dynamo_looks_at_grad
def test_after_a_failed_backward_a_compiled_child_is_plain(reentrant: bool) -> None:
    model = net(CompiledChild, reentrant=reentrant, batch_norm=False)
    moex, plain = MomentExchange(model, "layer1.0"), net(batch_norm=False)
    model.compile_parts()
    fail_in_backward(model, moex, batch(seed=1))
    torch.testing.assert_close(model(batch().x), plain(batch().x))


@modes
@dynamo_looks_at_grad
def test_a_plain_step_after_a_block_through_a_compiled_child_has_plain_gradients(reentrant: bool) -> None:
    model = net(CompiledChild, reentrant=reentrant, batch_norm=False)
    moex, plain = MomentExchange(model, "layer1.0"), net(batch_norm=False)
    model.compile_parts()
    loss_in_block(model, moex, batch(seed=1), plan(layer="layer1.0")).backward()
    clear_gradients(model)
    F.cross_entropy(model(batch().x), batch().y).backward()
    F.cross_entropy(plain(batch().x), batch().y).backward()
    assert_same_gradients(model, plain)
