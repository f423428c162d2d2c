"""What many runs tell while they go on: one bar on a terminal, plain lines in a log. Needs no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from momentex.sweep.job import Finished, Job
from momentex.train.progress import clock, spoken
from momentex.train.record import Record

if TYPE_CHECKING:
    from tqdm import tqdm

LINE = 30.0  # seconds between two lines while no run ends
SHOWN = 4  # names of runs in such a line


class Watch(Protocol):
    """Who is told. All calls come from the thread that started the runs."""

    def start(self, jobs: Sequence[Job], complete: int, side_by_side: int) -> None:
        """Before the first run: these are to be trained, so many more are complete, and so many run at a time."""

    def running(self, job: Job, epochs: float) -> None:
        """So many epochs of this run are complete."""

    def finished(self, finished: Finished) -> None:
        """A run is over, well or not."""

    def say(self, text: str) -> None:
        """A notice: a process has died, and its run goes on in another one."""

    def close(self) -> None:
        """All runs are over, or interrupted."""


def watching(quiet: bool = False, stream: TextIO | None = None) -> Watch:
    """The one that suits; it tells on stderr."""
    stream = stream or sys.stderr
    if quiet:
        return Silent()
    return Bar(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else Lines(stream)


class Pace:
    """How much is done, and how long the rest will take. Work is counted in epochs."""

    def __init__(self) -> None:
        self.runs = self.over = self.failed = 0
        self._left: dict[Path, Job] = {}  # runs that are not over
        self._epochs: dict[Path, float] = {}  # complete, of those of them that were begun
        self._of_finished = self._before = 0.0
        self._side_by_side, self._began = 1, 0.0

    def start(self, jobs: Sequence[Job], complete: int, side_by_side: int, now: float) -> None:
        self.runs, self.over = len(jobs) + complete, complete
        self._left = {job.to: job for job in jobs}
        self._side_by_side, self._began = max(side_by_side, 1), now

    def add(self, job: Job, epochs: float) -> None:
        if job.to not in self._epochs:
            self._before += epochs  # those of an earlier start
        self._epochs[job.to] = epochs

    def end(self, finished: Finished) -> None:
        del self._left[finished.job.to]
        reached = self._epochs.pop(finished.job.to, 0.0)
        self._of_finished += reached if finished.failure else finished.job.recipe.epochs
        self.over += 1
        self.failed += finished.failure is not None and not finished.pruned

    @property
    def done(self) -> float:
        """Epochs that are complete, of all the runs that there were to train."""
        return self._of_finished + sum(self._epochs.values())

    @property
    def total(self) -> float:
        return self._of_finished + sum(job.recipe.epochs for job in self._left.values())

    @property
    def under_way(self) -> list[tuple[Job, float]]:
        """Runs that have begun and are not over, with their epochs."""
        return [(self._left[to], epochs) for to, epochs in self._epochs.items()]

    def left(self, now: float) -> float | None:
        """Seconds, at the pace so far; the longest run that is left cannot be shared."""
        done = self.done - self._before
        if done <= 0 or now <= self._began:
            return None
        each = (now - self._began) * self._side_by_side / done
        rest = [job.recipe.epochs - self._epochs.get(to, 0.0) for to, job in self._left.items()]
        return each * max(sum(rest) / self._side_by_side, max(rest, default=0.0))

    def line(self, now: float) -> str:
        """Runs that are over, failures among them, and the time left."""
        left = self.left(now)
        failed = f", {self.failed} failed" if self.failed else ""
        rest = "" if left is None or not self._left else f", {clock(left)} left"
        return f"{self.over}/{self.runs} runs{failed}{rest}"


def outcome(finished: Finished) -> str:
    """A run that is over, in a line."""
    if finished.pruned:
        return f"{finished.job.label}: {finished.failure}"
    if finished.failure is not None:
        return f"{finished.job.label}: FAILED: {finished.failure}"
    rows = Record(finished.job.to).metrics()
    return f"{finished.job.label}: {spoken(rows[-1]) if rows else 'complete'} ({clock(finished.seconds)})"


class Bar:
    """A bar over the epochs of all runs, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = Pace()
        self._bar: tqdm[Any] | None = None

    def start(self, jobs: Sequence[Job], complete: int, side_by_side: int) -> None:
        # here, so that whoever does not look needs no tqdm
        from tqdm import tqdm

        self._pace.start(jobs, complete, side_by_side, monotonic())
        form = "{percentage:3.0f}% |{bar}| {desc}"
        self._bar = tqdm(total=self._pace.total, file=self._stream, bar_format=form, dynamic_ncols=True)
        self._show()

    def running(self, job: Job, epochs: float) -> None:
        self._pace.add(job, epochs)
        self._show()

    def finished(self, finished: Finished) -> None:
        self._pace.end(finished)
        self.say(outcome(finished))
        self._show()

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._show()
            self._bar.close()
            self._bar = None

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.total, self._bar.n = self._pace.total, min(self._pace.done, self._pace.total)
            self._bar.set_description_str(self._pace.line(monotonic()), refresh=True)


class Lines:
    """A plain line for every run that is over, and now and then one between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = Pace()
        self._due = 0.0

    def start(self, jobs: Sequence[Job], complete: int, side_by_side: int) -> None:
        now = monotonic()
        self._pace.start(jobs, complete, side_by_side, now)
        self._due = now + LINE
        if jobs:
            also = f", {complete} are complete" if complete else ""
            self.say(f"{len(jobs)} runs, {side_by_side} at a time{also}")

    def running(self, job: Job, epochs: float) -> None:
        self._pace.add(job, epochs)
        if (now := monotonic()) >= self._due:
            self._due = now + LINE
            under_way = [f"{run.label} {epochs:.1f}/{run.recipe.epochs}" for run, epochs in self._pace.under_way]
            more = ", …" if len(under_way) > SHOWN else ""
            self.say(f"{self._pace.line(now)}; epochs: {', '.join(under_way[:SHOWN])}{more}")

    def finished(self, finished: Finished) -> None:
        self._pace.end(finished)
        now = monotonic()
        self._due = now + LINE
        self.say(f"{self._pace.line(now)}; {outcome(finished)}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Silent:
    """Nothing: failures are in what the runs return."""

    def start(self, jobs: Sequence[Job], complete: int, side_by_side: int) -> None:
        pass

    def running(self, job: Job, epochs: float) -> None:
        pass

    def finished(self, finished: Finished) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
