"""Layer name -> module -> hook: what can be attached to, what is refused, how features are found in any signature."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn

from momentex import IN, ExchangeSite, MomentExchange, Plan, exchange_moments
from momentex.errors import AttachmentError, FeatureError, LayerDidNotFire, LayerNotFound, ShapeError, StepError
from tests.models import Net, Tokens, batch, differ, loss_by_hand, loss_in_block, net, plan, rolled, same


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


# --- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_layer_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(LayerNotFound, match=r"Net has no layer 'layr1'\. Did you mean 'layer1'") as error:
        MomentExchange(net(), "layr1")
    assert "Top-level layers: stem, layer1, layer2, head." in str(error.value)
    assert "momentex.sites(model, example)" in str(error.value)


def test_an_unknown_layer_that_resembles_nothing_still_gets_the_list() -> None:
    with pytest.raises(LayerNotFound, match=r"has no layer 'zzz'\. Top-level layers: stem,"):
        MomentExchange(net(), "zzz")


@pytest.mark.parametrize("layer", ["", ("layer1", "")])
def test_the_root_is_refused_as_a_layer(layer: str | tuple[str, ...]) -> None:
    with pytest.raises(LayerNotFound, match=r"layer is ''.*Name a child of the model"):
        MomentExchange(net(), layer)


@pytest.mark.parametrize("layer", [(), ("layer1", "layer1")])
def test_no_layer_and_a_layer_twice_are_refused(layer: tuple[str, ...]) -> None:
    with pytest.raises(LayerNotFound, match="name one layer, or several different ones"):
        MomentExchange(net(), layer)


@pytest.mark.parametrize("child", ["stem", "layer1"])
def test_a_module_in_place_of_its_name_is_refused_and_says_that_a_name_is_needed(child: str) -> None:
    model = net()
    with pytest.raises(LayerNotFound, match="name"):
        MomentExchange(model, getattr(model, child))
    assert hooks(model) == 0


@pytest.mark.parametrize("layer", [None, 5, ["layer1", 5], iter(["layer1"])], ids=str)
def test_a_layer_that_is_no_name_is_refused(layer) -> None:
    model = net()
    with pytest.raises(LayerNotFound, match=r"layer is a \w+; give its name, as in model\.named_modules"):
        MomentExchange(model, layer)
    assert hooks(model) == 0


def test_a_module_with_two_names_is_found_under_both() -> None:
    model = net()
    model.alias = model.layer1
    at = batch()
    for name in ("layer1", "alias"):
        moex = MomentExchange(model, name, p=1.0)
        loss_in_block(model, moex, at)
        moex.remove()


def test_a_wrong_second_name_leaves_no_hook_of_the_first() -> None:
    model = net()
    with pytest.raises(LayerNotFound, match="has no layer 'layer9'"):
        MomentExchange(model, ("layer1", "layer9"))
    assert hooks(model) == 0


def test_a_wrong_where_is_refused_and_leaves_no_hook() -> None:
    model = net()
    with pytest.raises(AttachmentError, match=r"where is 'middle'; it is 'input'.*or 'output'"):
        MomentExchange(model, ("layer1", "layer2"), where="middle")
    assert hooks(model) == 0


def test_remove_takes_every_hook_off_and_ends_the_object() -> None:
    model = net()
    moex = MomentExchange(model, ("layer1", "layer2"))
    assert hooks(model) == 2
    moex.remove()
    assert hooks(model) == 0
    assert moex.layers == ()
    with pytest.raises(StepError, match="was removed from its model; make a new one"):
        moex(batch().y)


def test_removing_twice_is_harmless_and_leaves_the_hooks_of_others() -> None:
    model = net()
    first, second = MomentExchange(model, "layer1"), MomentExchange(model, "layer1", p=1.0)
    first.remove()
    first.remove()
    assert hooks(model) == 1
    loss_in_block(model, second, batch())


def test_removing_inside_a_block_is_a_step_error_or_nothing() -> None:
    """Whatever it does, it must not be a KeyError from our own bookkeeping."""
    model = net()
    moex = MomentExchange(model, "layer1", p=1.0)
    with moex(batch().y) as targets:
        targets.loss(F.cross_entropy, model(batch().x))
        moex.remove()
    assert hooks(model) == 0


def test_a_step_whose_object_was_removed_before_it_was_entered_is_refused() -> None:
    moex = MomentExchange(net(), "layer1", p=1.0)
    step = moex(batch().y)
    moex.remove()
    with pytest.raises(StepError, match="was removed from its model"), step:
        pass


# --- models that cannot be attached to -------------------------------------------------------------------------------


def test_a_compiled_model_is_refused_and_the_order_is_said() -> None:
    with pytest.raises(AttachmentError, match="the model is compiled already") as error:
        MomentExchange(torch.compile(net(), backend="eager"), "layer1")
    assert "Order: build the model, MomentExchange(model, …), then torch.compile(model)" in str(error.value)


def test_a_model_compiled_in_place_is_refused() -> None:
    model = net()
    model.compile(backend="eager")
    with pytest.raises(AttachmentError, match="the model is compiled already"):
        MomentExchange(model, "layer1")


def test_a_model_with_a_compiled_child_is_refused_by_the_name_of_the_child() -> None:
    wrapped, in_place = net(), net()
    wrapped.layer1 = torch.compile(wrapped.layer1, backend="eager")
    in_place.layer2.compile(backend="eager")
    with pytest.raises(AttachmentError, match="its module 'layer1' is compiled already"):
        MomentExchange(wrapped, "layer2")
    with pytest.raises(AttachmentError, match="its module 'layer2' is compiled already"):
        MomentExchange(in_place, "layer1")


def test_data_parallel_is_refused_and_ddp_is_advised() -> None:
    with pytest.raises(AttachmentError, match=r"model is a DataParallel.*Use DistributedDataParallel"):
        MomentExchange(nn.DataParallel(net()), "layer1")


def test_data_parallel_around_a_part_that_holds_the_layer_is_refused() -> None:
    model = net()
    model.layer1 = nn.DataParallel(model.layer1)  # as the ImageNet example of torch does with AlexNet and VGG
    with pytest.raises(AttachmentError, match="DataParallel"):
        MomentExchange(model, "layer1.module.0")


def test_data_parallel_that_comes_after_attaching_is_found_by_its_part_of_the_batch() -> None:
    """On a machine without GPUs DataParallel calls the module as it is, so the replica's half batch is fed here."""
    model, at = net(), batch(6)
    moex = MomentExchange(model, "layer1", p=1.0)
    with pytest.raises(StepError, match=r"sees a batch of 3 .*the labels are 6.*not DataParallel"), moex(at.y):
        model(at.x[:3])


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(AttachmentError, match=r"model is a function; it must be a torch\.nn\.Module"):
        MomentExchange(loss_by_hand, "layer1")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, about what is refused here
