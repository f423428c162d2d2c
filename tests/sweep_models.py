"""Models that make trouble for the process in which they are trained, which the tests of sweeps name by path."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import Tensor, nn

from tests.train_models import Small


class Troubled(Small):
    """Counts the batches that it is trained on in this process, and at one of them asks for trouble."""

    def __init__(self, num_classes: int, at: int, marker: str, trouble: str) -> None:
        super().__init__(num_classes)
        self.seen, self.at, self.marker, self.trouble = 0, at, Path(marker), trouble

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        if self.training and self.seen == self.at and not self.marker.exists():
            if self.trouble == "dies once":
                self.marker.touch()
            if self.trouble.startswith("dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "fails":
                print("so it is printed")
                raise ZeroDivisionError("a fault of the model")
            if self.trouble == "exits":
                raise SystemExit(3)
            if self.trouble == "hangs":
                self.marker.touch()
                time.sleep(600)
        return super().forward(x)


def troubled(num_classes: int, *, trouble: str, marker: str = "/nowhere/at/all", at: int = 7) -> nn.Module:
    """Trouble at the `at`-th batch, unless the file `marker` is there."""
    return Troubled(num_classes, at, marker, trouble)
