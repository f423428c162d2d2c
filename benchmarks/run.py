"""`make bench`: measure everything, print every bar and whether it holds, write one JSON file.

python -m benchmarks.run                     everything on the CPU, about 15 minutes
python -m benchmarks.report costs            then: what was measured, into the README
python -m benchmarks.run --quick             the smallest shape only
python -m benchmarks.run --device cuda
python -m benchmarks.run --only step
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import accuracy, memory, operator, step
from benchmarks.bars import Bar, judge
from benchmarks.measure import command, machine

RESULTS = Path(__file__).parent / "results"
PARTS = ("import", "memory", "accuracy", "step", "operator")
IMPORT = "import time, torch; t = time.perf_counter(); from momentex import *; print(time.perf_counter() - t)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, help="file to write; default benchmarks/results/DEVICE.json")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "command": command("benchmarks.run", sys.argv[1:]),
    }
    print(*(f"{name}: {value}" for name, value in results["machine"].items()), sep="\n", flush=True)
    for part in options.only:
        results |= run(part, options)
    bars = judge(results)
    results["bars"] = [bar.as_dict() for bar in bars]
    show(bars)
    out = options.out or RESULTS / f"{options.device.type}{'-quick' if options.quick else ''}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rounded(results), indent=1) + "\n")
    print(f"\nwritten to {out}")


def run(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """The results of one part, under its key."""
    print(f"\n{part}", flush=True)
    if part == "import":
        seconds = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(7)]
        return {"import_seconds": statistics.median(seconds)}
    if part == "memory":
        cases = [operator.Case(o, (128, 16, 32, 32), "NCHW", d) for d in operator.DTYPES for o in operator.OVERS]
        return {"memory": [memory.measure(case) for case in cases]}
    if part == "accuracy":
        return {"accuracy": accuracy.measure(quick=options.quick)}
    if part == "step":
        return {"step": step.measure(options.device, rounds=2 * options.rounds)}
    rows = []
    for row in operator.measure(options.device, rounds=options.rounds, quick=options.quick):
        print(_line(row), flush=True)
        rows.append(row)
    return {"operator": rows}


def show(bars: list[Bar]) -> None:
    """The verdicts, as a table."""
    print(f"\n{'bar':<58} {'allowed':<34} {'median [min, max] over cases':<30} verdict")
    for bar in bars:
        late = f"; {bar.not_counted} not counted: machine not idle" if bar.not_counted else ""
        print(f"{bar.name:<58} {bar.allowed:<34} {bar.measured:<30} {bar.verdict}{late}")


def _line(row: dict[str, Any]) -> str:
    ratios = (f"{name} {row['to_algorithm_1'][name]['median']:.3f}" for name in ("eager", "compiled", "floor"))
    name = f"{row['over']:<6} {'×'.join(map(str, row['shape'])):<14} {row['memory_format']:<14} {row['dtype']:<9}"
    late = "" if row["counted"] else "   not counted"
    return f"{name} Algorithm 1 {row['milliseconds']['algorithm_1']:7.2f} ms   × {'  '.join(ratios)}{late}"


def rounded(value: Any) -> Any:
    """To four digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
