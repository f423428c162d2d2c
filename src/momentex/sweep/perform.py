"""Train one job in this process, whatever becomes of it: on this machine and on a cluster alike."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from momentex.errors import MomentexError, RunInUse
from momentex.sweep.job import Job, note
from momentex.sweep.pruning import Pruned, Pruning, pruned
from momentex.train.engine import fit
from momentex.train.progress import Reporter
from momentex.train.record import OUTPUT

PATIENCE = 20.0  # seconds for which a process that was told to stop may still be writing its checkpoint


class Ended(NamedTuple):
    """What became of it. `spoilt`: the process had an error of which it may not have recovered."""

    failure: str | None
    seconds: float
    spoilt: bool = False


def perform(job: Job, reporter: Reporter, *, command: str) -> Ended:
    """Train the job, or go on with it; what it prints goes into its directory. Ctrl-C raises KeyboardInterrupt."""
    began, failure, spoilt = time.monotonic(), None, False
    with captured(job.to / OUTPUT):
        try:
            failure = pruned(job)  # before it was interrupted
            if failure is None:
                _fit(job, Pruning(job, reporter) if job.limits else reporter, command)
        except Pruned as end:
            failure = str(end)
        except MomentexError as error:
            failure = str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a run may fail in any way
            traceback.print_exc()
            failure, spoilt = f"{_described(error)}; {OUTPUT} has the traceback", True
    if first():
        note(job, failure)
    return Ended(failure, time.monotonic() - began, spoilt)


def first() -> bool:
    """Whether this is the first process of its run, which writes; most runs have one."""
    return os.environ.get("RANK", "0") == "0"


def _fit(job: Job, reporter: Reporter, command: str) -> None:
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            fit(job.recipe, job.to, reporter=reporter, command=command)
            return
        except RunInUse:
            if time.monotonic() > patience:
                raise
            time.sleep(0.2)


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


@contextmanager
def captured(path: Path) -> Iterator[None]:
    """What this process and those that it starts write to stdout and stderr goes to the end of a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError:  # nothing can be written there, which is the run's own error in a moment
        yield
        return
    with file:
        sys.stdout.flush()
        sys.stderr.flush()
        before = [os.dup(1), os.dup(2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
    with suppress(OSError):
        if first() and path.stat().st_size == 0:
            path.unlink()
