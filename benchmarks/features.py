"""What the methods on features cost in a training step of ResNet-20, as ratios to the plain step within a round.

python -m benchmarks.features           # measure, write benchmarks/results/features.json and the costs in docs/cards
python -m benchmarks.features --cards   # write the costs in docs/cards from the committed measurement

Every variant has a model of its own with the same weights; `plain again` shows what the measurement can tell.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import interleaved, machine
from momentex.feature.branch import LinearDecay
from momentex.feature.dropblock import DropBlock
from momentex.feature.manifold_mixup import ManifoldMixup
from momentex.feature.shakedrop import ShakeDrop
from momentex.feature.stochastic_depth import StochasticDepth
from momentex.models.cifar.resnet import resnet20

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/features.json"
CARDS = ROOT / "docs/cards"
START, END = "<!-- cost -->", "<!-- /cost -->"
METHODS = ("manifold_mixup", "dropblock", "shakedrop", "stochastic_depth")
BATCH = 128
Step = Callable[[], None]


def finish(model: nn.Module, loss: Tensor) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    loss.backward()


def steps() -> dict[str, Step]:
    """Forward, loss and backward of 128 images of 32×32, with each method at work in every step."""
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def plain(model: nn.Module) -> Step:
        return lambda: finish(model, F.cross_entropy(model(x), y))

    mixed = resnet20()
    mixup = ManifoldMixup(mixed, ("conv1", "layer2", "layer3"))

    def step_with_mixup() -> None:
        with mixup(y) as targets:
            loss = targets.cross_entropy(mixed(x))
        finish(mixed, loss)

    dropped = resnet20()
    DropBlock(dropped, ("layer2", "layer3"), p=0.1, block_size=4)
    unchanged = resnet20()
    return {
        "plain": plain(unchanged),
        "manifold_mixup": step_with_mixup,
        "dropblock": plain(dropped),
        "shakedrop": plain(resnet20(branch=LinearDecay(ShakeDrop))),
        "stochastic_depth": plain(resnet20(branch=LinearDecay(StochasticDepth))),
        "plain again": plain(unchanged),
    }


def measure(rounds: int) -> dict[str, Any]:
    device = torch.device("cpu")
    timing = interleaved(steps(), gate="plain", rounds=rounds, device=device)
    return {
        "machine": machine(device),
        "rounds": rounds,
        "batch": BATCH,
        "counted": timing.counted,
        "plain_milliseconds": float(f"{1000 * timing.median('plain'):.4g}"),
        "ratios": {
            name: {key: float(f"{value:.4g}") for key, value in timing.ratio(name, "plain").items()}
            for name in (*METHODS, "plain again")
        },
    }


def cost(results: dict[str, Any], card: str) -> str:
    """What a card says of its method's cost."""
    ratio, again = results["ratios"][card], results["ratios"]["plain again"]
    facts = results["machine"]
    return (
        f"{ratio['median']:.3f} times a plain training step of ResNet-20, {results['batch']} images of 32×32 on a CPU "
        f"(quartiles {ratio['q25']:.3f} and {ratio['q75']:.3f}; the plain step again {again['q25']:.3f} and "
        f"{again['q75']:.3f}).\n\n<sub>`python -m benchmarks.features`, {facts['date']}: {facts['cpu']}, threads: "
        f"{facts['threads']}, torch {facts['torch']}</sub>"
    )


def filled(page: str, card: str, results: dict[str, Any]) -> str:
    """The page with its cost."""
    before, rest = page.split(START)
    return f"{before}{START}\n{cost(results, card)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cards", action="store_true", help="measure nothing; write the cards")
    options = parser.parse_args()
    if not options.cards:
        RESULTS.write_text(json.dumps(measure(options.rounds), indent=1) + "\n", encoding="utf8")
    results = json.loads(RESULTS.read_text(encoding="utf8"))
    for card in METHODS:
        path = CARDS / f"{card}.md"
        path.write_text(filled(path.read_text(encoding="utf8"), card, results), encoding="utf8")


if __name__ == "__main__":
    main()
