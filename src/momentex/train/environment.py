"""What a result depends on besides recipe and data: versions, commit, hardware, the user's own file."""

from __future__ import annotations

import os
import platform
import subprocess
import zlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from momentex.train.place import Place

PACKAGES = ("momentex", "torchvision", "numpy", "accelerate", "safetensors", "timm")


def environment(place: Place, model: str) -> dict[str, Any]:
    """As it goes into run.json."""
    return {
        "device": torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else place.device.type,
        "processes": place.world,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))} | {"torch": str(torch.__version__)},
        "commit": _commit(),
        "model_file": _digest(model),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that momentex runs from, if it is one: an environment may lie in somebody else's."""
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    return _git("describe", "--always", "--dirty", "--abbrev=12") if tracked else None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _digest(model: str) -> str | None:
    """Of the file in which the model is written, where the recipe names one."""
    try:
        content = Path(model.rpartition(":")[0]).expanduser().read_bytes()
    except OSError:  # no file: a library, a module
        return None
    return f"crc32 {zlib.crc32(content):08x}"
