"""What every method costs in a step, beside torchvision's and timm's mixup and CutMix in the same run.

python -m benchmarks.methods              # measure, write benchmarks/results/methods.json and the costs in docs/cards
python -m benchmarks.methods --cards      # write the costs in docs/cards from the committed measurement

Timed is what a method adds to a step of the model's own: the batch, drawn and mixed, and the loss with its gradient
for the logits, which takes longer where there are two labels. So libraries that return rows for soft targets and ours,
which weights two losses, are held to the same. `milliseconds` are those beyond the plain loss; the bars relate them to
a training step of ResNet-20, measured in the same run. Moment Exchange is timed as that whole step. timm writes into
the batch, torchvision copies it; our CutMix does either, and is held to the one that does the same. Our mixup copies,
and is held to both. All run in another order in each round, each once before it is timed: what the one before has left
in the cache would else decide between libraries that differ by some microseconds. Memory that is freed stays with the
process: else whether 19 MB of images are new pages, which takes as long as mixing them, is a matter of who came before.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import IDLE_FACTOR, Timing, machine
from benchmarks.step import Trainer
from momentex import CutMix, Cutout, LabelInterpolation, Mixup, Targets, smooth_labels

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/methods.json"
CARDS = ROOT / "docs/cards"
SHAPES = {"128×3×32×32": (128, 3, 32, 32, 100), "32×3×224×224": (32, 3, 224, 224, 1000)}
RIVALS = {
    "mixup": ("torchvision mixup", "timm mixup"),
    "cutmix": ("torchvision cutmix",),
    "cutmix in place": ("timm cutmix",),
    "mixup per sample": ("timm mixup per sample",),
    "cutmix per sample in place": ("timm cutmix per sample",),
}
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h
SLOWER = 1.05  # × the fastest of the others: what the measurement cannot tell from equal
Work = Callable[[], object]


class Batch:
    """One batch of random images, and logits that a loss is asked of."""

    def __init__(self, batch: int, channels: int, height: int, width: int, classes: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(batch, channels, height, width, generator=generator)
        self.own = self.x.clone()  # for those that write into it
        self.y = torch.randint(classes, (batch,), generator=generator)
        self.logits = torch.randn(batch, classes, generator=generator, requires_grad=True)
        self.classes, self.step = classes, 0

    def next(self) -> int:
        self.step += 1
        return self.step

    def finish(self, targets: Tensor | Targets) -> None:
        """The loss and its gradient, as each library's users ask for them."""
        self.logits.grad = None
        if isinstance(targets, Targets):
            targets.cross_entropy(self.logits).backward()
        else:
            F.cross_entropy(self.logits, targets).backward()


def ours(batch: Batch) -> Iterator[tuple[str, Work]]:
    """Every method at p = 1."""
    values = {
        "mixup": Mixup(),
        "cutmix": CutMix(),
        "cutout": Cutout(),
        "label_interpolation": LabelInterpolation(p=1.0),
        "mixup per sample": Mixup(per="sample"),
        "cutmix per sample": CutMix(per="sample"),
    }
    for name, value in values.items():
        yield name, lambda value=value: batch.finish(value(batch.x, batch.y, step=batch.next())[1])
    for name, paste in (("cutmix in place", CutMix()), ("cutmix per sample in place", CutMix(per="sample"))):
        yield name, lambda p=paste: batch.finish(p(batch.own, batch.y, step=batch.next(), inplace=True)[1])
    yield "label_smoothing", lambda: batch.finish(smooth_labels(batch.y, 0.1, num_classes=batch.classes))


