"""Outside of a block the model is bitwise what it was: for training, evaluation, copies, exports and recalibration."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from momentex import MomentExchange
from momentex.errors import LayerDidNotFire
from tests.models import (
    Net,
    assert_same_gradients,
    assert_same_state,
    batch,
    differ,
    gradients,
    loss_by_hand,
    loss_in_block,
    net,
    plan,
    same,
    twin,
)

attachments = pytest.mark.parametrize(
    "arguments",
    [{"layer": "layer1"}, {"layer": ("layer1", "layer2")}, {"layer": "layer1.0", "where": "output"}],
    ids=["input", "two_layers", "output"],
)


class Dropping(Net):
    """With dropout, so that the global random state matters."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


def used(arguments: dict) -> tuple[nn.Module, MomentExchange, nn.Module]:
    """A model after a few blocks, on and off, and a twin without hooks."""
    model = net(Dropping)
    moex = MomentExchange(model, p=0.5, **arguments)
    for seed in range(4):
        loss_in_block(model, moex, batch(seed=seed)).backward()
    model.zero_grad(set_to_none=True)
    plain = net(Dropping)
    plain.load_state_dict(model.state_dict())
    return model, moex, plain


@attachments
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_outside_of_blocks_outputs_buffers_gradients_and_random_state_are_bitwise_plain(arguments, training) -> None:
    model, _, plain = used(arguments)
    results = []
    for m in (model.train(training), plain.train(training)):
        torch.manual_seed(1)
        out = m(batch().x)
        F.cross_entropy(out, batch().y).backward()
        results.append((out, torch.get_rng_state()))
    assert same(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert_same_state(model, plain)
    assert all(same(a, b) for a, b in zip(gradients(model).values(), gradients(plain).values(), strict=True))


@attachments
def test_attaching_changes_no_parameter_no_buffer_no_key_no_mode_and_no_random_state(arguments) -> None:
    plain = net()
    model, state = twin(plain), torch.get_rng_state()
    model.layer2.eval()
    modes = [m.training for m in model.modules()]
    MomentExchange(model, **arguments)
    assert_same_state(model, plain)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_block_moves_buffers_only_as_its_own_forward_pass_does() -> None:
    model, by_hand = net(), net()
    moex = MomentExchange(model, "layer1")
    loss_in_block(model, moex, batch(), plan())
    loss_by_hand(by_hand, batch(), plan())
    assert_same_state(model, by_hand)


def test_a_teacher_inside_the_block_sees_the_plain_model_and_does_not_count() -> None:
    model, at = net(), batch()
    moex, teacher = MomentExchange(model, "layer1"), net(seed=7).eval()
    MomentExchange(teacher, "layer1")
    with moex(at.y, plan=plan()) as targets:
        seen = teacher(at.x)
        loss = targets.loss(F.cross_entropy, model(at.x))
    assert same(seen, net(seed=7).eval()(at.x))
    assert same(loss, loss_by_hand(net(), at, plan()))


@pytest.mark.parametrize("copied_by", [copy.deepcopy, AveragedModel], ids=["deepcopy", "AveragedModel"])
def test_a_copy_that_is_made_in_an_open_block_is_disarmed_and_does_not_count(copied_by) -> None:
    model, plain, at = net(), net(), batch()
    moex = MomentExchange(model, "layer1")
    with moex(at.y, plan=plan()) as targets:
        averaged = copied_by(model)
        seen = averaged(at.x)
        loss = targets.loss(F.cross_entropy, model(at.x))
    assert same(seen, plain(at.x))
    assert same(loss, loss_by_hand(net(), at, plan()))


def test_a_copy_alone_does_not_satisfy_the_block() -> None:
    model = net()
    moex = MomentExchange(model, "layer1", p=1.0)
    with pytest.raises(LayerDidNotFire), moex(batch().y):
        copy.deepcopy(model)(batch().x)


def test_an_average_that_is_updated_in_blocks_is_bitwise_that_of_plain_weights() -> None:
    model, plain = net(batch_norm=False), net(batch_norm=False)
    moex = MomentExchange(model, "layer1")
    averages = [AveragedModel(m) for m in (model, plain)]
    for i in range(2):
        with moex(batch().y, plan=plan()), torch.no_grad():
            for m in (model, plain):
                m.stem.weight.mul_(1 + i)
            model(batch().x)
            averages[0].update_parameters(model)
        averages[1].update_parameters(plain)
    assert same(averages[0].module.stem.weight, averages[1].module.stem.weight)
    assert same(averages[0].eval()(batch().x), averages[1].eval()(batch().x))


def test_recalibrating_batch_norm_gives_plain_statistics() -> None:
    model, _, plain = used({"layer": "layer1"})
    loader = [batch(seed=i).x for i in range(3)]
    for m in (model, plain):
        update_bn(loader, m)
    assert_same_state(model, plain)


def test_a_copy_of_the_model_can_be_attached_to_and_trained_by_itself() -> None:
    model, at = net(), batch()
    MomentExchange(model, "layer1")
    copied, by_hand = copy.deepcopy(model), net()
    moex = MomentExchange(copied, "layer1")
    loss_in_block(copied, moex, at, plan()).backward()
    loss_by_hand(by_hand, at, plan()).backward()
    assert_same_gradients(copied, by_hand)


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_model_that_is_pickled_in_an_open_block_comes_back_disarmed() -> None:
    model, at = net(), batch()
    moex = MomentExchange(model, "layer1")
    with moex(at.y, plan=plan()):
        loaded = saved_and_loaded(model)
        model(at.x)
    assert same(loaded(at.x), net()(at.x))


def test_a_pickled_model_names_momentex_until_remove() -> None:
    model = net()
    moex = MomentExchange(model, "layer1")
    file = io.BytesIO()
    torch.save(model, file)
    assert b"momentex.attach" in file.getvalue()
    moex.remove()
    file = io.BytesIO()
    torch.save(model, file)
    assert b"momentex" not in file.getvalue()


def test_model_and_object_pickled_together_work_together() -> None:
    model, at = net(), batch()
    loaded, moex = saved_and_loaded((model, MomentExchange(model, "layer1", seed=4, p=1.0)))
    assert same(loss_in_block(loaded, moex, at, plan()), loss_by_hand(net(), at, plan()))
    moex.remove()
    assert not loaded.layer1._forward_pre_hooks


@attachments
def test_state_dicts_load_both_ways(arguments) -> None:
    model, plain = net(seed=1), net(seed=2)
    MomentExchange(model, **arguments)
    plain.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(net(seed=3).state_dict(), strict=True)
    assert same(model.eval()(batch().x), net(seed=3).eval()(batch().x))


@attachments
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_an_export_has_the_graph_and_the_numbers_of_the_plain_model(arguments, training: bool) -> None:
    model, _, plain = used(arguments)
    model, plain = (m.train(training) for m in (model, plain))
    exported, of_plain = (torch.export.export(m, (batch().x,)) for m in (model, plain))
    assert str(exported.graph) == str(of_plain.graph)
    assert exported.graph_signature == of_plain.graph_signature
    if not training:
        assert same(exported.module()(batch().x), of_plain.module()(batch().x))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated", "ignore:.torch.jit.trace_method. is deprecated")
def test_a_trace_in_eval_has_the_graph_and_the_numbers_of_the_plain_model() -> None:
    model, _, plain = used({"layer": "layer1"})
    traced, of_plain = (torch.jit.trace(m.eval(), batch().x) for m in (model, plain))
    assert same(traced(batch().x), of_plain(batch().x))
    graphs = [re.sub(r"___torch_mangle_\d+\.", "", str(t.inlined_graph)) for t in (traced, of_plain)]
    assert graphs[0] == graphs[1]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_scripting_fails_before_remove_and_works_after_it() -> None:
    model, plain = net(), net()
    moex = MomentExchange(model, "layer1")
    with pytest.raises(RuntimeError, match="on_input"):  # torch names our hook in what it says
        torch.jit.script(model)
    moex.remove()
    assert same(torch.jit.script(model)(batch().x), plain(batch().x))


def test_functional_calls_and_gradients_of_functions_work_in_a_block() -> None:
    model, by_hand, at = net(batch_norm=False), net(batch_norm=False), batch()
    moex = MomentExchange(model, "layer1")

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with moex(at.y, plan=plan()) as targets:
            return targets.loss(F.cross_entropy, torch.func.functional_call(model, parameters, (at.x,)))

    found = torch.func.grad(loss)(dict(model.named_parameters()))
    loss_by_hand(by_hand, at, plan()).backward()
    for name, gradient in gradients(by_hand).items():
        torch.testing.assert_close(found[name], gradient)


def test_the_comparisons_of_this_file_would_notice_an_armed_model() -> None:
    model, at = net(), batch()
    moex = MomentExchange(model, "layer1")
    with moex(at.y, plan=plan()):
        armed = model(at.x)
    assert differ([armed], [net()(at.x)])
