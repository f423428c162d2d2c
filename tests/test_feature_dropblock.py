"""DropBlock: its formula by hand, torchvision's on the same draws, and what being attached means."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torchvision.ops import drop_block2d

from momentex.errors import FeatureError, LayerNotFound, OutOfRange, StepError
from momentex.feature.dropblock import DropBlock, drop_block, start_probability, without_blocks
from tests.models import Net, assert_same_gradients, assert_same_state, batch, net, same, twin


def maps(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (3, 4, 9, 11), generator=torch.Generator().manual_seed(0)).to(dtype)


def dropped_by_hand(h: Tensor, starts: Tensor, size: int) -> Tensor:
    """Block by block, as the paper's algorithm writes it."""
    mask = torch.ones_like(h)
    for n, c, row, column in starts.nonzero().tolist():
        mask[n, c, row : row + size, column : column + size] = 0
    return h * mask * (mask.numel() / mask.sum())


# --- the operation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5], ids=lambda s: f"{s}x{s}")
def test_blocks_of_every_size_are_dropped_as_by_hand_in_values_and_gradients(size: int) -> None:
    ours, by_hand = (maps(dtype=torch.float64).requires_grad_() for _ in range(2))
    starts = torch.rand(3, 4, 10 - size, 12 - size, generator=torch.Generator().manual_seed(1)) < 0.1
    up = maps(dtype=torch.float64).cos()
    a, b = without_blocks(ours, starts, size), dropped_by_hand(by_hand, starts, size)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    a.backward(up)
    b.backward(up)
    torch.testing.assert_close(ours.grad, by_hand.grad, rtol=1e-6, atol=0)
    assert 0 < (a == 0).sum() < a.numel()


@pytest.mark.parametrize("size", [1, 3, 5])
def test_it_is_torchvisions_on_the_same_draws(size: int) -> None:
    """Theirs shifts blocks of even size, and then returns other shapes: odd ones can be compared."""
    h, p = maps(), 0.3
    gamma = start_probability(p, size, 9, 11)
    torch.manual_seed(3)
    theirs = drop_block2d(h, p, size)
    torch.manual_seed(3)
    starts = torch.empty(3, 4, 10 - size, 12 - size).bernoulli_(gamma).bool()
    torch.testing.assert_close(without_blocks(h, starts, size), theirs)


@pytest.mark.parametrize(("size", "p"), [(1, 0.3), (3, 0.1), (4, 0.1), (7, 0.05)])
def test_about_the_share_p_is_dropped_and_the_mean_stays(size: int, p: float) -> None:
    torch.manual_seed(0)
    h = torch.ones(64, 16, 32, 32)
    dropped = drop_block(h, p, size)
    # Blocks overlap: a position far from the edge is left with (1 − γ)^(s²).
    inner = (dropped[:, :, 8:-8, 8:-8] == 0).float().mean()
    expected = 1 - (1 - start_probability(p, size, 32, 32)) ** size**2
    assert abs(inner - expected) < 0.01
    torch.testing.assert_close(dropped.mean(), torch.tensor(1.0), rtol=1e-4, atol=0)


def test_nothing_dropped_is_nothing_changed_and_everything_dropped_is_zero() -> None:
    h = maps()
    assert same(drop_block(h, 0.0, 3), h)
    assert not drop_block(h, 1e9, 3).any()


def test_blocks_are_at_most_as_large_as_the_features() -> None:
    torch.manual_seed(0)
    h = torch.ones(200, 1, 2, 3)
    wholes = drop_block(h, 0.2, 7)  # 2 × 2: one of two places
    assert {int((image == 0).sum()) for image in wholes} <= {0, 4, 6}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dtype_and_memory_format_are_kept(dtype: torch.dtype) -> None:
    h = maps(2, 8, 6, 6).to(dtype).to(memory_format=torch.channels_last)
    dropped = drop_block(h, 0.2, 3)
    assert dropped.dtype == dtype
    assert dropped.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("h", [torch.ones(2, 3), torch.ones(2, 3, 4, 4, dtype=torch.int64)], ids=["rows", "integers"])
def test_features_that_are_no_maps_are_refused(h: Tensor) -> None:
    with pytest.raises(FeatureError, match="DropBlock needs floating-point maps"):
        drop_block(h, 0.1)


# --- attached --------------------------------------------------------------------------------------------------------


