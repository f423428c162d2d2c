"""Small models, batches and comparisons that the tests of attachment share."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from momentex import MomentExchange, Plan, Targets
from tests.compare import bits

CLASSES = 5


class Net(nn.Module):
    """A stem, two stages and a head, named as in a ResNet. With `batch_norm`, samples depend on each other."""

    def __init__(self, *, batch_norm: bool = True, width: int = 8) -> None:
        super().__init__()

        def stage() -> nn.Sequential:
            norm = nn.BatchNorm2d(width) if batch_norm else nn.Identity()
            return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), norm, nn.Tanh())

        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layer1 = stage()
        self.layer2 = stage()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class Checkpointed(Net):
    """The same net, with every stage and the head recomputed in backward."""

    def __init__(self, *, reentrant: bool, batch_norm: bool = True) -> None:
        super().__init__(batch_norm=batch_norm)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for segment in (self.layer1, self.layer2, self._pooled_head):
            h = checkpoint(segment, h, use_reentrant=self.reentrant)
        return h

    def _pooled_head(self, h: Tensor) -> Tensor:
        return self.head(h.mean((2, 3)))


class Tokens(nn.Module):
    """(batch, tokens, 3) to logits through a layer "mix" that any test may replace."""

    def __init__(self, mix: nn.Module | None = None) -> None:
        super().__init__()
        self.stem, self.mix, self.head = nn.Linear(3, 6), mix or nn.Identity(), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.stem(x)).mean(1))


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


def batch(size: int = 6, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, 6, 6, generator=generator)
    # Every sample has its own scale and offset, so that moments of different samples differ.
    x = x * torch.rand(size, 1, 1, 1, generator=generator).mul(2).add(0.5) + torch.randn(
        size, 1, 1, 1, generator=generator
    )
    return Batch(x, torch.randint(CLASSES, (size,), generator=generator))


def net(kind: type[nn.Module] = Net, /, seed: int = 0, **arguments: object) -> nn.Module:
    """A model whose weights depend on `seed` alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(**arguments)


def twin(model: nn.Module) -> nn.Module:
    """The same weights and buffers, untouched by whatever happens to `model` later. Take it before attaching."""
    return copy.deepcopy(model)


def rolled(size: int, by: int = 1) -> Tensor:
    """The partner is the next sample: nobody keeps itself."""
    return torch.arange(size).roll(by)


def plan(size: int = 6, layer: str = "layer1", lam: float = 0.8, by: int = 1) -> Plan:
    return Plan(rolled(size, by), lam, layer)


def off(size: int = 6, layer: str = "layer1") -> Plan:
    return Plan(torch.arange(size), 1.0, layer, on=False)


def loss_in_block(model: nn.Module, moex: MomentExchange, at: Batch, given: Plan | None = None) -> Tensor:
    with moex(at.y, plan=given) as targets:
        return targets.loss(F.cross_entropy, model(at.x))


def loss_by_hand(model: Net, at: Batch, given: Plan) -> Tensor:
    """What the block must compute, with the operator written into the forward pass of a plain model."""
    from momentex import exchange_moments

    h = model.stem(at.x)
    if given.on:
        h = exchange_moments(h, given.index)
    logits = model.head(model.layer2(model.layer1(h)).mean((2, 3)))
    targets = Targets(at.y).mixed_with(given.index, given.lam) if given.on else Targets(at.y)
    return targets.loss(F.cross_entropy, logits)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert found, "no parameter has a gradient"
    return found


def same(a: Tensor, b: Tensor) -> bool:
    """Bitwise equal: -0.0 and 0.0 differ, NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    """Parameters and buffers are bitwise equal, and have the same names."""
    left, right = a.state_dict(), b.state_dict()
    assert list(left) == list(right)
    different = [name for name in left if not same(left[name], right[name])]
    assert not different, f"these differ: {different}"


def assert_same_gradients(a: nn.Module, b: nn.Module, *, close: float = 1e-5) -> None:
    left, right = gradients(a), gradients(b)
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=close, atol=close, msg=lambda m, n=name: f"{n}: {m}")


def differ(a: Iterable[Tensor], b: Iterable[Tensor]) -> bool:
    """Some pair is far apart: the comparison that follows could have failed."""
    return any(not torch.allclose(s, t, rtol=1e-2, atol=1e-3) for s, t in zip(a, b, strict=True))


def clear_gradients(*models: nn.Module) -> None:
    for model in models:
        model.zero_grad(set_to_none=True)
