"""Compares the arms of `digits` with 50 to 800 training images: python -m benchmarks.digits_sizes [--workers 1]

Every size has the same number of steps, 160 of 25 images, and so fewer epochs the more images there are. The seeds are
0 to 7, the images those for testing; nothing was chosen on them. Into results/digits_sizes.json, which
docs/draw_digits.py draws.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.keep import RESULTS, write
from momentex.comparison.design import designed
from momentex.comparison.result import to_json
from momentex.recipes import arms, find, usual
from momentex.train.recipe import Evaluation, Recipe
from momentex.verbs.compare import Compare, trained

SIZES = (50, 100, 200, 400, 800)
SEEDS = range(8)
COMMAND = "python -m benchmarks.digits_sizes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workers", type=int, help="so many runs side by side; one for each core, unless this is given"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/digits_sizes"), help="the folder of the comparisons")
    options = parser.parse_args()
    rows = []
    for size in SIZES:
        design = designed(f"digits, {size} images", recipe(size), arms=arms.DEFAULT, seeds=SEEDS, command=COMMAND)
        found = trained(design, options.runs / str(size), Compare(workers=options.workers, threads=1))
        short = replace(found, outcomes=tuple(replace(outcome, curve=()) for outcome in found.outcomes))
        rows.append({"train_size": size, "comparison": to_json(short)})
        write(RESULTS / "digits_sizes.json", {"command": COMMAND, "sizes": rows})


def recipe(size: int) -> Recipe:
    """`digits` with its exchange, on so many images, evaluated at the end."""
    start = find("digits")
    assert start.data.train_size is not None
    epochs = start.epochs * start.data.train_size // size
    return replace(
        start,
        data=replace(start.data, train_size=size),
        epochs=epochs,
        evaluation=Evaluation(every=epochs),
        exchange=usual("digits").exchange,
    )


if __name__ == "__main__":
    main()
