"""What a sweep costs beside its runs, and what two of them at a time gain.

python -m benchmarks.sweep                   # writes benchmarks/results/sweep-cpu.json, eight minutes on two cores
python -m benchmarks.sweep --seconds 10      # shorter runs: the overhead weighs more than in runs of a minute

    overhead   the wall time of `momentex sweep … --workers 1`, from the start of the command to its end, over the sum
               of the seconds that its runs spent on training and evaluation
    scaling    that wall time over the one with --workers 2; every run has one thread

The machine is idle if others used less than a tenth of a core meanwhile, and a piece of work of fixed size took about
as long every time. Otherwise nothing is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measure import IDLE_FACTOR, command, machine
from momentex.recipes import find
from momentex.sweep.machine import cores
from momentex.train.record import Record

RESULTS = Path(__file__).parent / "results"
RECIPE = "digits"
PROBE = 4  # epochs of the run that says how long an epoch takes; the first one is slower than the others
OTHERS = 0.1  # cores
BARS = {"overhead": 1.05, "scaling": 1.8}


class Swept(NamedTuple):
    """A sweep that was run: seconds from start to end, those of its runs, cores that others used meanwhile."""

    wall: float
    runs: list[float]
    others: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", default=60.0, type=float, help="so long should a run take")
    parser.add_argument("--runs", default=4, type=int, help="an even number")
    parser.add_argument("--out", type=Path, default=RESULTS / "sweep-cpu.json")
    options = parser.parse_args()
    if options.runs < 2 or options.runs % 2:
        parser.error(f"--runs is {options.runs}; it is an even number, 2 or more.")
    with tempfile.TemporaryDirectory() as folder:
        floors = [floor()]
        epochs = length(options.seconds, Path(folder) / "probe")
        print(f"{options.runs} runs of {epochs} epochs", flush=True)
        one = swept(epochs, options.runs, 1, Path(folder) / "one")
        floors.append(floor())
        two = swept(epochs, options.runs, 2, Path(folder) / "two")
        floors.append(floor())
    results = judged(one, two, statistics.median(floors) / min(floors))
    results = {
        "machine": machine(torch.device("cpu")),
        "command": command("benchmarks.sweep", sys.argv[1:]),
    } | results
    show(results)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


def length(seconds: float, folder: Path) -> int:
    """So many epochs take about so long."""
    times = Record(_command(PROBE, 1, 1, folder, ["0.9"])).times()[1:]
    each = statistics.fmean(row["seconds"] + row.get("seconds_of_evaluation", 0.0) for row in times)
    return max(PROBE, round(seconds / each))


def swept(epochs: int, runs: int, workers: int, folder: Path) -> Swept:
    """Half of the runs are the second point's."""
    busy, own, began = _busy(), _own(), time.perf_counter()
    _command(epochs, runs // 2, workers, folder)
    wall = time.perf_counter() - began
    others = None if busy is None else max(0.0, ((_busy() or 0.0) - busy - (_own() - own)) / wall)
    seconds = [_seconds(path.parent) for path in folder.rglob("times.jsonl")]
    return Swept(wall, seconds, others)


def _command(epochs: int, seeds: int, workers: int, folder: Path, lams: Sequence[str] = ("0.8", "0.9")) -> Path:
    """Run the sweep; the directory of its first run."""
    arguments = [
        *(sys.executable, "-m", "momentex", "sweep", RECIPE, "--grid", "exchange.lam", *lams),
        *("--epochs", str(epochs), "--evaluation.every", str(epochs), "--seeds", str(seeds), "--quiet"),
        *("--workers", str(workers), "--threads", "1", "--to", str(folder)),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return next(path.parent for path in sorted(folder.rglob("times.jsonl")))


def _seconds(run: Path) -> float:
    return sum(row["seconds"] + row.get("seconds_of_evaluation", 0.0) for row in Record(run).times())


# --- is anybody else at work? ----------------------------------------------------------------------------------------


def floor() -> float:
    """The seconds of a piece of work of fixed size; the median of some."""
    torch.set_num_threads(1)
    x = torch.randn(256, 256)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(20):
            x @ x
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _busy() -> float | None:
    """Seconds that all cores together have been at work, since the machine was started."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Likewise of this process, and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# --- what it says ----------------------------------------------------------------------------------------------------


def judged(one: Swept, two: Swept, idle_ratio: float) -> dict[str, Any]:
    """Both numbers, and whether they count."""
    others = [swept.others for swept in (one, two) if swept.others is not None]
    measured = {"overhead": one.wall / sum(one.runs), "scaling": one.wall / two.wall}
    counted = idle_ratio <= IDLE_FACTOR and all(used <= OTHERS for used in others) and cores() >= 2
    held = {"overhead": measured["overhead"] <= BARS["overhead"], "scaling": measured["scaling"] >= BARS["scaling"]}
    return {
        "recipe": RECIPE,
        "model": find(RECIPE).model,
        "one": {"wall": round(one.wall, 2), "runs": [round(seconds, 2) for seconds in one.runs]},
        "two": {"wall": round(two.wall, 2), "runs": [round(seconds, 2) for seconds in two.runs]},
        "others_cores": [round(used, 3) for used in others],
        "idle_ratio": round(idle_ratio, 3),
        "counted": counted,
        "bars": [
            {
                "name": name,
                "allowed": BARS[name],
                "measured": round(measured[name], 4),
                "verdict": "not counted" if not counted else "holds" if held[name] else "does not hold",
            }
            for name in BARS
        ],
    }


def show(results: dict[str, Any]) -> None:
    """As a table."""
    for which in ("one", "two"):
        runs = ", ".join(f"{seconds:.1f}" for seconds in results[which]["runs"])
        print(f"--workers {1 if which == 'one' else 2}: {results[which]['wall']:.1f} s; runs of {runs} s")
    print(
        f"others used {results['others_cores']} cores; the floor's median over its minimum {results['idle_ratio']:.2f}"
    )
    signs = {"overhead": "≤", "scaling": "≥"}
    for bar in results["bars"]:
        allowed = f"{signs[bar['name']]} {bar['allowed']}"
        print(f"{bar['name']:<10} {bar['measured']:.3f}  {allowed:<8} {bar['verdict']}")


if __name__ == "__main__":
    main()
