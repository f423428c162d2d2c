"""Ctrl-C, SIGTERM and a terminal that goes away end a run after the step that is under way, with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from momentex.train.place import Place

ASKED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PATIENCE = 1.0  # seconds in which torchrun passes on what the terminal has sent to all already
AGREE_EVERY = 32  # steps: agreeing makes every process wait for all


class Interruption:
    """Whether somebody asked for the end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Of this process."""
        return self._asked.is_set()

    def agreed(self, step: int, steps: int) -> bool:
        """Whether to stop after `step` of the `steps` of an epoch: several processes do at the same one."""
        if self._place.world == 1:
            return self.asked
        look = step % AGREE_EVERY == 0 or step == steps
        return look and self._place.sum([float(self.asked)])[0] > 0


@contextmanager
def interruptible(place: Place) -> Iterator[Interruption]:
    """While this is open, the first signal asks, and the second one does what it would have done without this.

    What fails between the two failed by the first one, and is a KeyboardInterrupt: a terminal sends Ctrl-C to the
    compilers that torch.compile has started as well.
    """
    interruption = Interruption(place)
    if threading.current_thread() is not threading.main_thread():  # signals are none of its business
        yield interruption
        return
    before: dict[int, Any] = {}
    since: list[float] = []

    def ask(number: int, frame: object) -> None:
        if not since:
            since.append(time.monotonic())
            interruption.ask()
        elif place.world == 1 or time.monotonic() - since[0] > PATIENCE:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    for number in ASKED:
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_IGN, None):  # nohup, or a shell that has put it into the background; C code
            before[number] = handler
            signal.signal(number, ask)
    try:
        yield interruption
    except RuntimeError as error:
        if interruption.asked:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
