"""ShakeDrop and stochastic depth: the papers' formulas, torchvision's, and the models that carry them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.ops import stochastic_depth as torchvisions

from momentex.errors import OutOfRange, PairingError
from momentex.feature.branch import LinearDecay
from momentex.feature.shakedrop import ShakeDrop, shake_drop
from momentex.feature.stochastic_depth import StochasticDepth, stochastic_depth
from momentex.models.cifar.pyramidnet import pyramidnet
from momentex.models.cifar.resnet import resnet
from momentex.models.cifar.resnext import resnext
from momentex.models.cifar.wide_resnet import wide_resnet
from tests.models import assert_same_gradients, assert_same_state, differ, gradients, same

RESIDUAL: dict[str, Callable[..., nn.Module]] = {
    "resnet": lambda **a: resnet(8, width=8, **a),
    "resnext": lambda **a: resnext(11, 4, 4, **a),
    "wide_resnet": lambda **a: wide_resnet(10, 1, **a),
    "pyramidnet": lambda **a: pyramidnet(11, 12, **a),
}
residual = pytest.mark.parametrize("make", RESIDUAL.values(), ids=RESIDUAL)
METHODS = {"ShakeDrop": ShakeDrop, "StochasticDepth": StochasticDepth}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def features(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (6, 4, 3, 3), generator=torch.Generator().manual_seed(0)).to(dtype)


def passed(module: nn.Module, h: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What comes out of ones (as noise) and what their gradient is multiplied by."""
    torch.manual_seed(seed)
    h = h.clone().requires_grad_()
    out = module(h)
    out.sum().backward()
    return out.detach() / h.detach(), h.grad


# --- ShakeDrop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [0.0, 1.0])
def test_shake_drop_is_the_papers_formula_with_another_coefficient_backward(b: float) -> None:
    """(b + α − b α) h forward, and (b + β − b β) for its gradient; by hand, with the gradient written out."""
    h, up = features(dtype=torch.float64).requires_grad_(), features(dtype=torch.float64).cos()
    alpha, beta = (
        torch.rand(6, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2)
    )
    forward, backward = b + alpha - b * alpha, b + beta - b * beta
    out = shake_drop(h, forward, backward)
    (grad,) = torch.autograd.grad(out, h, up)
    torch.testing.assert_close(out, forward * h)
    torch.testing.assert_close(grad, backward * up)
    assert b == 1.0 or not torch.allclose(grad, forward * up)


@pytest.mark.parametrize("per", ["batch", "sample", "element"])
def test_the_module_draws_alpha_and_beta_from_their_ranges_at_its_level(per: str) -> None:
    forward, backward = passed(ShakeDrop(p=0.0, per=per), features())
    for noise, low in ((forward, -1.0), (backward, 0.0)):
        distinct = len(noise.flatten().mul(1e4).round().unique())
        assert {"batch": distinct == 1, "sample": distinct == 6, "element": distinct > 50}[per]
        assert low <= noise.min()
        assert noise.max() <= 1.0
    assert not torch.allclose(forward, backward)


def test_with_probability_p_the_block_stays_as_it_is_in_both_directions() -> None:
    module, h, whole = ShakeDrop(p=0.7), features(), 0
    for seed in range(300):
        forward, backward = passed(module, h, seed)
        stays = torch.equal(forward, torch.ones_like(forward))
        assert stays == torch.equal(backward, torch.ones_like(backward))
        whole += stays
    assert abs(whole / 300 - 0.7) < 0.08


@pytest.mark.parametrize(("alpha", "mean"), [((-1.0, 1.0), 0.6), ((0.0, 1.0), 0.8), ((0.0, 0.0), 0.6)], ids=str)
def test_in_evaluation_it_is_the_expectation_of_training(alpha: tuple[float, float], mean: float) -> None:
    module = ShakeDrop(p=0.6, alpha=alpha, per="element")
    torch.manual_seed(0)
    trained = torch.stack([module(torch.ones(500)).mean() for _ in range(1500)]).mean()
    evaluated = module.eval()(torch.ones(500))
    torch.testing.assert_close(evaluated, torch.full((500,), mean))
    assert abs(trained - mean) < 0.03


def test_alpha_zero_without_noise_backward_is_stochastic_depth() -> None:
    """α = β = 0: RandomDrop, the paper's name for it."""
    for seed in range(8):
        forward, backward = passed(ShakeDrop(p=0.5, alpha=(0, 0), beta=(0, 0)), features(), seed)
        assert forward.unique().tolist() in ([0.0], [1.0])
        assert torch.equal(forward, backward)


