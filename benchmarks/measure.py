"""Timing that can be believed on a machine that others use: interleaved rounds, paired ratios, an idle gate."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], object]

IDLE_FACTOR = 2.0  # the machine is idle if the floor's median is within this factor of its minimum
TRIES = 4


@dataclass(frozen=True)
class Timing:
    """Seconds of every round, by variant; all variants ran once in each round, in turn."""

    seconds: dict[str, list[float]]
    counted: bool
    idle_ratio: float

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> dict[str, float]:
        """Median and quartiles over rounds of name / to within a round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        ratios = sorted(a / b for a, b in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        return {"median": middle, "q25": low, "q75": high}


def command(module: str, arguments: Sequence[str]) -> str:
    """What measures this again, wherever it was written to."""
    kept = list(arguments)
    if "--out" in kept:
        at = kept.index("--out")
        kept = kept[:at] + kept[at + 2 :]
    return " ".join([module, *kept])


def interleaved(
    variants: Mapping[str, Work],
    *,
    gate: str,
    rounds: int,
    device: torch.device,
    repeat: int = 1,
    wait: float = 5.0,
) -> Timing:
    """Time all variants in turn, `rounds` times. Again, after a pause, while `gate` shows that others are at work."""
    for work in variants.values():
        for _ in range(3):
            work()
    best: Timing | None = None
    for attempt in range(TRIES):
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, work in variants.items():
                seconds[name].append(_time(work, device, repeat))
        idle = statistics.median(seconds[gate]) / min(seconds[gate])
        if best is None or idle < best.idle_ratio:
            best = Timing(seconds, idle <= IDLE_FACTOR, idle)
        if best.counted:
            break
        if attempt < TRIES - 1:
            time.sleep(wait)
    assert best is not None
    return best


def _time(work: Work, device: torch.device, repeat: int) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeat):
            work()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1000 / repeat
    begin = time.perf_counter()
    for _ in range(repeat):
        work()
    return (time.perf_counter() - begin) / repeat


def machine(device: torch.device) -> dict[str, Any]:
    """What has to stand beside every number."""
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in info.read_text()]
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores, {' '.join(flags)}"
    return platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=here, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or "unknown"