def test_a_script_module_is_refused_and_the_order_is_said() -> None:
    scripted = torch.jit.script(net())
    with pytest.raises(AttachmentError, match=r"ScriptModule.*Attach before torch\.jit\.script"):
        MomentExchange(scripted, "layer1")


def test_a_distributed_model_is_unwrapped(tmp_path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model, at = net(), batch()
        wrapped = nn.parallel.DistributedDataParallel(model)
        moex = MomentExchange(wrapped, "layer1", p=1.0)
        assert hooks(model.layer1) == 1
        loss = loss_in_block(wrapped, moex, at, plan())
        torch.testing.assert_close(loss, loss_by_hand(net(), at, plan()))
        with pytest.raises(LayerNotFound, match=r"no layer 'module\.layer1'\. Did you mean 'layer1'"):
            MomentExchange(wrapped, "module.layer1")
    finally:
        torch.distributed.destroy_process_group()


# --- where, and in which signature -----------------------------------------------------------------------------------


def test_the_input_of_the_layer_is_exchanged_exactly_as_by_hand() -> None:
    model, at = net(), batch()
    loss = loss_in_block(model, MomentExchange(model, "layer1"), at, plan())
    assert same(loss, loss_by_hand(net(), at, plan()))


def test_the_output_of_the_layer_before_is_the_input_of_the_layer() -> None:
    before, after, at = net(), net(), batch()
    at_input = loss_in_block(after, MomentExchange(after, "layer1"), at, plan())
    at_output = loss_in_block(before, MomentExchange(before, "stem", where="output"), at, plan(layer="stem"))
    assert same(at_input, at_output)


def test_of_several_layers_exactly_the_drawn_one_acts_in_each_step() -> None:
    model, at, drawn = net(batch_norm=False), batch(), set()
    moex = MomentExchange(model, ("layer1", "layer2"), p=1.0)
    for _ in range(12):
        loss = loss_in_block(model, moex, at)
        drawn.add(moex.plan.layer)
        if moex.plan.layer == "layer1":
            assert same(loss, loss_by_hand(net(batch_norm=False), at, moex.plan))
    assert drawn == {"layer1", "layer2"}


class Pair(NamedTuple):
    kept: Tensor
    features: Tensor


class Output(OrderedDict):
    """As the outputs of transformers: a dict whose values are attributes too."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Emits(nn.Module):
    """Hands its input on in the container that `wrap` makes, and notes what it was given."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, h: Tensor):
        self.made = self.wrap(h)
        return self.made


H = torch.arange(24.0).view(4, 3, 2).square()  # moments of all samples differ
EXCHANGED = exchange_moments(H, rolled(4))


def emitted(wrap, select):
    """What a model gets back from a layer with this output, exchanged at `select`; and what the layer had made."""
    model = nn.Sequential(OrderedDict(layer=Emits(wrap)))
    moex = MomentExchange(model, "layer", where="output", select=select)
    with moex(torch.arange(4), plan=Plan(rolled(4), 0.9, "layer")):
        return model(H), model.layer.made


def test_select_finds_features_in_a_tuple_and_keeps_the_rest() -> None:
    out, made = emitted(lambda h: ("left", h), select=1)
    assert type(out) is tuple
    assert out[0] == "left"
    assert same(out[1], EXCHANGED)
    assert same(made[1], H)


def test_select_counts_from_the_end_as_python_does() -> None:
    out, _ = emitted(lambda h: (None, None, h), select=-1)
    assert same(out[2], EXCHANGED)


def test_select_keeps_a_list_a_list_and_changes_nothing_in_place() -> None:
    out, made = emitted(lambda h: [h, 7], select=0)
    assert type(out) is list
    assert same(out[0], EXCHANGED)
    assert out[1] == 7
    assert same(made[0], H)


def test_select_keeps_a_namedtuple_a_namedtuple() -> None:
    out, made = emitted(lambda h: Pair(h, h), select=1)
    assert type(out) is Pair
    assert same(out.features, EXCHANGED)
    assert same(out.kept, H)
    assert same(made.features, H)


def test_select_finds_features_in_a_dict_by_key() -> None:
    out, made = emitted(lambda h: {"x": h, "y": 1}, select="x")
    assert list(out) == ["x", "y"]
    assert same(out["x"], EXCHANGED)
    assert same(made["x"], H)


def test_select_keeps_a_dict_with_attributes_what_it_is() -> None:
    out, made = emitted(lambda h: Output(features=h, other=None), select="features")
    assert type(out) is Output
    assert same(out["features"], EXCHANGED)
    assert same(out.features, EXCHANGED)
    assert same(made.features, H)


def test_select_follows_a_path_through_nested_containers() -> None:
    out, made = emitted(lambda h: ({"stages": [None, Pair(h, h)]}, 3), select=(0, "stages", 1, 1))
    inner = out[0]["stages"][1]
    assert type(inner) is Pair
    assert same(inner.features, EXCHANGED)
    assert same(inner.kept, H)
    assert same(made[0]["stages"][1].features, H)
    assert out[1] == 3


class Takes(nn.Module):
    def forward(self, h: Tensor, scale: float = 1.0, *, extra: Tensor | None = None) -> Tensor:
        return h * scale + (0.0 if extra is None else extra)


def taken(call, select=None) -> Tensor:
    layer = Takes()
    model = nn.ModuleDict({"layer": layer})
    moex = MomentExchange(model, "layer", select=select)
    with moex(torch.arange(4), plan=Plan(rolled(4), 0.9, "layer")):
        return call(layer)


def test_a_layer_that_is_called_with_keywords_only_is_served() -> None:
    assert same(taken(lambda layer: layer(h=H, scale=1.0)), EXCHANGED)


def test_select_names_a_keyword_beside_positional_arguments() -> None:
    out = taken(lambda layer: layer(torch.zeros_like(H), 1.0, extra=H), select="extra")
    assert same(out, EXCHANGED)


def test_select_names_a_position() -> None:
    out = taken(lambda layer: layer(H, 2.0, extra=None), select=0)
    assert same(out, EXCHANGED * 2.0)


def test_features_that_are_no_tensor_are_refused_with_what_they_are() -> None:
    with pytest.raises(FeatureError, match=r"output of layer 'layer' is a tuple of 2: \(a tensor \(4, 3, 2\), a str\)"):
        emitted(lambda h: (h, "rest"), select=None)
    with pytest.raises(FeatureError, match=r"is a dict with keys 'x', not a tensor.*select='name'"):
        emitted(lambda h: {"x": h}, select=None)


@pytest.mark.parametrize("select", [5, "features", (0, "features"), (1, 0)])
def test_a_select_that_finds_nothing_is_refused_with_what_is_there(select) -> None:
    with pytest.raises(FeatureError, match=r"finds nothing in the output of layer 'layer': a tuple of 2|not a tensor"):
        emitted(lambda h: (h, "rest"), select=select)


def test_a_keyword_that_was_given_by_position_is_refused_with_the_keywords_there() -> None:
    with pytest.raises(FeatureError, match="select='h' finds nothing in the input of layer 'layer'"):
        taken(lambda layer: layer(H, extra=None), select="h")


def test_a_layer_that_is_called_without_arguments_is_refused() -> None:
    class Constant(nn.Module):
        def forward(self) -> Tensor:
            return H

    model = nn.ModuleDict({"layer": Constant()})
    moex = MomentExchange(model, "layer")
    with (
        pytest.raises(FeatureError, match="finds nothing in the input"),
        moex(torch.arange(4), plan=Plan(rolled(4), 0.9, "layer")),
    ):
        model["layer"]()


def test_integer_features_are_refused() -> None:
    with pytest.raises(FeatureError, match=r"features are a tensor of torch\.int64.*Attach to a later layer"):
        emitted(lambda h: h.long(), select=None)


@pytest.mark.parametrize(("axis", "name"), [(7, "batch_dim"), (-9, "batch_dim"), (7, "channel_dim")])
def test_an_axis_that_the_features_do_not_have_is_refused_by_name(axis: int, name: str) -> None:
    model = nn.Sequential(OrderedDict(layer=nn.Identity()))
    moex = MomentExchange(model, "layer", **{name: axis})
    with (
        pytest.raises(ShapeError, match=f"{name}={axis}, but features .4, 3, 2. have 3 axes"),
        moex(torch.arange(4), plan=Plan(rolled(4), 0.9, "layer")),
    ):
        model(H)


# --- the site for people who own their forward -----------------------------------------------------------------------


class WithSite(nn.Module):
    """(batch, tokens, 3) with padding, or (points, 3) in sets, to the features at the site."""

    def __init__(self) -> None:
        super().__init__()
        self.site = ExchangeSite()

    def forward(self, h: Tensor, **facts: Tensor) -> Tensor:
        return self.site(h, **facts)


TOKENS = torch.arange(36.0).view(3, 4, 3).square()
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]) == 1


