"""Runs side by side on this machine, in processes that import torch once and train one run after the other."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from momentex.errors import RunError
from momentex.sweep.job import Finished, Job, check_apart, encoded, is_complete, note
from momentex.sweep.machine import free_port, gpus, shared
from momentex.sweep.watch import Watch

ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
TRIES = 2  # of a run whose process ended without a word
ALONE = 60.0  # seconds that a process may take to end when another one of its run has
TOLD = 600  # characters of what a process printed, in an error


def run_local(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    threads: int | None = None,
    processes: int = 1,
    watch: Watch,
    command: str = "",
) -> list[Finished]:
    """Train the jobs, `workers` at a time with `threads` each; what came of them, in their order.

    A run of several `processes` has `threads` and a GPU for each of them. Complete runs are passed over, others go on
    where they stopped. A run whose process is killed goes on in another process, once; a run that fails does not stop
    the others. Ctrl-C stops all, each with a checkpoint, and raises KeyboardInterrupt; the second one does not wait for
    them.
    """
    jobs = list(jobs)
    check_apart(jobs)
    todo = [number for number, job in enumerate(jobs) if not is_complete(job)]
    ended = {number: Finished(job, None, 0.0) for number, job in enumerate(jobs) if number not in set(todo)}
    if todo:
        names = gpus()
        side_by_side, each = shared(len(todo), workers, threads, len(names), processes)
        watch.start([jobs[number] for number in todo], len(ended), side_by_side)
        shop = _Shop(jobs, todo, side_by_side, _Terms(each, tuple(names), command, processes), watch)
        try:
            with interrupted_by_all_signals():
                ended |= shop.run()
        finally:
            shop.close()
            watch.close()
    return [ended[number] for number in range(len(jobs))]


@contextmanager
def interrupted_by_all_signals() -> Iterator[None]:
    """SIGTERM and a terminal that goes away are as Ctrl-C."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDS:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- one process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Terms:
    """What all processes have in common."""

    threads: int
    devices: tuple[str, ...]  # their names, of GPUs
    command: str
    processes: int = 1

    def environments(self, place: int) -> list[dict[str, str]]:
        """Of the processes at this place. Threads are counted when libraries are loaded, hence here.

        Several find each other by what torchrun sets, which is what accelerate looks for.
        """
        found = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        if self.devices:
            first = place * self.processes
            mine = (self.devices[(first + i) % len(self.devices)] for i in range(self.processes))
            found["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        if self.processes == 1:
            return [found]
        world, port = str(self.processes), str(free_port())
        found |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [found | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self.processes)]

    def program(self) -> str:
        return (
            f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; "
            f"from momentex.sweep.worker import main; main({self.threads}, {self.command!r})"
        )


Inbox: TypeAlias = "queue.Queue[tuple[_Worker, dict[str, Any] | None]]"