def theirs(batch: Batch) -> Iterator[tuple[str, Work]]:
    """The same of torchvision and timm; timm writes into the batch, which is its own."""
    from timm.data.mixup import Mixup as Timm
    from torchvision.transforms import v2

    for name, transform in (
        ("torchvision mixup", v2.MixUp(num_classes=batch.classes)),
        ("torchvision cutmix", v2.CutMix(num_classes=batch.classes)),
    ):
        yield name, lambda transform=transform: batch.finish(transform(batch.x, batch.y)[1])
    for name, mixup, cutmix, mode in (
        ("timm mixup", 1.0, 0.0, "batch"),
        ("timm cutmix", 0.0, 1.0, "batch"),
        ("timm mixup per sample", 1.0, 0.0, "elem"),
        ("timm cutmix per sample", 0.0, 1.0, "elem"),
    ):
        mixer = Timm(mixup, cutmix, mode=mode, label_smoothing=0.0, num_classes=batch.classes)
        yield name, lambda mixer=mixer: batch.finish(mixer(batch.own, batch.y)[1])


def keep_memory() -> None:
    """glibc gives nothing back to the system that is freed; others are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_THRESHOLD, 2**25)  # the most that it takes


def in_turn(variants: dict[str, Work], rounds: int, repeat: int = 1) -> Timing:
    """Seconds of the processor, in interleaved rounds: what takes less than a time slice is not to be had by the clock
    of a machine that others use. With one thread, the two are the same on an idle one.
    """
    for work in variants.values():
        for _ in range(2):
            work()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order = Random(0)
    for _ in range(rounds):
        for name, work in order.sample(list(variants.items()), len(variants)):
            work()
            began = time.process_time()
            for _ in range(repeat):
                work()
            seconds[name].append((time.process_time() - began) / repeat)
    idle = statistics.median(seconds["plain"]) / min(seconds["plain"])
    return Timing(seconds, idle <= IDLE_FACTOR, idle)


def measure_shape(shape: tuple[int, int, int, int, int], rounds: int) -> dict[str, Any]:
    """Milliseconds beyond the plain loss, of each, and ours over theirs within a round."""
    batch = Batch(*shape)
    variants: dict[str, Work] = {
        "plain": lambda: batch.finish(Targets(batch.y)),
        **dict(ours(batch)),
        **dict(theirs(batch)),
    }
    timing = in_turn(variants, rounds, repeat=10)
    return {
        "counted": timing.counted,
        "idle_ratio": timing.idle_ratio,
        "plain_milliseconds": timing.median("plain") * 1000,
        "milliseconds": {name: beyond(timing, name) for name in variants if name != "plain"},
        "ratios": {f"{name} / {other}": timing.ratio(name, other) for name, all_ in RIVALS.items() for other in all_},
    }


def beyond(timing: Timing, name: str) -> float:
    """Median over rounds of what it takes more than the plain loss."""
    pairs = zip(timing.seconds[name], timing.seconds["plain"], strict=True)
    return statistics.median(a - b for a, b in pairs) * 1000


def measure_step(rounds: int) -> dict[str, Any]:
    """A training step of ResNet-20 in float32, plain and with Moment Exchange at p = 1."""
    trainer = Trainer(torch.device("cpu"), torch.float32, torch.contiguous_format, 128)
    variants = {"plain": trainer.plain, "moex": lambda: trainer.ours(False), "plain again": trainer.plain}
    timing = in_turn(variants, rounds)
    return {
        "counted": timing.counted,
        "idle_ratio": timing.idle_ratio,
        "plain_milliseconds": timing.median("plain") * 1000,
        "milliseconds": {name: beyond(timing, name) for name in variants if name != "plain"},
    }


def verdicts(shapes: dict[str, Any], step: float) -> list[dict[str, Any]]:
    """For every rival, whether ours is slower: in itself, and by how much of a step of so many milliseconds."""
    return [
        {
            "shape": shape,
            "pair": pair,
            "ratio": ratio["median"],
            "more_of_a_step": _difference(row, pair) / step,
            "holds": ratio["median"] <= SLOWER,
            "counted": row["counted"],
        }
        for shape, row in shapes.items()
        for pair, ratio in row["ratios"].items()
    ]


def _difference(row: dict[str, Any], pair: str) -> float:
    """Milliseconds that ours takes more."""
    mine, other = pair.split(" / ")
    return row["milliseconds"][mine] - row["milliseconds"][other]


# --- the cards -------------------------------------------------------------------------------------------------------

START, END = "<!-- cost -->", "<!-- /cost -->"


def cost(results: dict[str, Any], card: str) -> str:
    """What a card says of its method's cost."""
    step, small = results["step"], results["shapes"]["128×3×32×32"]
    taken = step["milliseconds"] if card == "moex" else small["milliseconds"]
    facts = results["machine"]
    said = (
        f"{taken[card]:.2g} ms for a batch of 128 images of 32×32: {taken[card] / step['plain_milliseconds']:.1%} of a "
        f"training step of ResNet-20 ({step['plain_milliseconds']:.0f} ms)."
    )
    if card == "moex":
        said += f" The same plain step, timed twice, differs by {step['milliseconds']['plain again']:.2g} ms."
    forms = [form for form in ("in place", "per sample", "per sample in place") if f"{card} {form}" in taken]
    said += "".join(f" {form.capitalize()}: {taken[f'{card} {form}']:.2g} ms." for form in forms)
    rivals = [other for name in (card, *(f"{card} {form}" for form in forms)) for other in RIVALS.get(name, ())]
    others = [f"{other} {taken[other]:.2g} ms" for other in rivals]
    said += f" In the same run: {', '.join(others)}." if others else ""
    slower = [bar for bar in results["bars"] if bar["pair"].split(" / ")[1] in rivals and not bar["holds"]]
    said += "".join(
        f" Slower than its like: {bar['pair']}, {bar['shape']}, × {bar['ratio']:.2f}, "
        f"{bar['more_of_a_step'] * step['plain_milliseconds'] * 1000:.0f} µs: partners, λ and boxes have a stream each."
        for bar in slower
    )
    where = f"{facts['cpu']}, threads: {facts['threads']}, torch {facts['torch']}"
    return f"{said}\n\n<sub>`python -m benchmarks.methods`, {facts['date']}: {where}</sub>"