def attached(p: float = 0.3, **arguments: object) -> tuple[Net, DropBlock]:
    model = net(batch_norm=False)
    return model, DropBlock(model, ("layer1", "layer2"), p=p, block_size=2, **arguments)


def test_it_acts_on_the_outputs_of_its_layers() -> None:
    (model, _), plain, x = attached(), net(batch_norm=False), batch().x
    torch.manual_seed(5)
    ours = model(x)
    torch.manual_seed(5)
    h = drop_block(plain.layer1(plain.stem(x)), 0.3, 2)
    h = drop_block(plain.layer2(h), 0.3, 2)
    torch.testing.assert_close(ours, plain.head(h.mean((2, 3))))
    assert not torch.allclose(ours, plain(x))


def test_evaluation_removal_and_state_are_plain() -> None:
    (model, dropping), plain, x = attached(), net(batch_norm=False), batch().x
    assert_same_state(model, plain)
    assert same(model.eval()(x), plain(x))
    model.train()
    model.layer2.eval()
    torch.manual_seed(1)
    assert not same(model(x), plain(x))
    model.layer1.eval()
    assert same(model(x), plain(x))
    model.train()
    dropping.remove()
    assert same(model(x), plain(x))
    assert dropping.layers == ()
    with pytest.raises(StepError, match="was removed from its model"):
        dropping.at(0.5)


def test_the_share_rises_linearly_with_the_progress() -> None:
    model, dropping = attached(p=0.4)
    assert dropping.now == pytest.approx(0.4)
    seen = []
    for progress in (0.0, 0.25, 1.0):
        dropping.at(progress)
        seen.append(dropping.now)
    assert seen == pytest.approx([0.0, 0.1, 0.4])
    dropping.at(0.0)
    assert same(model(batch().x), net(batch_norm=False)(batch().x))
    with pytest.raises(OutOfRange, match=r"progress is 1\.5"):
        dropping.at(1.5)


@pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])
def test_recomputation_drops_the_same_blocks(reentrant: bool) -> None:
    (model, _), (again, _), x = attached(), attached(), batch().x
    for which in (model, again):
        torch.manual_seed(2)
        h = which.stem(x)
        for layer in (which.layer1, which.layer2):
            h = checkpoint(layer, h, use_reentrant=reentrant) if which is again else layer(h)
        which.head(h.mean((2, 3))).square().sum().backward()
    assert_same_gradients(model, again)


def test_a_compiled_model_is_one_graph_whatever_the_progress() -> None:
    torch._dynamo.reset()
    model, dropping = attached()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for progress in (0.0, 0.1, 0.5, 1.0):
        dropping.at(progress)
        compiled(batch().x).sum().backward()
    assert counter.frame_count == 1
    dropping.at(0.0)
    torch.testing.assert_close(compiled(batch().x), net(batch_norm=False)(batch().x))
    torch._dynamo.reset()


def test_copies_drop_on_their_own() -> None:
    model, dropping = attached()
    copied = copy.deepcopy(model)
    dropping.at(0.0)
    torch.manual_seed(0)
    assert not same(copied(batch().x), model(batch().x))
    assert same(copied.eval()(batch().x), model(batch().x))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"layers": ("layer1", "layr2")}, LayerNotFound, "Did you mean 'layer2'"),
        ({"layers": ()}, LayerNotFound, "name one layer"),
        ({"layers": "layer1", "p": -0.1}, OutOfRange, "p is -0.1"),
        ({"layers": "layer1", "block_size": 0}, OutOfRange, "block_size is 0; it is the side of a square"),
    ],
    ids=["layer", "no layer", "p", "size"],
)
def test_arguments_that_cannot_be_are_refused_and_leave_the_model_alone(
    arguments: dict, error: type, text: str
) -> None:
    model = net()
    before = twin(model)
    with pytest.raises(error, match=text):
        DropBlock(model, **arguments)
    assert not any(module._forward_hooks for module in model.modules())
    assert_same_state(model, before)


def test_a_layer_that_returns_no_maps_is_an_error_that_names_it() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    model = nn.Sequential(Two())
    DropBlock(model, "0")
    with pytest.raises(FeatureError, match=re.escape("layer '0' returns a tuple, and DropBlock needs a tensor")):
        model(torch.ones(1, 1, 4, 4))
    model = net()
    DropBlock(model, "head")
    with pytest.raises(FeatureError, match=r"features are torch.float32 \(6, 5\)"):
        F.cross_entropy(model(batch().x), batch().y)
