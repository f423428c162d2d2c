"""Checkpoints: one file of tensors and JSON, written whole or not at all, and read without ever running code.

The file is in the safetensors format: a JSON header, which also holds everything that is not a tensor, and raw bytes.
It is written beside its place, forced to the disk, and renamed; a checksum in the header tells a damaged one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from momentex.errors import RunError
from momentex.train.whole import AGAIN, write_whole

KEPT = 2  # the last one, and the one before it in case that the last one is damaged
SUFFIX = ".safetensors"
FACTS = "momentex"  # in the header


class Snapshot(NamedTuple):
    """Tensors by name, and everything else in JSON's types."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(path: Path, snapshot: Snapshot) -> None:
    """Put a snapshot at `path`, atomically: after a crash at any moment, the old file or the new one is there whole."""
    tensors, facts = _apart(snapshot.tensors), json.dumps(snapshot.facts)
    try:
        # under one name, since the format keeps several in any order: the same snapshot gives the same bytes
        content = save(tensors, metadata={FACTS: f"{_checksum(tensors, facts)} {facts}"})
    except KeyError as error:
        raise RunError(f"a checkpoint cannot hold tensors of {error}: the format has no such numbers.") from error
    write_whole(path, content)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, and no two in one storage, which the format does not allow (tied weights)."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        storage = here.untyped_storage().data_ptr()
        found[name] = here.clone() if storage in seen else here
        seen.add(storage)
    return found


def read(path: Path) -> Snapshot:
    """The snapshot at `path`; a RunError that names the file if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum, _, facts = header[FACTS].partition(" ")
        if _checksum(tensors, facts) != int(checksum):
            raise RunError(f"the checkpoint {path} is damaged: it does not hold what was written.")
        return Snapshot(tensors, json.loads(facts))
    except RunError:
        raise
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, OSError) as error:
        raise RunError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from None


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> int:
    """Of everything that `read` returns."""
    total = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


# --- the checkpoints of a run ----------------------------------------------------------------------------------------


def save_position(folder: Path, steps: int, snapshot: Snapshot) -> None:
    """Write the checkpoint after `steps` steps, and forget those that are older than the one before it.

    One that claims to be newer was passed over when the run went on, since it is damaged.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror or error}). Mend that, and {AGAIN}.") from error
    here = _at(folder, steps)
    write(here, snapshot)
    others = [path for path in _newest_first(folder) if path != here]
    older = [path for path in others if int(path.stem) < steps]
    for path in others:
        if path not in older[: KEPT - 1]:
            with suppress(OSError):
                path.unlink()


def newest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones. A RunError if all are damaged."""
    problems = []
    for path in _newest_first(folder):
        try:
            return read(path), problems
        except RunError as error:
            if not path.exists():  # the run that is going on here has written a newer one
                return newest(folder)
            problems.append(str(error))
    if problems:
        raise RunError(
            f"every checkpoint in {folder} is damaged: {' '.join(problems)} Remove the folder to start anew, or put a "
            "whole checkpoint there."
        )
    return None, []


def _at(folder: Path, steps: int) -> Path:
    return folder / f"{steps:09d}{SUFFIX}"


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal())
    return sorted(found, key=lambda path: int(path.stem), reverse=True)


# --- state of torch's objects, as tensors and JSON -------------------------------------------------------------------


def split(state: Any, name: str) -> Snapshot:
    """Nested dicts and lists of tensors and plain values, taken apart: `{"tensor": name}` stands for a tensor.

    >>> split({"lr": 0.1, "steps": [1, (2, None)]}, "rate").facts
    {'rate': {'dict': [['lr', 0.1], ['steps', {'list': [1, {'tuple': [2, None]}]}]]}}
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, at: str) -> Any:
        if isinstance(value, Tensor):
            while at in tensors:  # {"a.b": …} beside {"a": {"b": …}}
                at += "'"
            tensors[at] = value
            return {"tensor": at}
        if isinstance(value, Mapping):
            return {"dict": [[walk(key, at), walk(item, f"{at}.{key}")] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [walk(item, f"{at}.{i}") for i, item in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise RunError(
            f"{at} is a {type(value).__name__}, which a checkpoint cannot hold; it holds tensors, numbers, texts, and "
            "lists and dicts of those."
        )

    return Snapshot(tensors, {name: walk(state, name)})


def join(snapshot: Snapshot, name: str) -> Any:
    """What `split` was given.

    >>> join(split({"lr": 0.1, "steps": [1, (2, None)]}, "rate"), "rate")
    {'lr': 0.1, 'steps': [1, (2, None)]}
    """

    def walk(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return snapshot.tensors[content]
        if kind == "dict":
            return {walk(key): walk(item) for key, item in content}
        items = [walk(item) for item in content]
        return tuple(items) if kind == "tuple" else items

    return walk(snapshot.facts[name])


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Several as one; their names differ."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for snapshot in snapshots:
        tensors |= snapshot.tensors
        facts |= snapshot.facts
    return Snapshot(tensors, facts)
