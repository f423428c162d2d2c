"""Comparisons as reports meet them, the awkward ones too: numbers that are chosen, with learning curves."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from momentex.comparison.contrasts import of_arms
from momentex.comparison.result import Arm, Comparison, Outcome
from tests.comparisons import OURS

ARMS = ("baseline", "moex", "labels_only", "lam1")
HOSTILE = "</style><script>alert(1)</script>&amp;\"'`|*_\\[x](y){$%#\x00\nnew line"


def trained(
    seeds: int, arms: Sequence[str] = ARMS, *, failed: Collection[tuple[str, int]] = (), epochs: int = 30
) -> tuple[Outcome, ...]:
    """Outcomes of runs whose error falls to about 6 %, in each arm a little lower than in the one before."""
    draw = random.Random(0)
    outcomes = []
    for seed in range(seeds):
        shared = draw.gauss(0, 0.8)
        for place, arm in enumerate(arms):
            level, curve = 6 + shared - 0.25 * place + draw.gauss(0, 0.3), list[dict[str, float]]()
            for epoch in range(1, epochs + 1):
                error = level + 70 * math.exp(-epoch / 4) + draw.gauss(0, 1.2) * math.exp(-epoch / 25)
                curve.append(
                    {"epoch": epoch, "loss": error / 20, "error": error, "nll": error / 15, "calibration": error / 3}
                )
            last, best = curve[-1], min(curve, key=lambda row: row["error"])
            outcome = Outcome(
                arm=arm,
                seed=seed,
                last={name: last[name] for name in ("error", "nll", "calibration")},
                best={name: best[name] for name in ("epoch", "error", "nll", "calibration")},
                curve=tuple(curve),
                seconds=14 + place + draw.gauss(0, 0.5),
            )
            lost = Outcome(arm=arm, seed=seed, failure="RunError: the loss is nan")
            outcomes.append(lost if (arm, seed) in failed else outcome)
    return tuple(outcomes)


def runs(
    seeds: int, names: Sequence[str] = ARMS, *, failed: Collection[tuple[str, int]] = (), **changes: Any
) -> Comparison:
    """A comparison of them."""
    pairs, beforehand = of_arms(names)
    settings: dict[str, Any] = {
        "title": "cifar10.resnet20_5k",
        "arms": tuple(Arm(name=arm, title=arm.replace("_", " "), what=f"What {arm} does.") for arm in names),
        "seeds": tuple(range(seeds)),
        "outcomes": trained(seeds, names, failed=failed),
        "contrasts": pairs,
        "beforehand": beforehand,
        "facts": {"command": "momentex compare cifar10.resnet20_5k --seeds 5", "hardware": "2 cores", "torch": "2.9.0"},
        "recipe": OURS | {"epochs": 30, "data": {"name": "cifar10", "train_size": 5000}},
    }
    return Comparison(**settings | changes)


def of_numbers(title: str, numbers: dict[str, list[dict[str, float]]], metric: str, **changes: Any) -> Comparison:
    """Of a function of the user's own."""
    arms = list(numbers)
    return Comparison(
        title=title,
        arms=tuple(Arm(name=arm) for arm in arms),
        seeds=tuple(range(len(numbers[arms[0]]))),
        outcomes=tuple(Outcome(arm=a, seed=s, last=row) for a in arms for s, row in enumerate(numbers[a])),
        contrasts=tuple((arm, arms[0]) for arm in arms[1:]),
        metric=metric,
        **changes,
    )


def hostile() -> Comparison:
    """Every text that a user can choose is one that breaks pages."""
    found = runs(3, ["baseline", "moex"], failed={("moex", 1)})
    return replace(
        found,
        title=HOSTILE,
        arms=tuple(replace(arm, title=f"{arm.name} {HOSTILE}", what=HOSTILE) for arm in found.arms),
        outcomes=tuple(replace(o, failure=HOSTILE) if o.failure else o for o in found.outcomes),
        facts={"command": HOSTILE, HOSTILE: HOSTILE},
        notes=(HOSTILE,),
    )


AWKWARD: dict[str, Comparison] = {
    "twenty seeds": runs(20),
    "one seed": runs(1),
    "two seeds": runs(2),
    "failures": runs(4, failed={("moex", 1), *(("lam1", seed) for seed in range(4))}),
    "nothing": runs(2, failed={(arm, seed) for arm in ARMS for seed in range(2)}),
    "one arm": runs(3, ["moex"]),
    "apart": runs(3, contrasts=(), notes=("These runs differ in more than what an arm is: epochs.",)),
    "many arms, long names": runs(3, [*ARMS, *(f"an_arm_whose_name_{'goes_on' * 12}_{i}" for i in range(5))]),
    "paper": runs(3, arms=tuple(Arm(name=arm, paper=(6.82, 0.23) if arm == "baseline" else None) for arm in ARMS)),
    "one epoch": runs(3, outcomes=trained(3, epochs=1)),
    "not a number": runs(3, outcomes=tuple(
        replace(o, last={**o.last, "nll": math.nan}) if (o.arm, o.seed) == ("moex", 2) else o for o in trained(3)
    )),
    "the same": of_numbers("same", {"a": [{"error": 1.0}] * 3, "b": [{"error": 1.0}] * 3}, "error"),
    "huge and tiny": of_numbers(
        "huge",
        {a: [{"loss": 1e12 * (s + 1) * k, "small": 1e-9 * (s + k), "acc": s * 0.1} for s in range(3)]
         for a, k in (("a", 1.0), ("b", 1.3))},
        "loss",
        higher=("acc",),
    ),
    "hostile": hostile(),
}  # fmt: skip
