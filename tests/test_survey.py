"""`sites` and `check`: what they find, and that they leave the model as it was."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

from momentex import IN, MomentExchange, check, sites
from momentex.errors import AttachmentError, FeatureError, LayerDidNotFire, LayerNotFound, MomentexWarning, StepError
from tests.models import Net, Tokens, assert_same_state, batch, net, same, twin

# --- sites -----------------------------------------------------------------------------------------------------------


def test_sites_lists_every_layer_that_a_pass_reaches_with_shapes() -> None:
    found = sites(net(), batch(2).x)
    assert [site.layer for site in found] == [
        "stem", "layer1", "layer1.0", "layer1.1", "layer1.2", "layer2", "layer2.0", "layer2.1", "layer2.2", "head",
    ]  # fmt: skip
    first = found[1]
    assert (first.kind, first.takes, first.returns) == ("Sequential", "(2,8,6,6)", "(2,8,6,6)")
    assert all(site.calls == 1 for site in found)


def test_sites_prints_a_table_that_marks_the_recommended_layer() -> None:
    lines = str(sites(net(), batch(2).x)).splitlines()
    assert lines[0].split() == ["layer", "module", "input", "output"]
    assert lines[2].split() == ["layer1", "Sequential", "(2,8,6,6)", "(2,8,6,6)", "recommended"]
    assert len(lines) == 11


def test_sites_are_in_the_order_in_which_a_pass_reaches_them() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body, self.stem = nn.Linear(4, 2), nn.Linear(4, 4), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.stem(x)))

    assert [site.layer for site in sites(Backwards(), torch.ones(2, 3))] == ["stem", "body", "head"]


def vision(name: str) -> nn.Module:
    builders = {
        "vit_b_16": lambda: torchvision.models.VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=5),
        "densenet121": lambda: torchvision.models.DenseNet(4, (2, 2), 8, num_classes=5),
        "resnet18": lambda: torchvision.models.resnet18(num_classes=5),
        "swin": lambda: torchvision.models.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=5),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return builders[name]() if name in builders else getattr(torchvision.models, name)(num_classes=5)


RECOMMENDED = {
    "resnet18": "layer1",
    "densenet121": "features.denseblock1",
    "vit_b_16": "encoder.layers.encoder_layer_0",
    "mobilenet_v2": "features.1",
    "swin": "features.1",
    "vgg11_bn": None,  # no stages by name; features.1 is the BatchNorm after the first convolution
    "alexnet": None,  # features.1 is a ReLU
}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_the_recommended_layer_is_the_first_stage_of_models_that_name_it_and_none_of_others(name: str) -> None:
    size = 64 if name in ("alexnet", "vgg11_bn") else 32
    found = sites(vision(name), torch.zeros(1, 3, size, size))
    assert (found.recommended.layer if found.recommended else None) == RECOMMENDED[name]


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_the_recommended_layer_can_be_attached_to_and_fires(name: str) -> None:
    model, x = vision(name), torch.randn(4, 3, 64, 64)
    found = check(model, sites(model, x).recommended.layer, x, torch.arange(4))
    assert found.features[0] == 4


def test_a_vision_transformer_is_checked_with_its_class_token_skipped() -> None:
    model, x = vision("vit_b_16"), torch.randn(4, 3, 32, 32)
    found = check(model, sites(model, x).recommended.layer, x, torch.arange(4), channel_dim=-1, skip=1)
    assert found.features == (4, 5, 8)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer1 = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(self.layer1(self.stem(x)))


def test_a_shared_module_shows_its_calls_and_is_not_recommended() -> None:
    found = sites(Shared(), torch.ones(2, 3))
    assert [(site.layer, site.calls) for site in found] == [("stem", 1), ("layer1", 2)]
    assert found.recommended is None
    assert "called 2 times: cannot be used" in str(found)


def test_layers_that_a_pass_does_not_reach_are_not_listed() -> None:
    model = net()
    model.unused = nn.Linear(2, 2)
    assert "unused" not in [site.layer for site in sites(model, batch(2).x)]


def test_an_example_may_be_a_tuple_or_a_dict() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Bilinear(3, 4, 2)

        def forward(self, x: Tensor, *, z: Tensor | None = None) -> Tensor:
            return self.a(x, z)

    x, z = torch.ones(2, 3), torch.ones(2, 4)
    (site,) = sites(Two(), {"x": x, "z": z})
    assert site.takes == "[(2,3), (2,4)]"
    assert [s.layer for s in sites(net(), (batch(2).x,))] == [s.layer for s in sites(net(), batch(2).x)]


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


class Dropping(Net):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Counting(nn.Module):
    """Replaces its buffer instead of writing into it, in train mode and in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.inner(x)


def survey(what: str, model: nn.Module, x: Tensor) -> None:
    if what == "sites":
        sites(model, x)
    else:
        check(model, "layer1" if hasattr(model, "layer1") else "inner", x, torch.arange(len(x)))


