"""What happens on a node of a cluster: is it fit for a run, and the run itself. `ray_cluster` sends it there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentex.errors import RunError, RunInUse
from momentex.sweep.job import Job, decoded
from momentex.sweep.local import run_local
from momentex.sweep.watch import Silent
from momentex.train.record import locked

PATIENCE = 180.0  # seconds until a node that was lost has noticed it itself, and a file system forgets its locks


@dataclass(frozen=True)
class Terms:
    """What all runs of a sweep have in common.

    at        the folder in which the sweep was started: relative paths in recipes are seen from there
    shared    a folder among the runs, locked for as long as the sweep goes on
    data      MOMENTEX_DATA, for nodes that have none
    """

    at: str
    shared: str
    threads: int
    processes: int
    command: str
    data: str | None = None


def unfit(terms: Terms) -> str | None:
    """Why this node cannot be used; None if it can."""
    for folder, is_what in ((terms.at, "where the sweep was started"), (terms.shared, "where its runs go")):
        if not Path(folder).is_dir():
            return f"does not see {folder}, {is_what}: all nodes need one file system"
    try:
        with locked(Path(terms.shared)):
            return (
                f"could lock {terms.shared}, which is locked already: locks of this file system do not reach other "
                "nodes, so that two could train one run"
            )
    except RunInUse:
        return None
    except RunError as error:
        return f"says: {error}"


def train(terms: Terms, job: Job) -> dict[str, Any]:
    """Train the job, or go on with it, in processes of its own: what came of it, and what was said."""
    os.chdir(terms.at)
    if terms.data is not None:
        os.environ.setdefault("MOMENTEX_DATA", terms.data)
    wait_until_free(job.to)
    heard = Heard()
    (finished,) = run_local(
        [job],
        workers=1,
        threads=terms.threads,
        processes=terms.processes,
        watch=heard,
        command=terms.command,
    )
    return {"failure": finished.failure, "seconds": finished.seconds, "said": heard.said}


def wait_until_free(folder: Path, patience: float = PATIENCE) -> None:
    """Whoever trained there before may live on for a while, on a node that was lost to the others and not to itself."""
    until = time.monotonic() + patience
    while True:
        try:
            with locked(folder):
                return
        except RunInUse:
            if time.monotonic() > until:
                return  # the run will find it in use, and say so
            time.sleep(0.5)
        except RunError:  # likewise
            return


class Heard(Silent):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


# --- as they are sent ------------------------------------------------------------------------------------------------


def fitness(terms: Mapping[str, Any]) -> dict[str, Any]:
    """`unfit`, of what can be sent."""
    return {"unfit": unfit(Terms(**terms))}


def run(terms: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """`train`, of what can be sent; on a node that has joined since the beginning and is not fit, nothing is done."""
    found = Terms(**terms)
    why = unfit(found)
    return {"unfit": why} if why else train(found, decoded(job))
