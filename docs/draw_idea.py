"""Draws docs/idea.png, the picture of the idea: `python docs/draw_idea.py [where]`.

Everything in it is computed: a fixed bank of filters stands for a network's first layers, `momentex.normalize` takes
its features apart, `momentex.exchange_moments` puts A's normalised features and B's moments together.

The photographs come with scikit-learn, under CC BY 2.0: A is flower.jpg (from vultilion's photo stream), B is
china.jpg (by danielbuechele).
"""

from __future__ import annotations

import sys
from math import pi
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from sklearn.datasets import load_sample_images
from torch import Tensor

from momentex import PONO, exchange_moments, normalize

A, B, INK, MUTED, CARD = "#1f5fa8", "#c2570c", "#24292f", "#6e7781", "#fbfbfa"
GREY = LinearSegmentedColormap.from_list("features", ["#10151b", "#66717d", "#fdfdfd"])
BLUE = LinearSegmentedColormap.from_list("moments of A", ["#0b2540", A, "#f4f9ff"])
ORANGE = LinearSegmentedColormap.from_list("moments of B", ["#3d1a03", B, "#fff8f0"])
WIDTH, HEIGHT = 12.2, 4.75
SIDE, STEP = 1.15, 0.125
CHANNELS = (40, 17, 49)  # of 64: those shown


def photographs(side: int = 224) -> Tensor:
    """Two photographs, (2, 3, side, side) in 0 … 1: A the flower, B the temple."""
    china, flower = (torch.tensor(image).permute(2, 0, 1) / 255 for image in load_sample_images().images)
    squares = [flower[:, 30:400, 130:500], china[:, 30:390, 120:480]]
    return torch.cat([F.interpolate(s[None], (side, side), mode="area") for s in squares])


def filters(size: int = 9) -> Tensor:
    """64 Gabor filters on colours: 8 directions, 2 wavelengths, 4 mixtures of colours with a phase each."""
    axis = torch.arange(size) - size // 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    window = torch.exp(-(x**2 + y**2) / (2 * (size / 5) ** 2))
    colours = torch.tensor([[1, 1, 1], [1, 1, 1], [1, -0.5, -0.5], [-0.5, -0.5, 1]])
    phases = (0.0, pi / 2, 0.0, 0.0)
    bank = []
    for colour, phase in zip(colours, phases, strict=True):
        for wavelength in (4.0, 8.0):
            for angle in torch.arange(8) * pi / 8:
                wave = torch.cos(2 * pi * (x * angle.cos() + y * angle.sin()) / wavelength + phase) * window
                bank.append(colour[:, None, None] * wave / wave.abs().sum())
    return torch.stack(bank)


def features(images: Tensor) -> Tensor:
    """As a network's first layers: convolution, batch normalisation, ReLU, pooling."""
    h = F.conv2d(F.pad(images - images.mean((0, 2, 3), keepdim=True), (4, 4, 4, 4), mode="reflect"), filters())
    return F.avg_pool2d(F.relu(F.batch_norm(h, None, None, training=True) + 0.5), 2)


def show(ax: Axes, image: Tensor, x: float, y: float, side: float, edge: str, cmap: Colormap | None = None) -> None:
    """A square picture with its lower left corner at (x, y): RGB, or one map stretched between its own extremes."""
    if cmap is not None:
        low, high = image.quantile(0.005), image.quantile(0.995)
        image = ((image - low) / (high - low)).clamp(0, 1).sqrt()
    extent = (x, x + side, y, y + side)
    pixels = (image if cmap is not None else image.permute(1, 2, 0)).numpy()
    ax.imshow(pixels, cmap=cmap, extent=extent, zorder=3, vmin=0, vmax=1)
    ax.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=edge, linewidth=1.6, zorder=3))


def stack(ax: Axes, h: Tensor, x: float, y: float, side: float, edge: str) -> None:
    """Some of the channels, one behind the other."""
    for depth, channel in reversed(list(enumerate(CHANNELS))):
        show(ax, h[channel], x + STEP * depth, y + STEP * depth, side, edge, GREY)


def veil(ax: Axes, x: float, y: float, width: float, height: float) -> None:
    """What is not used, faint."""
    ax.add_patch(Rectangle((x, y), width, height, facecolor=CARD, edgecolor="none", alpha=0.66, zorder=5))


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, text: str = "") -> None:
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=18, linewidth=2.2, color=colour, zorder=6)
    )
    ax.text((start[0] + end[0]) / 2 - 0.04, start[1] - 0.13, text, color=MUTED, ha="center", va="top", fontsize=12)