def test_it_works_under_torch_func_and_compilers() -> None:
    h = features(3, 5)
    forward, backward = torch.tensor(-0.5), torch.tensor(0.25)
    grad = torch.func.grad(lambda x: shake_drop(x, forward, backward).sum())(h)
    torch.testing.assert_close(grad, torch.full_like(h, 0.25))
    mapped = torch.vmap(lambda x: shake_drop(x, forward, backward))(h)
    torch.testing.assert_close(mapped, -0.5 * h)
    torch._dynamo.reset()
    module = ShakeDrop(p=0.0)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for a, b in zip(passed(compiled, features()), passed(module, features()), strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()


# --- stochastic depth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per", "mode"), [("batch", "batch"), ("sample", "row")])
def test_stochastic_depth_is_torchvisions_before_it_is_scaled(per: str, mode: str) -> None:
    """Theirs divides by the survival rate while training; the paper multiplies by it in evaluation."""
    h, p = features(), 0.6
    for seed in range(5):
        torch.manual_seed(seed)
        theirs = torchvisions(h, 1 - p, mode)
        torch.manual_seed(seed)
        torch.testing.assert_close(stochastic_depth(h, p, per), theirs * p)


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_branches_survive_with_probability_p_and_count_p_in_evaluation(per: str) -> None:
    module, h = StochasticDepth(p=0.7, per=per), torch.ones(20, 3)
    torch.manual_seed(0)
    alive = torch.stack([module(h)[:, 0] for _ in range(300)])
    assert set(alive.unique().tolist()) == {0.0, 1.0}
    assert abs(alive.mean() - 0.7) < 0.08
    assert (alive.std(dim=1).max() > 0) == (per == "sample")
    torch.testing.assert_close(module.eval()(h), 0.7 * h)


# --- on the branches of models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "last"), [(6, 0.5), (66, 0.5), (9, 0.0)])
def test_survival_decays_linearly_to_that_of_the_last_block(blocks: int, last: float) -> None:
    made = [LinearDecay(ShakeDrop, last)(block, blocks).p for block in range(blocks)]
    assert made == pytest.approx([1 - i / blocks * (1 - last) for i in range(1, blocks + 1)])
    assert made[-1] == pytest.approx(last)


@methods
@residual
def test_models_carry_it_without_other_parameters_keys_or_initial_weights(make: Callable, method: type) -> None:
    models = []
    for arguments in ({}, {"branch": LinearDecay(method)}):
        torch.manual_seed(0)
        models.append(make(**arguments))
    plain, carrying = models
    assert_same_state(plain, carrying)
    x = features(4, 3, 8, 8)
    carrying.train()
    assert any(not same(carrying(x), plain.train()(x)) for _ in range(20))
    surviving = make(branch=LinearDecay(method, last=1.0))
    surviving.load_state_dict(plain.state_dict())
    assert same(surviving(x), plain(x))


@methods
@pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])
def test_recomputed_stages_draw_the_same_noise(method: type, reentrant: bool) -> None:
    x, models = features(4, 3, 8, 8).requires_grad_(), []
    for recomputing in (False, True):
        torch.manual_seed(1)
        model = resnet(14, width=8, branch=LinearDecay(method, last=0.2))
        model.eval()  # running statistics would move a second time
        for module in model.modules():
            if isinstance(module, method):
                module.train()
        torch.manual_seed(2)
        h = model.bn1(model.conv1(x))
        for stage in (model.layer1, model.layer2, model.layer3):
            h = checkpoint(stage, h, use_reentrant=reentrant) if recomputing else stage(h)
        model.fc(h.mean((2, 3))).square().sum().backward()
        models.append(model)
    assert_same_gradients(*models, close=1e-6)
    torch.manual_seed(3)
    other = resnet(14, width=8, branch=LinearDecay(method, last=0.2))
    other.load_state_dict(models[0].state_dict())
    other(x).square().sum().backward()
    assert differ(gradients(other).values(), gradients(models[0]).values())


def test_the_random_state_of_torch_is_all_that_it_depends_on() -> None:
    model = resnet(8, width=8, branch=LinearDecay(partial(ShakeDrop, per="element")))
    x = features(4, 3, 8, 8)
    state = torch.get_rng_state()
    first = model(x)
    torch.set_rng_state(state)
    assert same(model(x), first)
    assert not same(model(x), first)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ShakeDrop(p=1.2), OutOfRange, "p is 1.2"),
        (lambda: ShakeDrop(alpha=(1.0, -1.0)), OutOfRange, r"alpha is \(1.0, -1.0\); it is a range \(low, high\)"),
        (lambda: ShakeDrop(per="sampel"), OutOfRange, "Did you mean 'sample'"),
        (lambda: StochasticDepth(p=-1.0), OutOfRange, "p is -1.0"),
        (lambda: StochasticDepth(per="element"), PairingError, "per is 'element'"),
        (lambda: LinearDecay(ShakeDrop, last=2.0), OutOfRange, "last is 2.0"),
    ],
)
def test_numbers_out_of_range_and_unknown_levels_are_refused(make: Callable, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        make()
