"""Train a small network on scikit-learn's handwritten digits, with and without Moment Exchange.

    python examples/digits.py                       # about a minute on two cores
    python examples/digits.py --seeds 20 --epochs 60

Four arms, paired: for one seed they share the initial weights, the training subset and every batch, and the arms that
pair samples pair the same ones. What differs is what one training step does:

    baseline               plain training
    label interpolation    the labels are mixed as MoEx would mix them, the features are not
    exchange, λ = 1        the features are exchanged, the labels are not mixed
    MoEx                   both: the method of the paper

This is a quickstart and not evidence: the images are 8×8, the network is tiny, and nothing was tuned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from momentex import MomentExchange, Policy, Targets, stream

BATCH = 50


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class TinyResNet(nn.Module):
    """A stem, three stages with names, a linear classifier."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stage1 = Block(width, width, stride=1)
        self.stage2 = Block(width, 2 * width, stride=2)
        self.stage3 = Block(2 * width, 4 * width, stride=2)
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.classifier(h.mean((2, 3)))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,797 grey images of 8×8 with their classes; every other one is for testing."""
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(bunch.target)
    return x[0::2], y[0::2], x[1::2], y[1::2]


def balanced_subset(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Positions of `size` samples, the same number of each class."""
    shuffled = torch.randperm(len(y), generator=generator)
    classes = y.unique()
    return torch.cat([shuffled[y[shuffled] == c][: size // len(classes)] for c in classes])


# An arm makes, for a model, a function that is called once for each batch.
Step = Callable[[Tensor], AbstractContextManager[Targets]]


def baseline(model: nn.Module, seed: int) -> Step:
    return lambda y: nullcontext(Targets(y))


def moment_exchange(model: nn.Module, seed: int, lam: float = 0.9) -> Step:
    return MomentExchange(model, layer="stage1", lam=lam, p=0.5, seed=seed)


def exchange_only(model: nn.Module, seed: int) -> Step:
    return moment_exchange(model, seed, lam=1.0)


def label_interpolation(model: nn.Module, seed: int) -> Step:
    """What would be left of MoEx if the layer never fired: the same coin, pairs and λ, for the labels alone."""
    steps = count()

    def mix(y: Tensor) -> AbstractContextManager[Targets]:
        plan = Policy(lam=0.9, p=0.5).draw(seed, next(steps), len(y))
        return nullcontext(Targets(y).mixed_with(plan.index, plan.lam))

    return mix


ARMS: dict[str, Callable[[nn.Module, int], Step]] = {
    "baseline": baseline,
    "label interpolation": label_interpolation,
    "exchange, λ = 1": exchange_only,
    "MoEx": moment_exchange,
}


def train(arm: Callable[[nn.Module, int], Step], x: Tensor, y: Tensor, *, seed: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)  # the initial weights; arms of one seed start alike
    model = TinyResNet()
    moex = arm(model, seed)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=1e-3)
    batches = -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * batches)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=stream(seed, epoch, "order"))  # arms of one seed see the same batches
        for rows in order.split(BATCH):
            with moex(y[rows]) as targets:
                loss = targets.cross_entropy(model(x[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Test error in % and negative log-likelihood. Nothing is to be switched off: outside its block MoEx is silent."""
    logits = model.eval()(x)
    return 100 * (logits.argmax(1) != y).float().mean().item(), F.cross_entropy(logits, y).item()


def with_error(values: list[float], form: str) -> str:
    """mean ± standard error."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean(values):{form}} ± {error:.{form[-2]}f}"


def differences(results: dict[str, list[tuple[float, float]]], arm: str, other: str, column: int) -> list[float]:
    return [a[column] - b[column] for a, b in zip(results[arm], results[other], strict=True)]


def verdict(difference: list[float], what: str) -> str:
    """One sentence. Two standard errors are the bar: with few seeds that is a weak one."""
    if len(difference) < 3:
        return f"{what}: too few seeds to tell."
    middle, error = mean(difference), stdev(difference) / len(difference) ** 0.5
    if abs(middle) <= 2 * error:
        return f"{what}: not distinguishable from the baseline with these {len(difference)} seeds."
    return f"{what}: MoEx is {'lower' if middle < 0 else 'higher'} than the baseline, by more than two standard errors."


def report(results: dict[str, list[tuple[float, float]]]) -> str:
    lines = [f"{'mean ± standard error':<29}{'test error %':>15}{'NLL':>18}"]
    for arm, rows in results.items():
        error, nll = ([row[column] for row in rows] for column in (0, 1))
        lines.append(f"  {arm:<27}{with_error(error, '.2f'):>15}{with_error(nll, '.3f'):>18}")
    lines += ["", "paired differences"]
    for other in [arm for arm in results if arm != "MoEx"]:
        error, nll = (differences(results, "MoEx", other, column) for column in (0, 1))
        lines.append(f"  {'MoEx − ' + other:<27}{with_error(error, '+.2f'):>15}{with_error(nll, '+.3f'):>18}")
    error, nll = (differences(results, "MoEx", "baseline", column) for column in (0, 1))
    return "\n".join([*lines, "", verdict(error, "Test error"), verdict(nll, "NLL")])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Handwritten digits with and without Moment Exchange.")
    parser.add_argument("--seeds", type=int, default=6, help="how many times each arm is trained")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--train-size", type=int, default=200, help="training images, the same number of each class")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more threads only get in each other's way in a network of this size
    x_train, y_train, x_test, y_test = digits()
    results: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    started = time.perf_counter()
    for seed in range(options.seeds):
        rows = balanced_subset(y_train, options.train_size, stream(seed, 0, "subset"))
        for name, arm in ARMS.items():
            model = train(arm, x_train[rows], y_train[rows], seed=seed, epochs=options.epochs)
            results[name].append(evaluate(model, x_test, y_test))
        errors = ", ".join(f"{name} {rows[-1][0]:.1f}" for name, rows in results.items())
        print(f"seed {seed + 1} of {options.seeds}, {time.perf_counter() - started:.0f} s, test error %: {errors}")
    print("\n" + report(results))
    print("\nA quickstart, not evidence: 8×8 images, a tiny network, nothing tuned, and few seeds.")


if __name__ == "__main__":
    main()
