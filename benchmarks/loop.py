"""The training loop of `cifar10.resnet20`: against the bare step, the conventional loop, with the exchange, and saving.

python -m benchmarks.loop                    # writes benchmarks/results/loop-cpu.json, about six minutes on two cores

All numbers are ratios within one round of one process. The images are random bytes in CIFAR-10's shapes: what an image
shows does not change how long it takes.

    bare           forward, backward and update on a batch that lies in memory, in bfloat16 and channels_last
    loop           momentex's loop: drawing, cropping, mirroring, normalizing, schedule, metrics, the same step
    conventional   torchvision's PIL transforms in a DataLoader with two workers, float32, NCHW, eager
    moex           loop with Moment Exchange at p = 1; `compiled`: with its operator compiled
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.measure import machine
from momentex import models
from momentex.data import Arrays, Augment, Evaluation, Form, Normalize, Resident, evaluation_batches
from momentex.pairing import stream
from momentex.recipes import find
from momentex.train import engine
from momentex.train.images import CIFAR, ImageBatches, classification_metrics
from momentex.train.place import Place
from momentex.train.recipe import Exchange, Recipe
from momentex.train.record import Record
from momentex.train.task import Task

RESULTS = Path(__file__).parent / "results"
BATCH = 128
BARS = {"loop": 1.05, "conventional": 1.7, "saving": 0.02}
HELD = {"moex": 0.08, "moex compiled": 0.06}  # of the loop's own step, at p = 1


class Images(Dataset[tuple[Tensor, int]]):
    """What a conventional script hands to its workers: PIL images, one at a time."""

    def __init__(self, arrays: Arrays, transform: Callable[..., Tensor]) -> None:
        from PIL import Image

        pixels = arrays.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._images = [Image.fromarray(image) for image in pixels]
        self._labels, self._transform = arrays.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


def random_images(count: int) -> Arrays:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Arrays(images, torch.randint(10, (count,), generator=generator), tuple("0123456789"))


class Ours:
    """The loop, as `momentex train` runs it, over so many steps at a time."""

    def __init__(self, recipe: Recipe, arrays: Arrays, steps: int) -> None:
        self.place, self.steps = Place.here(), steps
        torch.manual_seed(0)
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        form = Form(self.place.device, layout)
        model = models.build(recipe.model, 10).to(memory_format=layout)
        draw = lambda step, name: stream(0, step, name)  # noqa: E731
        resident = Resident(arrays, BATCH, CIFAR, draw, augment=Augment(4, flip=True), form=form)
        held: Evaluation = evaluation_batches(arrays, 500, CIFAR, form=form)
        task = Task(
            model=model,
            site="layer1",
            batches=ImageBatches(resident, len(arrays.labels)),
            loss=lambda targets, output: targets.cross_entropy(output),
            evaluate=lambda m: classification_metrics(m, held),
            split="test",
        )
        self.run = engine.prepare(recipe, task, self.place)
        self.losses = engine.Losses(self.run)
        self.batch = next(iter(resident.epoch(0)))

    def loop(self) -> None:
        """`steps` steps of the loop: what `engine` does for each."""
        at = self.run.at
        self.run.task.model.train()
        for batch in self.run.task.batches.epoch(at.epoch, at.step):
            loss = engine.train_step(self.run, batch)
            at.step += 1
            at.images += len(batch.labels)
            self.losses.add(loss, len(batch.labels))
            if at.step % self.steps == 0:
                break
        if at.step + self.steps > len(self.run.task.batches.sizes):
            at.epoch, at.step = at.epoch + 1, 0

    def bare(self) -> None:
        """The same model, optimizer and precision on one batch that lies there."""
        (x, y), run = self.batch, self.run
        for _ in range(self.steps):
            run.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = run.task.model(x)
            F.cross_entropy(output.float(), y).backward()
            run.optimizer.step()


class Conventional:
    """The loop of a thousand scripts."""

    def __init__(self, arrays: Arrays, steps: int) -> None:
        torch.manual_seed(0)
        normalize: Normalize = CIFAR
        transform = v2.Compose(
            [
                v2.RandomCrop(32, padding=4),
                v2.RandomHorizontalFlip(),
                v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(normalize.mean, normalize.std),
            ]
        )
        self.steps = steps
        self._loader = DataLoader(
            Images(arrays, transform), BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
        )
        self._batches = iter(self._loader)
        self.model: nn.Module = models.build("cifar:resnet20", 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def loop(self) -> None:
        self.model.train()
        for _ in range(self.steps):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            x, y = batch
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()  # for the progress bar


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of `steps` steps by variant and round, all variants in turn."""
    arrays = random_images(steps * BATCH * 4)
    recipe = replace(find("cifar10.resnet20"), batch_size=BATCH, seed=0)
    plain = Ours(recipe, arrays, steps)
    exchanging = {
        name: Ours(replace(recipe, exchange=Exchange(p=1.0, compiled=c)), arrays, steps)
        for name, c in (("moex", False), ("moex compiled", True))
    }
    conventional = Conventional(arrays, steps)
    variants: dict[str, Callable[[], None]] = {
        "bare": plain.bare,
        "loop": plain.loop,
        "conventional": conventional.loop,
        **{name: ours.loop for name, ours in exchanging.items()},
        "loop again": plain.loop,
    }
    for work in variants.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        for name, work in variants.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
        print(f"round {number + 1} of {rounds}: {_line(seconds, steps)}", flush=True)
    return {"seconds": seconds, "saving": saving(plain, steps, statistics.median(seconds["loop"]))}


