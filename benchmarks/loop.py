"""The training loop of `cifar10.resnet20`: against the bare step, the conventional loop, with the exchange, and saving.

python -m benchmarks.loop                          # writes benchmarks/results/loop.json, a few minutes on two cores
python -m benchmarks.loop --rounds 5 --out /tmp/loop.json

All ratios are of times within one round of one process. The images are random bytes in CIFAR-10's shapes: what an image
shows does not change how long it takes.

    bare           forward, backward and update on a batch that lies in memory, in bfloat16 and channels_last
    loop           momentex's loop: drawing, cropping, mirroring, normalizing, schedule, loss and log, the same step
    conventional   torchvision's PIL transforms in a DataLoader with two workers, float32, NCHW, eager
    moex           loop with Moment Exchange at p = 1; `moex compiled`: with its operator compiled
    loop again     loop: what the measurement can tell
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from benchmarks.bars import judge_loop
from benchmarks.measure import command, interleaved, machine
from benchmarks.run import RESULTS, rounded, show
from momentex import models
from momentex.data import Arrays, Augment, Form, Resident
from momentex.pairing import stream
from momentex.recipes import find
from momentex.train.engine import train_epoch
from momentex.train.images import CIFAR, ImageBatches
from momentex.train.interruption import Interruption
from momentex.train.place import Place
from momentex.train.progress import Lines
from momentex.train.recipe import Exchange, Recipe
from momentex.train.record import Record
from momentex.train.run import prepare
from momentex.train.savepoint import save, save_best
from momentex.train.task import Batch, Batches, Task

IMAGES, CLASSES = 50_000, 10
WORKERS = 2
SAVED = 15  # checkpoints that are timed


def random_images() -> Arrays:
    """As many as CIFAR-10 has, so that they lie in memory as its images do."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    return Arrays(images, labels, tuple(map(str, range(CLASSES))))


class Excerpt:
    """The first steps of every epoch."""

    def __init__(self, batches: Batches, steps: int) -> None:
        self._batches = batches
        self.sizes = batches.sizes[:steps]

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        return islice(self._batches.epoch(number, start), len(self.sizes) - start)


class Ours:
    """A run of `momentex train`, some steps of each epoch."""

    def __init__(self, recipe: Recipe, arrays: Arrays, steps: int) -> None:
        place = Place.here()
        torch.manual_seed(recipe.seed)
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        augment = Augment(recipe.augment.crop_padding, recipe.augment.flip)
        form, draw = Form(place.device, layout), partial(stream, recipe.seed)
        resident = Resident(arrays, recipe.batch_size, CIFAR, draw, augment=augment, form=form)
        task = Task(
            model=models.build(recipe.model, CLASSES).to(memory_format=layout),
            site=models.first_site(recipe.model),
            batches=Excerpt(ImageBatches(resident, len(arrays.labels)), steps),
            loss=lambda targets, output: targets.cross_entropy(output),
            fits=lambda output: None,
            evaluate=lambda model: {},
            split="test",
            facts={},
        )
        self.run = prepare(recipe, task, place)
        self._interruption, self._reporter = Interruption(place), Lines(io.StringIO())
        self._reporter.start(steps, recipe.epochs, 0)
        self._batch = next(iter(task.batches.epoch(0)))

    def loop(self) -> None:
        """What the loop does between two evaluations, with nothing left out."""
        train_epoch(self.run, Record(Path()), self._reporter, self._interruption)
        at = self.run.at
        at.epoch, at.step, at.loss, at.images = at.epoch + 1, 0, 0.0, 0

    def bare(self) -> None:
        """As many steps of the same model, optimizer and precision, on one batch."""
        ((x,), y, _), run = self._batch, self.run
        run.task.model.train()
        for _ in run.task.batches.sizes:
            run.optimizer.zero_grad()
            with run.place.autocast(run.recipe.precision):
                output = run.task.model(x)
            F.cross_entropy(output.float(), y).backward()
            run.optimizer.step()

    def save(self, folder: Path) -> list[float]:
        """Seconds of everything that is written after an epoch, if each is the best so far."""
        seconds, at = [], self.run.at
        record = Record(folder)
        row = {"loss": 1.0, "lr": 0.1, "split": "test", "error": 10.0, "nll": 0.5, "error_top5": 1.0}
        for _ in range(SAVED):
            at.epoch += 1
            at.best = row = row | {"epoch": at.epoch}
            at.rows.append(row)
            began = time.perf_counter()
            save(self.run, record)
            save_best(self.run, record)
            record.add("metrics.jsonl", row)
            record.add("times.jsonl", row)
            seconds.append(time.perf_counter() - began)
        return seconds


