"""The CIFAR zoo: sizes, shapes and initial weights of the cited sources, and torchvision where it has the block."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from torch import Tensor, nn

from momentex.errors import OutOfRange
from momentex.models import cifar
from momentex.models.cifar import FAMILIES, ZOO
from momentex.models.cifar.densenet import DenseBlock, Transition, densenet_bc
from momentex.models.cifar.pyramidnet import channels_of_blocks, pyramidnet
from momentex.models.cifar.resnet import BasicBlock, resnet
from momentex.models.cifar.resnext import Bottleneck, resnext
from momentex.models.cifar.stages import branches, nothing_on_the_branch, pooled, stage
from momentex.models.cifar.wide_resnet import PreActivationBlock, wide_resnet
from tests.models import assert_same_gradients, assert_same_state, same, twin

SMALL: dict[str, Callable[..., nn.Module]] = {  # one of each family, of two blocks a stage where that is quick
    "resnet": lambda **arguments: resnet(14, width=8, **arguments),
    "densenet_bc": lambda **arguments: densenet_bc(16, 6, **arguments),
    "densenet_bc, recomputed": lambda **arguments: densenet_bc(16, 6, use_checkpoint=True, **arguments),
    "resnext": lambda **arguments: resnext(11, 4, 4, **arguments),
    "wide_resnet": lambda **arguments: wide_resnet(16, 1, **arguments),
    "pyramidnet": lambda **arguments: pyramidnet(20, 12, **arguments),
    "pyramidnet of basic blocks": lambda **arguments: pyramidnet(14, 12, bottleneck=False, **arguments),
}
small = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
each = pytest.mark.parametrize("name", ZOO)


def on_meta(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return getattr(cifar, name)(**arguments)


def images(size: int = 4, side: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(size, channels, side, side, generator=torch.Generator().manual_seed(1))


def stirred(model: nn.Module) -> nn.Module:
    """The model with BatchNorm weights, biases and statistics that differ from one another."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point():
            with torch.no_grad():
                tensor.add_(0.3 * torch.rand_like(tensor)) if "mean" in name else tensor.mul_(0.5).add_(
                    torch.rand_like(tensor)
                )
    return model