def saving(ours: Ours, steps: int, seconds: float) -> dict[str, float]:
    """A checkpoint, with everything that is written after an epoch, against an epoch of CIFAR-10."""
    folder = Path(tempfile.mkdtemp(prefix="momentex-saving-"))
    taken = []
    try:
        for number in range(15):
            began = time.perf_counter()
            ours.run.at.epoch = number
            engine.save(ours.run, Record(folder))
            taken.append(time.perf_counter() - began)
    finally:
        shutil.rmtree(folder)
    epoch = seconds / steps * (50_000 / BATCH)
    return {"seconds": statistics.median(taken), "of_an_epoch": statistics.median(taken) / epoch}


def ratios(seconds: dict[str, list[float]], name: str, to: str) -> dict[str, float]:
    found = [a / b for a, b in zip(seconds[name], seconds[to], strict=True)]
    low, middle, high = statistics.quantiles(found, n=4)
    return {"median": middle, "q25": low, "q75": high}


def judged(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every bar, what was measured, and whether it holds."""
    seconds = found["seconds"]
    fast = "bf16" in machine(torch.device("cpu"))["cpu"]
    rows = [
        ("loop, × bare step", ratios(seconds, "loop", "bare"), BARS["loop"], True),
        (
            "images per second, × conventional loop",
            ratios(seconds, "conventional", "loop"),
            BARS["conventional"],
            False,
        ),
        *(
            (f"{name} at p = 1, more than the loop", _less_one(ratios(seconds, name, "loop")), limit, True)
            for name, limit in HELD.items()
        ),
        ("saving after every epoch, of an epoch", {"median": found["saving"]["of_an_epoch"]}, BARS["saving"], True),
        ("loop again, × loop (nothing)", ratios(seconds, "loop again", "loop"), None, True),
    ]
    verdicts = []
    for name, value, limit, at_most in rows:
        holds = limit is None or (value["median"] <= limit if at_most else value["median"] >= limit)
        counts = limit is not None and (at_most or fast)
        verdict = ("holds" if holds else "does not hold") if counts else "reported"
        verdicts.append({"name": name, "allowed": limit, "at_most": at_most, **value, "verdict": verdict})
    return verdicts


def _less_one(ratio: dict[str, float]) -> dict[str, float]:
    return {name: value - 1 for name, value in ratio.items()}


def _line(seconds: dict[str, list[float]], steps: int) -> str:
    return ", ".join(f"{name} {steps * BATCH / found[-1]:.0f}" for name, found in seconds.items()) + " images/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps of each variant in a round")
    parser.add_argument("--out", type=Path, default=RESULTS / "loop-cpu.json")
    options = parser.parse_args()
    found = measure(options.rounds, options.steps)
    bars = judged(found)
    for bar in bars:
        limit = "" if bar["allowed"] is None else f"{'≤' if bar['at_most'] else '≥'} {bar['allowed']}"
        spread = f" [{bar['q25']:.3f}, {bar['q75']:.3f}]" if "q25" in bar else ""
        print(f"{bar['name']:<45} {limit:<8} {bar['median']:.3f}{spread:<18} {bar['verdict']}")
    images = {name: options.steps * BATCH / statistics.median(s) for name, s in found["seconds"].items()}
    options.out.write_text(
        json.dumps(
            {
                "machine": machine(torch.device("cpu")),
                "command": f"benchmarks.loop --rounds {options.rounds} --steps {options.steps}",
                "images_per_second": {name: round(value, 1) for name, value in images.items()},
                "saving": found["saving"],
                "bars": bars,
                "seconds": found["seconds"],
            },
            indent=1,
        )
        + "\n"
    )
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