class Images(Dataset[tuple[Tensor, int]]):
    """What torchvision's CIFAR10 is: an image is made for PIL when it is asked for."""

    def __init__(self, arrays: Arrays) -> None:
        self._pixels = arrays.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = arrays.labels.tolist()
        self._transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(CIFAR.mean, CIFAR.std),
            ]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._pixels[index])), self._labels[index]


class Conventional:
    """The loop of a thousand scripts. Its workers rest while others are timed: an epoch is over with its steps."""

    def __init__(self, recipe: Recipe, arrays: Arrays, steps: int) -> None:
        torch.manual_seed(recipe.seed)
        images, size = Images(arrays), recipe.batch_size
        sampler = RandomSampler(images, num_samples=steps * size)
        self._loader = DataLoader(images, size, sampler=sampler, num_workers=WORKERS, persistent_workers=True)
        self._model: nn.Module = models.build(recipe.model, CLASSES)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def loop(self) -> None:
        self._model.train()
        for x, y in self._loader:
            loss = F.cross_entropy(self._model(x), y)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            loss.item()  # for the progress bar


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """All variants in turn, `steps` steps of each in a round; then what is written after an epoch."""
    arrays, recipe = random_images(), find("cifar10.resnet20")
    plain = Ours(recipe, arrays, steps)
    variants: dict[str, Callable[[], object]] = {
        "bare": plain.bare,
        "loop": plain.loop,
        "conventional": Conventional(recipe, arrays, steps).loop,
        "moex": Ours(replace(recipe, exchange=Exchange(p=1.0)), arrays, steps).loop,
        "moex compiled": Ours(replace(recipe, exchange=Exchange(p=1.0, compiled=True)), arrays, steps).loop,
        "loop again": plain.loop,
    }
    timing = interleaved(variants, gate="bare", rounds=rounds, device=torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="momentex-saving-") as folder:
        saving = plain.save(Path(folder))
    images = steps * recipe.batch_size
    epoch = timing.median("loop") / images * IMAGES
    return {
        "recipe": "cifar10.resnet20",
        "batch": recipe.batch_size,
        "steps_of_a_round": steps,
        "counted": timing.counted,
        "idle_ratio": timing.idle_ratio,
        "images_per_second": {name: images / timing.median(name) for name in variants},
        "loop_to_bare": timing.ratio("loop", "bare"),
        "conventional_to_loop": timing.ratio("conventional", "loop"),
        "overhead": {
            name: {k: v - 1 for k, v in timing.ratio(name, "loop").items()}
            for name in ("moex", "moex compiled", "loop again")
        },
        "saving": {"seconds": statistics.median(saving), "of_an_epoch": statistics.median(saving) / epoch},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps of each variant in a round")
    parser.add_argument("--out", type=Path, default=RESULTS / "loop.json")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "machine": machine(torch.device("cpu")),
        "command": command("benchmarks.loop", sys.argv[1:]),
    }
    print(*(f"{name}: {value}" for name, value in results["machine"].items()), sep="\n", flush=True)
    results["loop"] = measure(options.rounds, options.steps)
    print()
    for name, value in results["loop"]["images_per_second"].items():
        print(f"{name:<14} {value:6.0f} images a second")
    bars = list(judge_loop(results))
    results["bars"] = [bar.as_dict() for bar in bars]
    show(bars)
    options.out.write_text(json.dumps(rounded(results), indent=1) + "\n")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