def filled(page: str, card: str, results: dict[str, Any]) -> str:
    """The page with its cost, if it has a place for it and was measured here: `features` measures the others."""
    if START not in page or card not in (
        results["shapes"]["128×3×32×32"]["milliseconds"] | results["step"]["milliseconds"]
    ):
        return page
    before, rest = page.split(START)
    return f"{before}{START}\n{cost(results, card)}\n{END}{rest.split(END)[1]}"


def write_cards(results: dict[str, Any]) -> None:
    for path in sorted(CARDS.glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf8"), path.stem, results), encoding="utf8")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cards", action="store_true", help="measure nothing; write the cards")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cards:
        write_cards(json.loads(RESULTS.read_text(encoding="utf8")))
        return
    keep_memory()
    shapes = {name: measure_shape(shape, options.rounds) for name, shape in SHAPES.items()}
    step = measure_step(options.rounds)
    results: dict[str, Any] = {
        "machine": machine(torch.device("cpu")),
        "command": f"benchmarks.methods --rounds {options.rounds}",
        "shapes": shapes,
        "step": step,
        "bars": verdicts(shapes, step["plain_milliseconds"]),
    }
    RESULTS.write_text(json.dumps(rounded(results), indent=1, ensure_ascii=False) + "\n", encoding="utf8")
    for shape, row in results["shapes"].items():
        for name, value in row["milliseconds"].items():
            print(f"{shape:<14} {name:<26} {value:8.3f} ms beyond a loss of {row['plain_milliseconds']:.3f}")
    for bar in results["bars"]:
        late = "" if bar["counted"] else "   not counted: machine not idle"
        print(
            f"{bar['shape']:<14} {bar['pair']:<46} × {bar['ratio']:.2f}  {'holds' if bar['holds'] else 'slower'}{late}"
        )
    write_cards(json.loads(RESULTS.read_text(encoding="utf8")))


if __name__ == "__main__":
    main()
