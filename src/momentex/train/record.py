"""The run directory: who may write there, what recipe it is of, and its metrics.

recipe.json       the resolved recipe
run.json          seed; for every start: when, command, versions, commit, hardware
metrics.jsonl     a line for each epoch; the same bytes however often the run was interrupted
times.jsonl       a line for each epoch: seconds, images per second, and what the exchange did
checkpoints/      the last two positions
best.safetensors  the weights of the best epoch
.lock             locked by the process that trains
error.txt         of a run among many: why it failed, until it does not
output.txt        of a run among many: what it printed
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from momentex.errors import RunError, RunInUse
from momentex.train.recipe import Recipe
from momentex.train.resolved import changed, differences, from_json, to_json
from momentex.train.whole import AGAIN, write_whole

LOCK = ".lock"
RECIPE = "recipe.json"
FAILURE = "error.txt"
OUTPUT = "output.txt"
OWN = (LOCK, f".{RECIPE}.part", FAILURE, OUTPUT)  # what a run that ended at its very beginning leaves behind


@dataclass(frozen=True)
class Record:
    """A run directory."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def recipe(self) -> Recipe:
        """The recipe of this directory."""
        path = self.folder / RECIPE
        try:
            found = from_json(json.loads(path.read_text(encoding="utf8")))
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.folder} is no run directory: it has no {RECIPE}.") from None
        except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
            raise RunError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
        if not isinstance(found, Recipe):
            raise RunError(f"{path} holds no recipe.")
        return found

    def look(self, recipe: Recipe) -> bool:
        """Whether this is a run directory, which is then of `recipe`; where there could be none, a RunError."""
        if (self.folder / RECIPE).exists():
            if lines := differences(self.recipe(), recipe):
                changes = "".join(f"\n  {line}" for line in lines)
                raise RunError(
                    f"{self.folder} holds a run of another recipe:{changes}\nName another folder with --to, or remove "
                    "this one."
                )
            return True
        foreign = [p.name for p in self.folder.iterdir() if p.name not in OWN] if self.folder.is_dir() else []
        if foreign:
            raise RunError(
                f"{self.folder} is not empty and no run directory (it has {', '.join(sorted(foreign)[:3])}). Name "
                "another folder with --to."
            )
        return False

    def claim(self, recipe: Recipe) -> None:
        """Make this the directory of `recipe`, or see that it is; nothing is overwritten otherwise."""
        if not self.look(recipe):
            write_whole(self.folder / RECIPE, _pretty(to_json(recipe)))

    def describe(self, command: str, seed: int, environment: Mapping[str, Any]) -> list[str]:
        """Add this start to run.json; in what its environment differs from that of the start before."""
        path = self.folder / "run.json"
        before = _starts(path)
        last = before[-1] if before else environment
        changes = changed({name: last.get(name) for name in environment}, environment)
        start = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": command, **environment}
        write_whole(path, _pretty({"seed": seed, "starts": [*before, start]}))
        return changes

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        return list(_lines(self._metrics))

    def times(self) -> list[dict[str, Any]]:
        """The lines of times.jsonl that are whole."""
        return list(_lines(self.folder / "times.jsonl"))

    def starts(self) -> list[dict[str, Any]]:
        """When, by which command, and on what the run was started; none, if that is not known."""
        return _starts(self.folder / "run.json")

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Make metrics.jsonl what a checkpoint says, and forget the times of later epochs.

        Whether there was something else than what a run leaves behind that was interrupted: fewer lines, or more.
        """
        wanted = "".join(map(_line, rows)).encode()
        found = self._metrics.read_bytes() if self._metrics.exists() else b""
        if found != wanted:
            write_whole(self._metrics, wanted)
        times = self.folder / "times.jsonl"
        if times.exists():
            kept = [line for line in _lines(times) if line.get("epoch", 0) <= len(rows)]
            write_whole(times, "".join(map(_line, kept)).encode())
        return not (wanted.startswith(found) or found.startswith(wanted))

    def add(self, name: str, row: Mapping[str, Any]) -> None:
        """A line for an epoch, on the disk when this returns."""
        path = self.folder / name
        try:
            with path.open("a", encoding="utf8") as file:
                file.write(_line(row))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{path} could not be written ({error.strerror or error}). Make room, and {AGAIN}."
            ) from error


@contextmanager
def locked(folder: Path) -> Iterator[Record]:
    """The run directory, for one process at a time; the lock ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+", encoding="utf8")
    except OSError as error:
        raise RunError(f"{folder} cannot be a run directory: {error.strerror or error}.") from error
    with file:
        _acquire(folder, file)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield Record(folder)


def look(folder: Path, recipe: Recipe) -> None:
    """What `claim` would refuse, found out before any work is done; nothing is changed."""
    Record(folder).look(recipe)
    with (
        suppress(FileNotFoundError, NotADirectoryError, PermissionError),
        (folder / LOCK).open(encoding="utf8") as file,
    ):
        _acquire(folder, file)


def _acquire(folder: Path, file: IO[str]) -> None:
    try:
        _lock(file.fileno())
    except (BlockingIOError, PermissionError):
        file.seek(0)
        raise RunInUse(
            f"{folder} is in use by another process ({file.read().strip() or 'unknown'}). Wait for it, or name "
            "another folder with --to."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder} cannot be locked ({error.strerror or error}): two processes could train there. Name a folder on "
            "another file system with --to."
        ) from error


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _starts(path: Path) -> list[dict[str, Any]]:
    """Of run.json; none, if that is not there or not what was written."""
    try:
        found = json.loads(path.read_text(encoding="utf8"))["starts"]
        return [start for start in found if isinstance(start, dict)]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """A line that was being written when the process ended is not whole, and left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            return
        if isinstance(row, dict):
            yield row


def _line(row: Mapping[str, Any]) -> str:
    return f"{json.dumps(row)}\n"


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
