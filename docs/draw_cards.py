"""Draws the pictures of the methods' cards, docs/cards/<method>.png: `python -m docs.draw_cards [method …]`.

Everything in them is computed by momentex on the two photographs of `draw_idea.py`: A, the flower, and B, the temple. A
picture is panels in a row, and beside them the target, a column for each label that has any weight. Another method is
another function in `CARDS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch import Tensor

from docs.draw_idea import CARD, GREY, INK, MUTED, ORANGE, A, B, features, photographs
from momentex import Box, Targets, cutmix, cutout, exchange_moments, mixup, normalize, smooth_labels

CARDS_FOLDER = Path(__file__).with_name("cards")
SWAP = torch.tensor([1, 0])
SIDE, GAP, LEFT, BELOW, HEIGHT = 1.5, 0.55, 0.35, 0.95, 2.95
NAMES = ("A", "B", *"CDEFGHIJ")  # of ten classes, the first two of which are in the picture


@dataclass(frozen=True)
class Panel:
    """One square. `sign` is what stands before it; `image` is RGB, or one map in the colours `cmap`."""

    title: str
    image: Tensor
    colour: str = INK
    sign: str = ""
    cmap: object = None


@dataclass(frozen=True)
class Picture:
    """Panels from left to right, and the target of the last one: a weight for each of some classes."""

    panels: tuple[Panel, ...]
    target: Tensor
    note: str


def inputs() -> tuple[Tensor, Targets, tuple[Panel, Panel]]:
    """Both photographs, their labels, and their panels."""
    x = photographs()
    return x, Targets(torch.tensor([0, 1])), (Panel("image A", x[0], A), Panel("image B", x[1], B))


def draw_mixup() -> Picture:
    """λ = 0.7."""
    x, y, pair = inputs()
    mixed, targets = mixup(x, y, index=SWAP, lam=0.7)
    return Picture((*pair, Panel("0.7 A + 0.3 B", mixed[0], sign="→")), targets.probabilities(10)[0], "target")


def draw_cutmix() -> Picture:
    """A box of 30 % of the image."""
    x, y, pair = inputs()
    pasted, targets = cutmix(x, y, index=SWAP, box=Box(30, 153, 80, 203))
    return Picture((*pair, Panel("a box of B in A", pasted[0], sign="→")), targets.probabilities(10)[0], "target")


def draw_cutout() -> Picture:
    """Half of the image's side."""
    x, y, pair = inputs()
    cut, targets = cutout(x - 0.45, y, box=Box(60, 172, 40, 152))
    return Picture(
        (pair[0], Panel("a square is grey", cut[0] + 0.45, A, sign="→")), targets.probabilities(10)[0], "target"
    )


def draw_label_smoothing() -> Picture:
    """A fifth is spread, so that it can be seen."""
    _, y, pair = inputs()
    rows = smooth_labels(y, 0.2, num_classes=10, over="others").probabilities(10)
    return Picture((pair[0],), rows[0], "target, ten classes")


def draw_label_interpolation() -> Picture:
    """λ = 0.9; the image of B is not used."""
    _, y, pair = inputs()
    return Picture((pair[0],), y.mixed_with(SWAP, 0.9).probabilities(10)[0], "target; B lends its label alone")


def draw_moex() -> Picture:
    """A channel of features; moments at each position."""
    x, y, pair = inputs()
    h = features(x)
    _, moments = normalize(h)
    exchanged = exchange_moments(h, SWAP)
    channel = 17
    panels = (
        pair[0],
        Panel("a channel of $h_A$", h[0, channel], A, "→", GREY),
        Panel(r"mean $\mu_B$", moments.mean[1, 0], B, "", ORANGE),
        Panel(r"std $\sigma_B$", moments.std[1, 0], B, "", ORANGE),
        Panel(r"$h_A^{(B)}$", exchanged[0, channel], A, "→", GREY),
    )
    return Picture(panels, y.mixed_with(SWAP, 0.9).probabilities(10)[0], "target")


CARDS: dict[str, Callable[[], Picture]] = {
    "mixup": draw_mixup,
    "cutmix": draw_cutmix,
    "cutout": draw_cutout,
    "label_smoothing": draw_label_smoothing,
    "label_interpolation": draw_label_interpolation,
    "moex": draw_moex,
}


# --- on paper --------------------------------------------------------------------------------------------------------


def draw(picture: Picture, where: Path) -> None:
    """The whole picture, on a light ground of its own."""
    bar = 2.6
    width = LEFT + len(picture.panels) * (SIDE + GAP) + bar + LEFT
    with plt.rc_context({"font.family": "DejaVu Sans", "mathtext.fontset": "cm", "font.size": 11}):
        figure = plt.figure(figsize=(width, HEIGHT), dpi=80)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(0, HEIGHT))
        ax.axis("off")
        style = "round,pad=0,rounding_size=0.15"
        ax.add_patch(
            FancyBboxPatch(
                (0.04, 0.04), width - 0.08, HEIGHT - 0.08, boxstyle=style, facecolor=CARD, edgecolor="#d0d7de"
            )
        )
        for i, panel in enumerate(picture.panels):
            _panel(ax, panel, LEFT + i * (SIDE + GAP))
        _target(ax, picture, LEFT + len(picture.panels) * (SIDE + GAP), bar)
        figure.savefig(where, transparent=True, pil_kwargs={"optimize": True})
        plt.close(figure)


def _panel(ax: Axes, panel: Panel, left: float) -> None:
    image = panel.image
    if image.ndim == 2:
        low, high = image.quantile(0.005), image.quantile(0.995)
        image = ((image - low) / (high - low)).clamp(0, 1).sqrt()
    pixels = (image if image.ndim == 2 else image.clamp(0, 1).permute(1, 2, 0)).numpy()
    extent = (left, left + SIDE, BELOW, BELOW + SIDE)
    ax.imshow(pixels, cmap=panel.cmap, extent=extent, vmin=0, vmax=1, zorder=3)
    ax.add_patch(Rectangle((left, BELOW), SIDE, SIDE, fill=False, edgecolor=panel.colour, linewidth=1.5, zorder=4))
    ax.text(left + SIDE / 2, BELOW - 0.12, panel.title, color=panel.colour, ha="center", va="top")
    ax.text(left - GAP / 2, BELOW + SIDE / 2, panel.sign, color=MUTED, ha="center", va="center", fontsize=17)


def _target(ax: Axes, picture: Picture, left: float, width: float) -> None:
    """A column for each class that has any weight."""
    weights: Sequence[float] = picture.target.tolist()
    shown = [(name, weight) for name, weight in zip(NAMES, weights, strict=False) if weight > 0]
    step = width / max(len(shown), 3)
    for i, (name, weight) in enumerate(shown):
        colour = {"A": A, "B": B}.get(name, MUTED)
        x = left + i * step
        ax.add_patch(Rectangle((x, BELOW), step * 0.7, SIDE * weight, facecolor=colour, edgecolor="none", zorder=3))
        ax.text(x + step * 0.35, BELOW - 0.12, name, color=colour, ha="center", va="top")
        if len(shown) <= 3 or name == "A":
            text = f"{weight:.2g}"
            ax.text(x + step * 0.35, BELOW + SIDE * weight + 0.06, text, color=colour, ha="center", va="bottom")
    ax.text(left + width / 2 - 0.1, 0.2, picture.note, color=MUTED, ha="center", va="bottom", fontsize=10)


if __name__ == "__main__":
    CARDS_FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CARDS:
        draw(CARDS[name](), CARDS_FOLDER / f"{name}.png")
