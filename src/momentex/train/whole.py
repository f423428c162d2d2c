"""Files that are there whole or not at all. Needs no torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from momentex.errors import RunError

AGAIN = "run the same command again: it goes on from the last checkpoint"


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all; the disk is asked to keep it."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _force_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written ({error.strerror or error}); what was there before is untouched. Make room, "
            f"and {AGAIN}."
        ) from error


def _force_folder(folder: Path) -> None:
    """Renaming is safe on the disk only when the folder is."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
