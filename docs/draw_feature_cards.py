"""Draws the pictures of the cards of methods on features, docs/cards/<method>.png: `python -m docs.draw_feature_cards`.

Everything in them is computed by momentex: maps on the two photographs of `draw_idea.py`, and the factors of the
branches of a network with twenty blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from docs.draw_idea import CARD, GREY, INK, MUTED, A, B, features, photographs
from momentex import Targets
from momentex.feature.branch import LinearDecay
from momentex.feature.dropblock import drop_block
from momentex.feature.manifold_mixup import manifold_mixup
from momentex.feature.shakedrop import ShakeDrop
from momentex.feature.stochastic_depth import StochasticDepth

CHANNEL, BLOCKS, STEPS = 17, 20, 40


def panels(count: int, width: float) -> tuple[Figure, list[Axes]]:
    """A light ground of its own, so that the picture can be read on a dark page too."""
    figure, axes = plt.subplots(1, count, figsize=(width, 2.6), dpi=80, facecolor=CARD, squeeze=False)
    for ax in axes[0]:
        ax.set(xticks=[], yticks=[])
    return figure, list(axes[0])


def show(ax: Axes, image: Tensor, title: str, colour: str) -> None:
    """One map, brightened as in the picture of the idea."""
    ax.imshow(image.clamp(min=0).sqrt().numpy(), cmap=GREY)
    ax.set_title(title, color=colour, fontsize=11)


def draw_manifold_mixup() -> Figure:
    """λ = 0.7, and the target beside it."""
    h = features(photographs())
    mixed = manifold_mixup(h, torch.tensor([1, 0]), 0.7)
    figure, (a, b, both, target) = panels(4, 9.0)
    show(a, h[0, CHANNEL], "a channel of $h_A$", A)
    show(b, h[1, CHANNEL], "the same of $h_B$", B)
    show(both, mixed[0, CHANNEL], "0.7 $h_A$ + 0.3 $h_B$", INK)
    weights = Targets(torch.tensor([0, 1])).mixed_with(torch.tensor([1, 0]), 0.7).probabilities(2)[0]
    target.bar(["A", "B"], weights.tolist(), color=[A, B], width=0.6)
    target.set(ylim=(0, 1), xticks=[0, 1], facecolor=CARD)
    target.set_title("target", color=MUTED, fontsize=11)
    target.spines[:].set_visible(False)
    return figure


def draw_dropblock() -> Figure:
    """Blocks of 16 on maps of 112."""
    h = features(photographs())[:1]
    figure, axes = panels(3, 7.0)
    torch.manual_seed(4)
    dropped = drop_block(h, 0.15, block_size=16)
    show(axes[0], h[0, CHANNEL], "a channel of $h$", INK)
    for ax, channel in zip(axes[1:], (CHANNEL, CHANNEL + 1), strict=True):
        show(ax, dropped[0, channel], "dropped" if channel == CHANNEL else "another channel, dropped", INK)
    return figure


def factors(make: Callable[[float], nn.Module]) -> tuple[Tensor, Tensor]:
    """By what the branch of each block, and its gradient, are multiplied in each step: (blocks, steps)."""
    torch.manual_seed(0)
    decay, forward, backward = LinearDecay(make), torch.zeros(BLOCKS, STEPS), torch.zeros(BLOCKS, STEPS)
    for block in range(BLOCKS):
        module = decay(block, BLOCKS)
        for step in range(STEPS):
            h = torch.ones(1, 1, requires_grad=True)
            out = module(h)
            out.backward(torch.ones(1, 1))
            assert h.grad is not None
            forward[block, step], backward[block, step] = out.item(), h.grad.item()
    return forward, backward


def show_factors(ax: Axes, image: Tensor, title: str) -> None:
    ax.imshow(image.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", origin="lower", interpolation="nearest")
    ax.set_title(title, color=INK, fontsize=11)
    ax.set_xlabel("step", color=MUTED)
    ax.set_ylabel("block", color=MUTED)


def draw_shakedrop() -> Figure:
    """Both directions."""
    forward, backward = factors(ShakeDrop)
    figure, (left, right) = panels(2, 9.0)
    show_factors(left, forward, "forward: 1 is blue, −1 is red")
    show_factors(right, backward, "backward")
    return figure


def draw_stochastic_depth() -> Figure:
    """There or not."""
    figure, (ax,) = panels(1, 5.0)
    show_factors(ax, factors(StochasticDepth)[0], "branches that are there, in blue")
    return figure


CARDS: dict[str, Callable[[], Figure]] = {
    "manifold_mixup": draw_manifold_mixup,
    "dropblock": draw_dropblock,
    "shakedrop": draw_shakedrop,
    "stochastic_depth": draw_stochastic_depth,
}

if __name__ == "__main__":
    folder = Path(__file__).with_name("cards")
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CARDS:
        figure = CARDS[name]()
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", pil_kwargs={"optimize": True})
        plt.close(figure)
