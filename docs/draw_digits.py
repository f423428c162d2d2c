"""Draws docs/digits.svg from results/digits_sizes.json: `python docs/draw_digits.py [where]`.

Left: the test error of every arm against the number of training images, mean ± standard error over seeds. Right: what
is looked at first, the paired differences of MoEx from its two references, with 95 % intervals; below zero, MoEx is
better. Neighbouring bands are of the same seeds, and so not independent of each other.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from momentex.comparison.analysis import Analysis, analyse
from momentex.comparison.result import Comparison, from_json

ROOT = Path(__file__).parent.parent
SIZES = ROOT / "results" / "digits_sizes.json"
INK, MUTED, CARD = "#24292f", "#6e7781", "#fbfbfa"
COLOURS = {"baseline": "#6e7781", "moex": "#c2570c", "labels_only": "#1f5fa8", "lam1": "#2f7d4f"}
MARKS = {"baseline": "o", "moex": "D", "labels_only": "s", "lam1": "^"}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.hashsalt": "digits",  # the same file, whenever it is drawn
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Rows = Sequence[tuple[int, Comparison, Analysis]]


def measured(path: Path = SIZES) -> Rows:
    """Training images, and what was found with so many."""
    found = [(row["train_size"], from_json(row["comparison"])) for row in json.loads(path.read_text("utf8"))["sizes"]]
    return [(size, comparison, analyse(comparison)) for size, comparison in found]


def source(path: Path = SIZES) -> str:
    """Which numbers a picture shows, as it says of itself."""
    return f"{path.name}, crc32 {zlib.crc32(path.read_bytes()):08x}"


def draw(rows: Rows, where: Path, source: str) -> None:
    """The whole picture."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(9.4, 3.9))
        card(figure)
        errors(figure.add_axes((0.075, 0.15, 0.40, 0.70)), rows)
        differences(figure.add_axes((0.575, 0.15, 0.40, 0.70)), rows)
        figure.savefig(where, transparent=True, metadata={"Date": None, "Source": source})
        plt.close(figure)


def errors(ax: Axes, rows: Rows) -> None:
    """Of every arm, against the number of training images."""
    seeds = len(rows[0][1].seeds)
    for arm in rows[0][1].arms:
        found = [next(row for row in analysis.rows if row.arm == arm.name).last["error"] for _, _, analysis in rows]
        middle, reach = [one.mean for one in found], [one.sem or 0.0 for one in found]
        band(ax, rows, middle, [m - r for m, r in zip(middle, reach, strict=True)],
             [m + r for m, r in zip(middle, reach, strict=True)], arm.name, arm.heading)  # fmt: skip
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(matplotlib.ticker.FixedLocator([1, 2, 3, 5, 7, 10, 15, 20, 30]))
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_title(f"test error, % (mean ± standard error, {seeds} seeds)", fontsize=10, loc="left", color=INK)
    along_sizes(ax, rows)


def differences(ax: Axes, rows: Rows) -> None:
    """Of MoEx from what it is held against, in points."""
    ax.axhline(0, color=MUTED, linewidth=1)
    for against, words in (("labels_only", "MoEx − label interpolation only"), ("baseline", "MoEx − baseline")):
        found: list[Any] = [
            next(c for c in analysis.contrasts if (c.arm, c.against) == ("moex", against)) for _, _, analysis in rows
        ]
        band(ax, rows, [c.mean for c in found], [c.low for c in found], [c.high for c in found], against, words)
    ax.set_title("paired difference, points (95 % interval)", fontsize=10, loc="left", color=INK)
    along_sizes(ax, rows)


def band(
    ax: Axes, rows: Rows, middle: Sequence[float], low: Sequence[float], high: Sequence[float], arm: str, words: str
) -> None:
    sizes = [size for size, _, _ in rows]
    ax.fill_between(sizes, low, high, color=COLOURS[arm], alpha=0.16, linewidth=0)
    ax.plot(sizes, middle, color=COLOURS[arm], marker=MARKS[arm], markersize=4.5, linewidth=1.6, label=words)


def along_sizes(ax: Axes, rows: Rows) -> None:
    sizes = [size for size, _, _ in rows]
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{size}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("training images")
    ax.grid(axis="y", color="#d0d7de", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.patch.set_alpha(0)
    ax.legend(frameon=False, fontsize=8.5)


def card(figure: Any) -> None:
    """A light ground of its own, so that the picture can be read on a dark page too."""
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 9.4), ylim=(0, 3.9))
    ax.axis("off")
    style = "round,pad=0,rounding_size=0.15"
    ax.add_patch(
        FancyBboxPatch((0.04, 0.04), 9.32, 3.82, boxstyle=style, facecolor=CARD, edgecolor="#d0d7de", linewidth=1.2)
    )


if __name__ == "__main__":
    draw(measured(), Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.svg"), source())