def sentence(ax: Axes, x: float, y: float, parts: list[tuple[str, str]], size: float) -> None:
    """One line of text in several colours, centred at (x, y)."""
    words = [TextArea(text, textprops={"color": colour, "size": size}) for text, colour in parts]
    line = HPacker(children=words, align="baseline", pad=0, sep=2)
    ax.add_artist(AnnotationBbox(line, (x, y), frameon=False, box_alignment=(0.5, 0.5), pad=0, zorder=7))


def draw(where: Path) -> None:
    """The whole picture."""
    images = photographs()
    h = features(images)
    h_hat, moments = normalize(h, PONO())
    exchanged = exchange_moments(h, torch.tensor([1, 0]), PONO())

    with plt.rc_context({"font.family": "DejaVu Sans", "mathtext.fontset": "cm", "font.size": 14}):
        figure = plt.figure(figsize=(WIDTH, HEIGHT), dpi=130)
        ax = figure.add_axes((0, 0, 1, 1))
        card(ax)
        for i, (y, name, colour, cmap) in enumerate(((2.72, "A", A, BLUE), (0.42, "B", B, ORANGE))):
            middle, top = y + 0.7, y + 1.5
            show(ax, images[i], 0.42, y, 1.4, colour)
            ax.text(1.12, top, rf"image {name}, label $y_{name}$", color=colour, ha="center")
            arrow(ax, (1.92, middle), (2.62, middle), MUTED, "first\nlayers")
            stack(ax, h[i], 2.7, y, SIDE, colour)
            ax.text(3.4, top, rf"features $h_{name}$", color=colour, ha="center")
            arrow(ax, (4.2, middle), (4.9, middle), MUTED, "take\napart")
            maps_at, stack_at = (4.98, 7.55) if name == "A" else (6.58, 4.98)
            stack(ax, h_hat[i], stack_at, y, SIDE, colour)
            ax.text(stack_at + 0.7, top, rf"normalised $\hat h_{name}$", color=colour, ha="center")
            show(ax, moments.mean[i, 0], maps_at, y + STEP, SIDE, colour, cmap)
            show(ax, moments.std[i, 0], maps_at + 1.28, y + STEP, SIDE, colour, cmap)
            ax.text(maps_at + 0.57, top, rf"mean $\mu_{name}$", color=colour, ha="center")
            ax.text(maps_at + 1.85, top, rf"std $\sigma_{name}$", color=colour, ha="center")
            unused = (4.9, 2.55) if name == "A" else (4.9, 1.6)
            veil(ax, unused[0], y - 0.1, unused[1], 1.95)
        arrow(ax, (9.1, 3.25), (9.74, 2.95), A)
        arrow(ax, (9.1, 1.25), (9.74, 1.75), B)
        stack(ax, exchanged[0], 9.84, 1.5, 1.52, A)
        formula = [("$h_A^{(B)} = $", INK), (r"$\sigma_B$", B), (r"$\hat h_A$", A), ("$+$", INK), (r"$\mu_B$", B)]
        sentence(ax, 10.72, 3.72, formula, 18)
        ax.text(10.72, 4.22, "A with the moments of B", color=INK, ha="center")
        arrow(ax, (10.72, 1.44), (10.72, 0.98), MUTED)
        loss = [
            (r"$\lambda\,\ell($", INK),
            (r"$y_A$", A),
            (r"$)\;+\;(1-\lambda)\,\ell($", INK),
            (r"$y_B$", B),
            ("$)$", INK),
        ]
        sentence(ax, 10.62, 0.6, loss, 17)
        figure.savefig(where, transparent=True, pil_kwargs={"optimize": True})
        plt.close(figure)


def card(ax: Axes) -> None:
    """A light ground of its own, so that the picture can be read on a dark page too."""
    ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    ax.axis("off")
    style = "round,pad=0,rounding_size=0.2"
    size = (WIDTH - 0.1, HEIGHT - 0.1)
    ax.add_patch(
        FancyBboxPatch((0.05, 0.05), *size, boxstyle=style, facecolor=CARD, edgecolor="#d0d7de", linewidth=1.2)
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("idea.png"))