@pytest.mark.parametrize("what", ["sites", "check"])
def test_a_survey_leaves_buffers_modes_gradients_random_state_and_hooks_as_they_were(what: str) -> None:
    model = net(Dropping)
    model.layer2.eval()
    plain, state, modes = twin(model), torch.get_rng_state(), [m.training for m in model.modules()]
    survey(what, model, batch().x)
    assert_same_state(model, plain)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks(model) == 0
    assert all(p.grad is None for p in model.parameters())
    assert same(model.eval()(batch().x), plain.eval()(batch().x))


@pytest.mark.parametrize("what", ["sites", "check"])
def test_a_survey_restores_buffers_that_a_module_replaces(what: str) -> None:
    model = Counting()
    survey(what, model, torch.randn(4, 3))
    assert model.passes.item() == 0.0


@pytest.mark.parametrize("what", ["sites", "check"])
def test_a_survey_that_fails_leaves_the_model_as_it_was_too(what: str) -> None:
    model = net(Dropping)
    model.head = nn.Linear(99, 2)
    plain, state = twin(model), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        survey(what, model, batch().x)
    assert_same_state(model, plain)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks(model) == 0


def test_a_survey_does_not_touch_an_object_that_is_attached_already() -> None:
    model = net()
    moex = MomentExchange(model, "layer1")
    sites(model, batch().x)
    check(model, "layer1", batch().x, batch().y)
    assert hooks(model) == 1
    assert moex.step == 0
    assert moex.diagnostics().steps == 0


def test_a_survey_refuses_a_compiled_model() -> None:
    compiled = torch.compile(net(), backend="eager")
    with pytest.raises(AttachmentError, match="compiled already"):
        sites(compiled, batch().x)
    with pytest.raises(AttachmentError, match="compiled already"):
        check(compiled, "layer1", batch().x, batch().y)


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_reports_the_features_and_the_strength_of_a_model_made_by_hand() -> None:
    """Two samples; all deviations of the second are four times those of the first."""
    model = nn.Sequential(nn.Identity(), nn.Flatten())
    x = torch.randn(1, 64, 3, 3) * torch.tensor([1.0, 4.0]).view(2, 1, 1, 1)
    found = check(model, "0", x, torch.tensor([0, 1]))
    assert found.features == (2, 64, 3, 3)
    assert found.strength.gain_max == pytest.approx(4.0, rel=1e-3)
    assert found.strength.gain_q05 == pytest.approx(0.25, rel=1e-3)
    assert found.strength.gain_median == pytest.approx(2.125, rel=1e-3)  # halfway from 1/4 to 4
    assert found.strength.constant_groups == 0.0
    assert found.fires


def test_check_prints_what_a_step_would_do() -> None:
    text = str(check(net(), "layer1", batch().x, batch().y))
    assert "layer 'layer1' fires once; features (6, 8, 6, 6)" in text
    assert "moments over PONO(groups=1, only=None)" in text
    assert "σ_B/σ_A: median" in text
    assert "targets: Targets(0.9 · torch.int64 (6,) + 0.1 · torch.int64 (6,))" in text


def test_check_counts_constant_groups_and_warns_when_the_gain_explodes() -> None:
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Identity())
    x = torch.randn(4, 8, 6, 6).abs() * torch.tensor([5.0, -5.0, 5.0, -5.0]).view(4, 1, 1, 1)
    x = x[[0, 1, 1, 0]]
    with pytest.warns(MomentexWarning, match=r"layer '2': 50\.0% of the groups are constant"):
        found = check(model, "2", x.roll(1, 0), torch.arange(4))
    assert found.strength.constant_groups == 0.5


def test_check_takes_the_place_the_moments_and_the_mask_of_a_real_step() -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[0, 1:] = False
    model, x = Tokens(), torch.randn(4, 5, 3)
    found = check(model, "mix", x, torch.arange(4), over=IN(), where="output", mask=mask, channel_dim=-1)
    assert found.features == (4, 5, 6)
    assert found.how.over == IN()
    assert found.how.layout.channel_dim == -1


def test_errors_of_a_real_step_come_in_the_check() -> None:
    at = batch()
    with pytest.raises(LayerNotFound, match=r"Did you mean 'layer2' or 'layer1'"):
        check(net(), "layer3", at.x, at.y)
    with pytest.raises(LayerDidNotFire, match="fired 2 times"):
        check(Shared(), "layer1", torch.ones(2, 3), torch.arange(2))
    with pytest.raises(StepError, match="sees a batch of 6"):
        check(net(), "layer1", at.x, at.y[:4])
    with pytest.raises(FeatureError, match="check with two samples or more"):
        check(net(batch_norm=False), "layer1", batch(1).x, batch(1).y)