def test_the_site_is_an_identity_with_nothing_to_learn_or_save() -> None:
    site = ExchangeSite()
    assert site(TOKENS, mask=MASK) is TOKENS
    assert not site.state_dict()
    assert not list(site.parameters())


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_site_uses_the_mask_that_its_forward_hands_in(where) -> None:
    model = WithSite()
    moex = MomentExchange(model, "site", over=IN(), channel_dim=-1, where=where)
    with moex(torch.arange(3), plan=Plan(rolled(3), 0.9, "site")):
        out = model(TOKENS, mask=MASK)
    assert same(out, exchange_moments(TOKENS, rolled(3), IN(), mask=MASK, channel_dim=-1))
    assert not same(out, exchange_moments(TOKENS, rolled(3), IN(), channel_dim=-1))


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_site_uses_the_sets_that_its_forward_hands_in(where) -> None:
    model, points, sets = WithSite(), TOKENS.flatten(0, 1), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    moex = MomentExchange(model, "site", over=IN(), where=where)
    with moex(torch.arange(3), plan=Plan(rolled(3), 0.9, "site")):
        out = model(points, batch=sets)
    assert same(out, exchange_moments(points, rolled(3), IN(), batch=sets))


def test_the_mask_of_the_step_reaches_the_site_and_the_labels() -> None:
    model, mask = WithSite(), MASK.clone()
    mask[1] = torch.tensor([True, False, False, False])  # one position: gives nothing and gets nothing
    moex = MomentExchange(model, "site", over=IN(), channel_dim=-1)
    with moex(torch.arange(3), mask=mask, plan=Plan(rolled(3), 0.75, "site")) as targets:
        out = model(TOKENS)
    assert same(out, exchange_moments(TOKENS, rolled(3), IN(), mask=mask, channel_dim=-1))
    # Sample 0 gets from 2; sample 2 would get from 1, which has nothing to give.
    expected = torch.tensor([[0.75, 0.0, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(targets.probabilities(3), expected)


def test_the_mask_of_the_site_wins_over_the_mask_of_the_step_in_the_features() -> None:
    model = WithSite()
    moex = MomentExchange(model, "site", over=IN(), channel_dim=-1)
    everything = torch.ones(3, 9, dtype=torch.bool)  # the step's mask is at another resolution
    with moex(torch.arange(3), mask=everything, plan=Plan(rolled(3), 0.75, "site")):
        out = model(TOKENS, mask=MASK)
    assert same(out, exchange_moments(TOKENS, rolled(3), IN(), mask=MASK, channel_dim=-1))


def test_the_sets_of_the_step_reach_the_features_and_the_labels() -> None:
    model, points, sets = WithSite(), TOKENS.flatten(0, 1), torch.tensor([0] * 6 + [1] + [2] * 5)
    moex = MomentExchange(model, "site", over=IN())
    with moex(torch.arange(3), batch=sets, plan=Plan(rolled(3), 0.75, "site")) as targets:
        out = model(points)
    assert same(out, exchange_moments(points, rolled(3), IN(), batch=sets))
    assert same(out[6], points[6])
    torch.testing.assert_close(targets.probabilities(3)[1], torch.tensor([0.0, 1.0, 0.0]))


def test_prefix_tokens_are_skipped_in_a_model_of_tokens() -> None:
    model = Tokens()
    moex = MomentExchange(model, "mix", channel_dim=-1, skip=1)
    seen: list[Tensor] = []
    model.mix.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    with moex(torch.arange(3), plan=Plan(rolled(3), 0.9, "mix")):
        model(TOKENS)
    plain = model.stem(TOKENS)
    assert same(seen[0][:, 0], plain[:, 0])
    assert differ([seen[0][:, 1:]], [plain[:, 1:]])


# --- what fires ------------------------------------------------------------------------------------------------------


class Skipping(Net):
    """Registers layer2 and does not call it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer1(self.stem(x)).mean((2, 3)))


class Twice(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer1(self.layer1(self.stem(x))).mean((2, 3)))


def test_a_layer_that_the_forward_never_calls_is_found_when_the_block_ends() -> None:
    model, at = net(Skipping), batch()
    moex = MomentExchange(model, "layer2", p=1.0)
    with pytest.raises(LayerDidNotFire, match=r"'layer2' did not fire.*labels would be mixed and the features not"):
        loss_in_block(model, moex, at)


def test_a_layer_that_one_pass_calls_twice_is_found_when_the_block_ends() -> None:
    model, at = net(Twice), batch()
    moex = MomentExchange(model, "layer1", p=1.0)
    with pytest.raises(LayerDidNotFire, match="'layer1' fired 2 times in one block"):
        loss_in_block(model, moex, at)