class _Worker:
    """The processes of a run, what they are told, and threads that put what the first one answers into `inbox`:
    (worker, message), and (worker, None) when one of them has ended.
    """

    def __init__(self, place: int, terms: _Terms, inbox: Inbox) -> None:
        self.place, self.job = place, -1
        self.ready = False
        self.began = time.monotonic()
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", terms.program()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which tells the others
            )
            for environment in terms.environments(place)
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(process, inbox), daemon=True) for process in self._processes
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, process: subprocess.Popen[bytes], inbox: Inbox) -> None:
        assert process.stdout is not None
        with process.stdout as told:
            for line in told:
                with suppress(ValueError):  # a line that was cut off
                    inbox.put((self, json.loads(line)))
        process.wait()
        inbox.put((self, None))

    def send(self, number: int, job: Job) -> None:
        self.job, self.began = number, time.monotonic()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has just died, and will be found dead
                process.stdin.write(f"{json.dumps(encoded(job))}\n".encode())
                process.stdin.flush()

    def dismiss(self) -> None:
        """It ends by itself, after the step that is under way."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()

    def wait(self) -> None:
        """Until it has ended. Of several processes, those are not waited for long that another one has left alone."""
        alone = float("inf")
        while any(living := [process.poll() is None for process in self._processes]) and time.monotonic() < alone:
            if not all(living):
                alone = min(alone, time.monotonic() + ALONE)
            time.sleep(0.01)

    def kill(self) -> None:
        """It ends now, and nothing is left of it."""
        for process in self._processes:
            process.kill()
        for reader in self._readers:
            reader.join()
        self.dismiss()
        self._printed.close()

    def end(self) -> str:
        """How the first of its processes ended that did."""
        code = next(code for code in (process.poll() for process in self._processes) if code is not None)
        if code >= 0:
            return f"the process ended with exit code {code}"
        needs = ", as it does when memory is short: fewer runs at a time need less" if code == -9 else ""
        return f"the process ended with signal {-code}{needs}"

    def printed(self) -> str:
        self._printed.seek(0)
        return self._printed.read().decode(errors="replace").strip()[-TOLD:]


# --- all of them -----------------------------------------------------------------------------------------------------


class _Shop:
    """The processes and the jobs that wait for one."""

    def __init__(self, jobs: Sequence[Job], todo: Sequence[int], places: int, terms: _Terms, watch: Watch) -> None:
        self._jobs, self._terms, self._watch = jobs, terms, watch
        self._waiting = deque(todo)
        self._tries = dict.fromkeys(todo, 0)
        self._seconds = dict.fromkeys(todo, 0.0)
        self._ended: dict[int, Finished] = {}
        self._inbox: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
        self._workers: list[_Worker] = []
        self._places = places

    def run(self) -> dict[int, Finished]:
        for place in range(self._places):
            self._hire(place)
        while len(self._ended) < len(self._tries):
            try:
                worker, message = self._inbox.get(timeout=1.0)  # without an end, Windows would not hear Ctrl-C
            except queue.Empty:
                continue
            if message is None:
                self._died(worker)
            else:
                self._heard(worker, message)
        return self._ended

    def close(self) -> None:
        """Every process ends: by itself, or killed if this is interrupted too."""
        try:
            for worker in self._workers:
                worker.dismiss()
            for worker in self._workers:
                worker.wait()
        finally:
            for worker in self._workers:
                worker.kill()

    def _hire(self, place: int) -> None:
        if self._waiting:
            worker = _Worker(place, self._terms, self._inbox)
            self._workers.append(worker)
            self._give(worker)

    def _give(self, worker: _Worker) -> None:
        if not self._waiting:
            worker.dismiss()
            return
        number = self._waiting.popleft()
        self._tries[number] += 1
        worker.send(number, self._jobs[number])

    def _heard(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
        elif "began" in message:
            worker.began = time.monotonic()
        elif "at" in message:
            self._watch.running(self._jobs[worker.job], message["at"])
        elif "ended" in message:
            failure, seconds, spoilt = (message["ended"][name] for name in ("failure", "seconds", "spoilt"))
            self._end(worker.job, failure, seconds)
            worker.job = -1
            if spoilt:
                worker.dismiss()
                self._hire(worker.place)
            else:
                self._give(worker)

    def _died(self, worker: _Worker) -> None:
        if worker not in self._workers:  # another one of its processes had died before
            return
        number, why, said = worker.job, worker.end(), worker.printed()
        self._workers.remove(worker)
        worker.kill()
        if number < 0:  # it was dismissed
            return
        if not worker.ready and "signal" not in why:
            raise RunError(f"a process for runs could not start: {why}. It said: {said or 'nothing'}")
        seconds = time.monotonic() - worker.began
        if self._tries[number] < TRIES:
            self._watch.say(f"{self._jobs[number].label}: {why}. The run goes on in another process.")
            self._seconds[number] += seconds
            self._waiting.appendleft(number)
        else:
            failure = f"{why}; so it was {TRIES} times."
            note(self._jobs[number], failure)
            self._end(number, failure, seconds)
        self._hire(worker.place)

    def _end(self, number: int, failure: str | None, seconds: float) -> None:
        finished = Finished(self._jobs[number], failure, self._seconds[number] + seconds)
        self._ended[number] = finished
        self._watch.finished(finished)