def backward(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    output.float().square().mean().backward()
    return output.detach()


# --- what the paper and its sources say of each model ----------------------------------------------------------------


@each
@pytest.mark.parametrize("classes", [10, 100])
def test_each_model_has_exactly_the_parameters_of_its_source(name: str, classes: int) -> None:
    count = sum(p.numel() for p in on_meta(name, num_classes=classes).parameters())
    assert count == {10: ZOO[name].parameters_10, 100: ZOO[name].parameters_100}[classes]


@each
def test_the_papers_column_is_the_number_of_parameters_with_ten_classes(name: str) -> None:
    if ZOO[name].paper is None:
        assert name in ("resnet20", "resnet56")  # which no table of the paper has
    else:
        assert ZOO[name].paper == f"{ZOO[name].parameters_10 / 1e6:.1f}M"


STAGES = {  # (channels, side) of what each stage returns for 32 × 32
    "resnet20": {"layer1": (16, 32), "layer2": (32, 16), "layer3": (64, 8)},
    "resnet56": {"layer1": (16, 32), "layer2": (32, 16), "layer3": (64, 8)},
    "resnet110": {"layer1": (16, 32), "layer2": (32, 16), "layer3": (64, 8)},
    "densenet_bc_100": {
        "dense1": (216, 32),
        "transition1": (108, 16),
        "dense2": (300, 16),
        "transition2": (150, 8),
        "dense3": (342, 8),
    },
    "densenet_bc_190": {
        "dense1": (1320, 32),
        "transition1": (660, 16),
        "dense2": (1900, 16),
        "transition2": (950, 8),
        "dense3": (2190, 8),
    },
    "resnext29_8x64d": {"layer1": (256, 32), "layer2": (512, 16), "layer3": (1024, 8)},
    "wrn_28_10": {"layer1": (160, 32), "layer2": (320, 16), "layer3": (640, 8)},
    "pyramidnet_200": {"layer1": (384, 32), "layer2": (704, 16), "layer3": (1024, 8)},
}


@each
def test_each_stage_is_a_child_and_returns_the_channels_and_positions_of_its_source(name: str) -> None:
    model, seen = on_meta(name), {}
    for child, module in model.named_children():
        module.register_forward_hook(lambda _, __, out, child=child: seen.update({child: tuple(out.shape)}))
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    wanted = {child: (2, channels, side, side) for child, (channels, side) in STAGES[name].items()}
    assert {child: shape for child, shape in seen.items() if child in wanted} == wanted
    assert seen["fc"] == (2, 10)


BLOCKS = {  # in each of the three stages
    "resnet20": 3,
    "resnet56": 9,
    "resnet110": 18,
    "densenet_bc_100": 16,
    "densenet_bc_190": 31,
    "resnext29_8x64d": 3,
    "wrn_28_10": 4,
    "pyramidnet_200": 22,
}


@each
def test_each_stage_has_as_many_blocks_as_the_name_says(name: str) -> None:
    model = on_meta(name)
    stages = [module for child, module in model.named_children() if child.startswith(("layer", "dense"))]
    assert [len(module.layers if isinstance(module, DenseBlock) else module) for module in stages] == [BLOCKS[name]] * 3


@each
def test_the_site_is_a_child_that_one_forward_pass_reaches_once_with_the_stems_channels(name: str) -> None:
    model, inputs = on_meta(name), []
    assert ZOO[name].site in dict(model.named_children())
    model.get_submodule(ZOO[name].site).register_forward_pre_hook(lambda _, args: inputs.append(args))
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    stem = {"densenet_bc_100": 24, "densenet_bc_190": 80, "resnext29_8x64d": 64}.get(name, 16)
    assert [tuple(t.shape for t in args) for args in inputs] == [((2, stem, 32, 32),)]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_stands_at_the_site_is_what_is_recorded(name: str) -> None:
    model, seen = SMALL[name]().train(), {}
    model.get_submodule(FAMILIES[name].site).register_forward_pre_hook(lambda _, args: seen.update(h=args[0]))
    model(images())
    h, bare = seen["h"], model.conv1(images())
    norm = F.batch_norm(bare, None, None, training=True)
    there = {
        "after conv, BN and ReLU": norm.relu(),
        "a bare convolution, no BN and no ReLU": bare,
        "after conv and BN, no ReLU": norm,
    }
    assert [text for text, value in there.items() if torch.allclose(h, value, atol=1e-5)] == [FAMILIES[name].there]


def test_every_entry_is_found_under_its_name_and_every_family_has_one() -> None:
    assert all(name == entry.builder and entry.family in FAMILIES.values() for name, entry in ZOO.items())
    assert {entry.family.builder for entry in ZOO.values()} == set(FAMILIES)
    assert all(cifar.__dict__.get(name) or getattr(cifar, name).__name__ == name for name in cifar.__all__)
    assert set(cifar.__all__) <= set(dir(cifar))


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'resnet32'; it has .*resnet20, resnet56, resnet110"):
        cifar.resnet32  # noqa: B018


# --- initial weights -------------------------------------------------------------------------------------------------


@small
def test_every_convolution_starts_normal_with_variance_two_over_its_outputs(make: Callable[..., nn.Module]) -> None:
    convolutions = [m for m in make().modules() if isinstance(m, nn.Conv2d)]
    standard = [
        m.weight.detach().flatten() / math.sqrt(2 / (m.kernel_size[0] ** 2 * m.out_channels)) for m in convolutions
    ]
    for w in standard:
        assert abs(w.std().item() - 1) < 5 / math.sqrt(2 * len(w))
    w = torch.cat(standard)
    assert abs(w.mean().item()) < 5 / math.sqrt(len(w))
    assert w.pow(4).mean().item() == pytest.approx(3, abs=5 * math.sqrt(96 / len(w)))  # a uniform one has 1.8


@small
def test_every_batch_norm_starts_at_one_and_zero(make: Callable[..., nn.Module]) -> None:
    norms = [m for m in make().modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all(bool((m.weight == 1).all()) and bool((m.bias == 0).all()) for m in norms)
    assert all(m.eps == 1e-5 and m.momentum == 0.1 for m in norms)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_classifier_starts_as_in_the_source(name: str) -> None:
    """ResNeXt: N(0, 2 / in) and no bias; WRN: torch's uniform weights and no bias; the others as torch makes them."""
    fc = SMALL[name](num_classes=1000).fc
    bound = 1 / math.sqrt(fc.in_features)
    if name == "resnext":
        assert fc.weight.std().item() == pytest.approx(bound * math.sqrt(2), rel=0.01)
    else:
        assert fc.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert fc.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert bool((fc.bias == 0).all()) == (name in ("resnext", "wide_resnet"))
    assert fc.bias.abs().max().item() <= bound


# --- twins -----------------------------------------------------------------------------------------------------------


def assert_twins(ours: nn.Module, theirs: nn.Module, x: Tensor, rename: dict[str, str]) -> None:
    """Equal outputs in both modes, gradients and statistics, once theirs has our weights under its own names."""
    renamed = {}
    for key, value in stirred(ours).state_dict().items():
        for old, new in rename.items():
            key = key.replace(old, new)
        renamed[key] = value
    theirs.load_state_dict(renamed, strict=True)
    for mode in (False, True):
        torch.testing.assert_close(ours.train(mode)(x), theirs.train(mode)(x))
    backward(ours, x), backward(theirs, x)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_stage_of_basic_blocks_is_torchvisions() -> None:
    downsample = nn.Sequential(nn.Conv2d(6, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
    theirs = nn.Sequential(tv.resnet.BasicBlock(6, 12, 2, downsample), tv.resnet.BasicBlock(12, 12))
    assert_twins(
        stage(BasicBlock, 6, 12, 2, 2, branches(nothing_on_the_branch, 2)),
        theirs,
        images(4, 8, 6),
        {"shortcut": "downsample"},
    )


@pytest.mark.parametrize(("out_channels", "planes"), [(256, 64), (512, 128)])
def test_a_bottleneck_in_groups_is_torchvisions(out_channels: int, planes: int) -> None:
    downsample = nn.Sequential(nn.Conv2d(32, out_channels, 1, 2, bias=False), nn.BatchNorm2d(out_channels))
    theirs = tv.resnet.Bottleneck(32, planes, 2, downsample, groups=4, base_width=16)
    ours = Bottleneck(32, out_channels, 2, nn.Identity(), cardinality=4, width=16)
    assert_twins(ours, theirs, images(3, 6, 32), {"shortcut": "downsample"})


@pytest.mark.parametrize("use_checkpoint", [False, True])
def test_a_dense_block_and_its_transition_are_torchvisions(use_checkpoint: bool) -> None:
    ours = nn.Sequential(DenseBlock(8, 4, 3, use_checkpoint), Transition(20))
    theirs = nn.Sequential(tv.densenet._DenseBlock(3, 8, bn_size=4, growth_rate=4, drop_rate=0.0), None)
    theirs[1] = tv.densenet._Transition(20, 10)
    rename = {f"layers.{i}.": f"denselayer{i + 1}." for i in range(3)} | {"bn": "norm"}
    assert_twins(ours, theirs, images(4, 8, 8), rename)


def normed(norm: nn.BatchNorm2d, h: Tensor) -> Tensor:
    return F.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias)


@pytest.mark.parametrize(("out_channels", "stride"), [(6, 1), (12, 2)])
def test_a_wide_block_is_what_it_is_by_hand(out_channels: int, stride: int) -> None:
    block, x = stirred(PreActivationBlock(6, out_channels, stride, nn.Identity(), dropout=0.3)).eval(), images(4, 8, 6)
    first = normed(block.bn1, x).relu()
    h = F.conv2d(first, block.conv1.weight, stride=stride, padding=1)
    h = F.conv2d(normed(block.bn2, h).relu(), block.conv2.weight, padding=1)
    around = x if stride == 1 else F.conv2d(first, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(x), h + around)


@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("bottleneck", [True, False])
def test_a_pyramidal_block_is_what_it_is_by_hand(bottleneck: bool, side: int) -> None:
    """The first block of the second stage: half of the positions, and more channels than come in."""
    model = pyramidnet(20 if bottleneck else 14, 12, bottleneck=bottleneck)
    block = stirred(model.layer2[0]).eval()
    x = images(4, side, block.bn1.num_features)
    h = F.conv2d(
        normed(block.bn1, x), block.conv1.weight, padding=0 if bottleneck else 1, stride=1 if bottleneck else 2
    )
    h = F.conv2d(normed(block.bn2, h).relu(), block.conv2.weight, padding=1, stride=2 if bottleneck else 1)
    if bottleneck:
        h = F.conv2d(normed(block.bn3, h).relu(), block.conv3.weight)
    h = normed(block.bn4 if bottleneck else block.bn3, h)
    around = F.avg_pool2d(x, 2, ceil_mode=True)
    h[:, : x.shape[1]] += around
    assert h.shape[1] > x.shape[1]
    torch.testing.assert_close(block(x), h)


def test_pyramidal_channels_grow_in_equal_steps_and_end_at_what_is_asked_for() -> None:
    channels = channels_of_blocks(66, 240)
    assert channels == [round(16 + 40 * (i + 1) / 11) for i in range(66)]
    assert channels[-1] == 16 + 240


def test_pooling_of_eight_by_eight_is_the_sources_pool() -> None:
    h = images(3, 8, 5)
    torch.testing.assert_close(pooled(h), F.avg_pool2d(h, 8).flatten(1))


# --- running them ----------------------------------------------------------------------------------------------------


@small
def test_every_parameter_learns_and_other_sizes_and_channels_are_taken(make: Callable[..., nn.Module]) -> None:
    model = make(num_classes=7, in_channels=1)
    assert backward(model, images(4, 8, 1)).shape == (4, 7)
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        assert bool(p.grad.any()), name
    assert model(images(2, 19, 1)).shape == (2, 7)


@small
def test_bfloat16_autocast_runs_forward_and_backward(make: Callable[..., nn.Module]) -> None:
    model = make()
    reference = twin(model)
    with torch.autocast("cpu", torch.bfloat16):
        output = backward(model, images())
    assert output.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 and bool(p.grad.isfinite().all()) for p in model.parameters())
    # Some forty roundings of 2⁻⁹ on the way: near, and not the same.
    distance = (output - reference(images())).square().mean().sqrt() / output.float().square().mean().sqrt()
    assert 0 < distance < 0.1


@small
def test_channels_last_changes_no_value_and_is_kept(make: Callable[..., nn.Module]) -> None:
    model, formats = make().eval(), []
    wanted = model(images())
    model.to(memory_format=torch.channels_last)
    last = [child for child, _ in model.named_children() if child in ("layer3", "dense3")]
    model.get_submodule(last[0]).register_forward_hook(
        lambda _, __, out: formats.append(out.is_contiguous(memory_format=torch.channels_last))
    )
    output = model(images().to(memory_format=torch.channels_last))
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)
    assert formats == [True]


@small
def test_a_compiled_model_is_one_graph_and_the_eager_model(make: Callable[..., nn.Module]) -> None:
    model = make(num_classes=5)
    reference, compiled = twin(model), torch.compile(model, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(backward(compiled, images()), backward(reference, images()))
    assert_same_gradients(model, reference)
    assert_same_state(model, reference)
    torch.compiler.reset()


def test_dropout_is_off_unless_asked_for_and_stands_on_the_branch() -> None:
    model = wide_resnet(10, 1).train()
    assert same(model(images()), model(images()))
    dropping = wide_resnet(10, 1, dropout=0.3).train()
    assert not same(dropping(images()), dropping(images()))
    block, x = PreActivationBlock(6, 6, 1, nn.Identity(), dropout=1.0).train(), images(4, 8, 6)
    assert same(block(x), x)


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        return h * self.factor


RESIDUAL = {name: make for name, make in SMALL.items() if "densenet" not in name}
residual = pytest.mark.parametrize("make", RESIDUAL.values(), ids=RESIDUAL)


@residual
def test_what_is_put_on_the_branches_acts_on_them_and_knows_its_depth(make: Callable[..., nn.Module]) -> None:
    made: list[tuple[int, int]] = []
    nothing = make(branch=lambda block, blocks: made.append((block, blocks)) or Times(0.0))
    assert made == [(i, len(made)) for i in range(len(made))]
    assert len(made) == sum(len(stage) for stage in (nothing.layer1, nothing.layer2, nothing.layer3))
    backward(nothing.train(), images())
    inside = {name: p for name, p in nothing.named_parameters() if ".conv" in name and name.startswith("layer")}
    assert inside
    assert not any(p.grad.any() for p in inside.values())


@residual
def test_a_branch_that_changes_nothing_leaves_the_model_as_it_is(make: Callable[..., nn.Module]) -> None:
    plain, once = make(), make(branch=lambda block, blocks: Times(1.0))
    assert list(once.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(once.state_dict())
    assert same(backward(once, images()), backward(plain, images()))
    assert_same_gradients(once, plain, close=0.0)


def test_what_is_added_to_nothing_is_the_shortcut() -> None:
    model, x = pyramidnet(20, 12, branch=lambda block, blocks: Times(0.0)), images(2, 8, 16)
    assert same(model.layer1[0](x), F.pad(x, (0, 0, 0, 0, 0, 72 - 16)))


# --- recomputation ---------------------------------------------------------------------------------------------------


def recomputing(model: nn.Module) -> nn.Module:
    """The same DenseNet, which recomputes."""
    again = copy.deepcopy(model)
    for block in (again.dense1, again.dense2, again.dense3):
        block.use_checkpoint = True
    return again


def test_a_recomputing_densenet_is_the_plain_one_bit_for_bit_and_counts_each_step_once() -> None:
    plain = stirred(densenet_bc(16, 6))
    again = recomputing(plain)
    for step in range(3):
        assert same(backward(plain, images()), backward(again, images()))
        assert_same_state(again, plain)
        assert again.dense2.layers[1].bn1.num_batches_tracked == step + 1
        assert all(same(a.grad, b.grad) for a, b in zip(again.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_recomputing_is_the_same_when_compiled(backend: str) -> None:
    plain = densenet_bc(10, 4)
    again = recomputing(plain)
    compiled = torch.compile(again, fullgraph=True, backend=backend)
    for _ in range(2):
        backward(plain, images(side=8)), backward(compiled, images(side=8))
    assert_same_gradients(again, plain)
    assert_same_state(again, plain)
    torch.compiler.reset()


def test_backward_twice_moves_no_statistics() -> None:
    model = densenet_bc(10, 4, use_checkpoint=True)
    loss = model(images(side=8)).square().mean()
    before = copy.deepcopy(model.state_dict())
    loss.backward(retain_graph=True)
    loss.backward()
    assert all(same(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_are_gathered_without_gradients_as_in_the_plain_model(momentum: float | None) -> None:
    plain = densenet_bc(10, 4)
    for norm in plain.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = momentum
    again = recomputing(plain)
    for model in (plain, again):
        with torch.no_grad():
            model(images(side=8))
        model(images(side=12)).square().mean().backward()
    assert_same_state(again, plain)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_evaluation_of_a_recomputing_model_changes_nothing(context: Callable[[], object]) -> None:
    plain = stirred(densenet_bc(10, 4)).eval()
    again = recomputing(plain)
    with context():
        assert same(again(images(side=8)), plain(images(side=8)))
    assert_same_state(again, plain)


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """What a forward pass keeps for backward, each storage once."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(x)
    assert output.requires_grad
    return sum(kept.values())


def test_recomputing_keeps_less_for_backward() -> None:
    plain = densenet_bc(40, 6)
    assert saved_bytes(recomputing(plain), images()) < saved_bytes(plain, images()) / 4


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resnet(21), r"depth is 21; three stages of n blocks make 6n \+ 2 layers .* Near it are 20 and 26\.$"),
        (lambda: resnet(2), r"depth is 2; .*, with n a whole number from 1 on\. Near it are 8 and 14\.$"),
        (lambda: resnet("20"), r"depth is '20'; .*, with n a whole number from 1 on\.$"),
        (lambda: densenet_bc(101, 12), r"depth is 101; .*6n \+ 4 layers of a densenet_bc.*100 and 106\.$"),
        (lambda: resnext(30, 8), r"depth is 30; .*9n \+ 2 layers of a resnext.*29 and 38\.$"),
        (lambda: wide_resnet(26, 10), r"depth is 26; .*6n \+ 4 layers of a wide_resnet.*22 and 28\.$"),
        (lambda: pyramidnet(110, 48, bottleneck=False, num_classes=0), r"^num_classes is 0; it must be a whole number"),
        (lambda: pyramidnet(111, 48), r"depth is 111; .*9n \+ 2 layers of a pyramidnet.*110 and 119\.$"),
        (lambda: pyramidnet(20, -1), r"^alpha is -1; it is how many channels are added in all, 0 or more\.$"),
        (lambda: wide_resnet(10, 1, dropout=1.5), r"^dropout is 1\.5; it must be a number between 0 and 1\.$"),
        (lambda: resnet(8, in_channels=0), r"^in_channels is 0; it must be a whole number from 1 on\.$"),
        (lambda: resnet(8, width=1.5), r"^width is 1\.5; it must be a whole number from 1 on\.$"),
        (lambda: resnext(11, 0), r"^cardinality is 0; it must be a whole number from 1 on\.$"),
        (lambda: densenet_bc(10, 0), r"^growth_rate is 0; it must be a whole number from 1 on\.$"),
        (lambda: wide_resnet(10, 0), r"^widen is 0; it must be a whole number from 1 on\.$"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(OutOfRange, match=message):
        make()
