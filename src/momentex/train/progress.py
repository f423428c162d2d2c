"""What a run tells while it goes on: a bar on a terminal, plain lines in a log, JSON for programs. Needs no torch.

The loop calls `step` after every step, so that costs microseconds: most calls add two numbers and look at the clock.
"""

from __future__ import annotations

import json as json_
import math
import os
import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

REFRESH = 0.2  # seconds between two looks of the bar
LINE = 30.0  # seconds between two lines within an epoch
UNSAID = {"epoch", "split", "seconds", "seconds_of_evaluation", "images_per_second"}


class Reporter(Protocol):
    """Who is told. Epochs count from 0 here, `steps` are those of one epoch, and `images` those of this process."""

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        """Before the first step: `first_epoch` epochs are complete."""

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        """After a step, of which there are `step` in this epoch now; the loss if it is known without waiting."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """After an epoch: its row of metrics.jsonl and of times.jsonl."""

    def say(self, text: str) -> None:
        """A notice: where the run goes on, a checkpoint that is damaged."""

    def close(self) -> None:
        """The run is over, or interrupted."""


def reporter(quiet: bool = False, json: bool = False, stream: TextIO | None = None) -> Reporter:
    """The one that suits: JSON goes to stdout unless told otherwise, everything else to stderr."""
    if json:
        return JsonLines(stream or sys.stdout)
    stream = stream or sys.stderr
    if quiet:
        return Quiet()
    return Bar(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else Lines(stream)


def spoken(metrics: Mapping[str, Any]) -> str:
    """Metrics as one line, without when and how fast; errors are in %.

    >>> spoken({"epoch": 3, "loss": 0.51234, "split": "test", "error": 8.1, "error_top5": 0.25, "seconds": 1.5})
    'loss 0.5123, error 8.10 %, error_top5 0.25 %'
    """
    return ", ".join(f"{name} {_value(name, value)}" for name, value in metrics.items() if name not in UNSAID)


def _value(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f} %" if "error" in name or name == "calibration" else f"{value:.4g}"


class Pace:
    """Where a run is, how fast it goes, and when it will be over."""

    def __init__(self, steps: int, epochs: int, first_epoch: int) -> None:
        self.steps, self.epochs = steps, epochs
        self.epoch, self.step = first_epoch, 0
        self.loss: float | None = None
        self.images_per_second = 0.0
        self._begun: tuple[float, int] | None = None  # when this process's first step was over, and which that was
        self._epoch_begun: float | None = None
        self._images = 0

    @property
    def done(self) -> int:
        """Steps since the beginning of the run, by this process and those before it."""
        return self.epoch * self.steps + self.step

    @property
    def total(self) -> int:
        return self.epochs * self.steps

    def add(self, epoch: int, step: int, loss: float | None, images: int, now: float) -> None:
        # The first step is not timed: it compiles, and fills caches.
        self.epoch, self.step = epoch, step
        if loss is not None:
            self.loss = loss
        if self._begun is None:
            self._begun = now, self.done
        if self._epoch_begun is None:
            self._epoch_begun, self._images = now, 0
            return
        self._images += images
        if now > self._epoch_begun:
            self.images_per_second = self._images / (now - self._epoch_begun)

    def end_epoch(self) -> None:
        """What comes before the next step (evaluation, a checkpoint) does not slow the images down."""
        self.epoch, self.step, self._epoch_begun = self.epoch + 1, 0, None

    def left(self, now: float) -> float | None:
        """Seconds to the end of the run, evaluation included, at the pace of this process so far."""
        if self._begun is None or self.done <= self._begun[1]:
            return None
        began, first = self._begun
        return (now - began) / (self.done - first) * (self.total - self.done)

    def line(self, now: float, *facts: str) -> str:
        """Loss, what else there is, images a second, the time left."""
        left = self.left(now)
        parts = [
            "" if self.loss is None else f"loss {self.loss:.4g}",
            *facts,
            f"{self.images_per_second:,.0f} images/s" if self.images_per_second else "",
            "" if left is None or self.done == self.total else f"{clock(left)} left",
        ]
        return ", ".join(filter(None, parts))


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _columns(stream: TextIO) -> int | None:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None


class Bar:
    """A bar over the whole run, on a terminal: epoch, loss, last error, images a second, time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[Any] | None = None
        self._pace = Pace(0, 0, 0)
        self._error = ""
        self._due = 0.0

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        # here, so that whoever does not look needs no tqdm
        from tqdm import tqdm

        self._pace = Pace(steps, epochs, first_epoch)
        form = "{percentage:3.0f}% |{bar}| {desc}"
        # A terminal that does not know its size says 0, and tqdm would show nothing.
        unknown = _columns(self._stream) == 0
        size: dict[str, Any] = {"ncols": 80, "nrows": 24} if unknown else {"dynamic_ncols": True}
        done, total = self._pace.done, self._pace.total
        self._bar = tqdm(total=total, initial=done, file=self._stream, bar_format=form, **size)
        self._show(monotonic())

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        now = monotonic()
        self._pace.add(epoch, step, loss, images, now)
        if now >= self._due:
            self._show(now)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._pace.end_epoch()
        if "error" in metrics:
            self._error = f"error {_value('error', metrics['error'])}"
        self._show(monotonic())

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._show(monotonic())
            self._bar.close()
            self._bar = None

    def _show(self, now: float) -> None:
        self._due = now + REFRESH
        if self._bar is None:
            return
        pace = self._pace
        epoch = f"epoch {min(pace.epoch + 1, pace.epochs)}/{pace.epochs}"
        line = pace.line(now, self._error)
        self._bar.n = pace.done
        self._bar.set_description_str(f"{epoch}, {line}" if line else epoch, refresh=True)


class Lines:
    """A plain line after each epoch, and in a long epoch one now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = Pace(0, 0, 0)
        self._due = math.inf

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        self._pace = Pace(steps, epochs, first_epoch)
        self._due = monotonic() + LINE

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        now = monotonic()
        self._pace.add(epoch, step, loss, images, now)
        if now >= self._due:
            pace = self._pace
            self._print(f"epoch {epoch + 1}/{pace.epochs}, step {step}/{pace.steps}: {pace.line(now)}", now)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._pace.end_epoch()
        now, pace = monotonic(), self._pace
        pace.loss = None  # that of a step; the epoch's is among the metrics
        self._print(f"epoch {pace.epoch}/{pace.epochs}: {pace.line(now, spoken(metrics))}", now)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass

    def _print(self, text: str, now: float) -> None:
        self._due = now + LINE
        print(text, file=self._stream, flush=True)


class Quiet:
    """Nothing but errors, which are not told but raised."""

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        pass

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        pass

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class JsonLines:
    """A JSON object for each epoch; notices go to stderr. What is not finite is null, for which JSON has a word."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, steps: int, epochs: int, first_epoch: int) -> None:
        pass

    def step(self, epoch: int, step: int, loss: float | None, images: int) -> None:
        pass

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        print(as_json(metrics), file=self._stream, flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


def as_json(metrics: Mapping[str, Any]) -> str:
    """One line of JSON.

    >>> as_json({"epoch": 1, "loss": float("nan")})
    '{"epoch": 1, "loss": null}'
    """
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
    return json_.dumps(finite)
