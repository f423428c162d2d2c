"""What this machine has for runs: cores and GPUs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from momentex.errors import RunError

DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, Windows' subsystem for Linux
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container


def cores() -> int:
    """Those that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or one without limit ("max")
        return allowed


def gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    if sys.platform == "linux" and not any(Path(device).exists() for device in DEVICES):
        return []
    import torch  # here, since it takes seconds, and nothing else of a sweep needs it

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")][:count]


def free_port() -> int:
    """One that nobody listens to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def shared(jobs: int, workers: int | None, threads: int | None, devices: int, processes: int = 1) -> tuple[int, int]:
    """How many runs at a time, and threads for each of their processes. By default, a process for every GPU, or else
    for every core.
    """
    for name, value in (("workers", workers), ("threads", threads), ("processes", processes)):
        if value is not None and value < 1:
            raise RunError(f"{name} is {value}; it must be 1 or more.")
    if 0 < devices < processes:
        raise RunError(f"a run of {processes} processes needs as many GPUs, and there are {devices}: take fewer.")
    here = cores()
    side_by_side = max(1, min(workers or devices // processes or here // ((threads or 1) * processes), jobs))
    named = os.environ.get("OMP_NUM_THREADS", "")
    most = int(named) if named.isdecimal() and int(named) else here
    return side_by_side, threads or max(1, min(here // (side_by_side * processes), most))
