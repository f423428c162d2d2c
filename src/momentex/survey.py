"""Look before you attach: where a model could exchange moments, and what would happen there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from momentex.attach import find_layer, unwrapped
from momentex.diagnostics import Strength
from momentex.errors import FeatureError
from momentex.exchange import How
from momentex.moex import MomentExchange
from momentex.targets import Targets

# The input of the first stage, which is what the paper's "first layer" means in every one of its experiments (Sec. 5.1:
# "right before the first stage"), under the names that model libraries give to it.
FIRST_STAGES = (
    "layer1",  # ResNet, ResNeXt, WideResNet
    "features.denseblock1",  # torchvision, timm: DenseNet
    "dense1",  # momentex: DenseNet of the CIFAR zoo
    "trunk_output.block1",  # torchvision: RegNet
    "stages.0",  # timm: ConvNeXt, …
    "stage1",
    "stage2",  # ShuffleNet: its first
    "s1",  # timm: RegNet
    "blocks.0",  # timm: ViT, EfficientNet
    "layers.0",  # timm: Swin
    "encoder.layers.encoder_layer_0",  # torchvision: ViT
    "encoder.layer.0",  # transformers: BERT, ViT
    "bert.encoder.layer.0",
    "vit.encoder.layer.0",
    "vit.layers.0",
    "features.1",  # torchvision: ConvNeXt, EfficientNet, MobileNet, Swin (of a VGG it is one layer, no stage)
)


@dataclass(frozen=True)
class Site:
    """A layer that a forward pass goes through: what it takes and returns, and how often it is called."""

    layer: str
    kind: str
    takes: str
    returns: str
    calls: int
    recommended: bool = False

    @property
    def notes(self) -> str:
        """What to know before choosing it."""
        called = f"called {self.calls} times: cannot be used" if self.calls > 1 else ""
        return ", ".join(filter(None, ["recommended" if self.recommended else "", called]))


class Sites(tuple[Site, ...]):
    """The sites of a model in the order in which a forward pass reaches them; prints as a table."""

    def __str__(self) -> str:
        rows = [("layer", "module", "input", "output", "")]
        rows += [(site.layer, site.kind, site.takes, site.returns, site.notes) for site in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    @property
    def recommended(self) -> Site | None:
        """The input of the first stage, if the model names its stages as libraries do."""
        return next((site for site in self if site.recommended), None)


def sites(model: nn.Module, example: Any) -> Sites:
    """Where could it be attached? Every layer that one forward pass of `example` reaches, with shapes.

    `example` is an input batch: a tensor, a tuple of positional or a dict of keyword arguments. The pass runs in
    evaluation mode without gradients, and leaves the model as it was.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    >>> [site.layer for site in sites(model, torch.zeros(2, 3, 8, 8))]
    ['0', '1', '2', '3']
    """
    model = unwrapped(model)
    reached: dict[str, list[tuple[str, str]]] = {}
    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(_announcer(name, reached)))
            handles.append(module.register_forward_hook(_recorder(name, reached), with_kwargs=True))
    try:
        with _undisturbed(model, training=False), torch.no_grad():
            _call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    modules = dict(model.named_modules())
    stages = (name for name in FIRST_STAGES if name in reached and any(modules[name].children()))
    first = next((name for name in stages if len(reached[name]) == 1), None)
    return Sites(
        Site(name, type(modules[name]).__name__, *reached[name][0], len(reached[name]), name == first)
        for name in reached
    )


@dataclass(frozen=True)
class Check:
    """What one dry step did. `fires` is true, or `check` would have raised."""

    layer: str
    features: tuple[int, ...]
    how: How
    strength: Strength | None
    loss_ready: str
    fires: bool = True

    def __str__(self) -> str:
        batch, channel = self.how.layout.batch_dim, self.how.layout.channel_dim
        lines = [
            f"layer {self.layer!r} fires once; features {self.features}: {self.features[batch]} samples along axis "
            f"{batch}, {self.features[channel]} channels along axis {channel}; moments over {self.how.over}"
        ]
        if self.strength is None:
            return lines[0] + "; nobody had a partner"
        s = self.strength
        lines.append(
            f"σ_B/σ_A: median {s.gain_median:.2f}, 5 % to 95 % {s.gain_q05:.2f} to {s.gain_q95:.2f}, largest "
            f"{s.gain_max:.1f}; constant groups {s.constant_groups:.1%}"
        )
        lines.append(f"targets: {self.loss_ready}")
        return "\n".join(lines)


def check(
    model: nn.Module,
    layer: str,
    x: Any,
    y: Tensor | Targets,
    *,
    mask: Tensor | None = None,
    batch: Tensor | None = None,
    **options: Any,
) -> Check:
    """One dry step: does the layer fire, how strong is the exchange, how many groups are constant?

    `options` are those of MomentExchange: over=, where=, select=, channel_dim=, … The model runs forward once in train
    mode and is then as it was: buffers, mode, random state. All errors of a real step come here first; a gain that
    explodes is warned about.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> check(model, "1", torch.randn(4, 3, 8, 8), torch.arange(4)).features
    (4, 8, 6, 6)
    """
    model = unwrapped(model)
    find_layer(model, layer)
    moex = MomentExchange(model, layer, **options)
    moex.p, moex.per, moex.pairing = 1.0, "batch", "derangement"  # everybody gets somebody else's
    try:
        with _undisturbed(model, training=True), torch.no_grad(), moex(y, mask=mask, batch=batch) as targets:
            _call(model, x)
        seen = moex._blocks.hooks[layer].seen
        if seen is None:
            raise FeatureError(f"a batch of {len(targets)} has nothing to exchange; check with two samples or more.")
        strength = None if seen.moments is None else Strength.of(seen.moments, seen.index, moex._how.eps)
    finally:
        moex.remove()
    if strength is not None and moex._how.moves.std:
        strength.warn_if_it_explodes(layer)
    return Check(layer, seen.features, moex._how, strength, repr(targets))


def _announcer(name: str, reached: dict[str, list[tuple[str, str]]]) -> Any:
    def announce(module: nn.Module, args: tuple[Any, ...]) -> None:
        reached.setdefault(name, [])  # the order of this dict is that in which the pass arrives

    return announce


def _recorder(name: str, reached: dict[str, list[tuple[str, str]]]) -> Any:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given: Any = args[0] if len(args) == 1 and not kwargs else (*args, *kwargs.values())
        reached[name].append((_shapes(given), _shapes(output)))

    return record


def _shapes(value: Any) -> str:
    if isinstance(value, Tensor):
        return re.sub(r"\s", "", str(tuple(value.shape)))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_shapes(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_shapes, value)) + "]"
    return type(value).__name__


def _call(model: nn.Module, example: Any) -> Any:
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


@contextmanager
def _undisturbed(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run `model` in this mode; afterwards modes, buffers and random state are as before."""
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        try:
            model.train(training)
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for module, name, buffer, before in buffers:
                    module._buffers[name] = buffer.copy_(before)
