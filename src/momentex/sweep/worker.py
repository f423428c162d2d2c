"""A process that trains one job after the other; `local` starts it, sends jobs to its stdin and reads its stdout.

Every message is a line of JSON. When stdin ends, whoever sent the jobs has gone or wants no more: the run that is under
way stops after its step, with a checkpoint, as after Ctrl-C.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from momentex.sweep.job import Job, decoded
from momentex.sweep.perform import first, perform

OFTEN = 1.0  # seconds between two messages within an epoch
STOPPED = 130
ALONE = 30.0  # seconds after which a process that has failed believes that it is the only one
LEFT = 1

Tell = Callable[[Mapping[str, Any]], None]


def main(threads: int, command: str) -> None:
    """Until stdin ends."""
    # a shell without job control starts what is in the background with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(threads)
    tell = _own_stdout()
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    code = 0
    try:
        tell({"ready": True})
        while (job := jobs.get()) is not None:
            tell({"began": True})
            ended = perform(job, Telling(tell), command=command)
            tell({"ended": ended._asdict()})
            if ended.failure is not None and not first():
                _leave_unless_all_failed(jobs)
    except KeyboardInterrupt:
        code = STOPPED
    sys.stderr.flush()
    os._exit(code)  # nothing is left to do, and threads of libraries may wait for ever


def _own_stdout() -> Tell:
    """Writes to the stream for messages. What anybody prints goes to stderr."""
    told = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)

    def tell(message: Mapping[str, Any]) -> None:
        if not first():
            return
        with suppress(BrokenPipeError):  # whoever read has gone, and the end of stdin says so too
            told.write(f"{json.dumps(message)}\n")
            told.flush()

    return tell


def _leave_unless_all_failed(jobs: queue.SimpleQueue[Job | None]) -> None:
    """If this process has failed alone, the others of its run wait for it: they are ended when it ends."""
    patience = time.monotonic() + ALONE
    while jobs.empty():  # whoever sent the job has heard of its end, and sends another one or none
        if time.monotonic() > patience:
            os._exit(LEFT)
        time.sleep(0.05)


def _listen(jobs: queue.SimpleQueue[Job | None]) -> None:
    for line in sys.stdin:
        jobs.put(decoded(json.loads(line)))
    jobs.put(None)
    _thread.interrupt_main()


class Telling:
    """A reporter that sends messages: how many epochs are complete, and the row of each."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._steps, self._due = 1, 0.0

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        self._steps = steps
        self._tell({"at": first_epoch})

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due = now + OFTEN
            self._tell({"at": epoch + step / self._steps})

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._tell({"at": metrics["epoch"]})

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
