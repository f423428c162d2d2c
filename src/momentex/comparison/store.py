"""A comparison in its folder: `comparison.json`, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from momentex.comparison.result import Comparison, from_json, to_json
from momentex.errors import RunError
from momentex.train.whole import write_whole

FILE = "comparison.json"


def write(folder: Path, comparison: Comparison) -> Path:
    """Put it there; where."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be the folder of a comparison: {error.strerror or error}.") from error
    write_whole(path, (json.dumps(to_json(comparison), indent=1) + "\n").encode())
    return path


def read(folder: Path) -> Comparison | None:
    """The one that is there; None if there is none, and a RunError if it cannot be read."""
    path = folder / FILE
    try:
        return from_json(json.loads(path.read_text(encoding="utf8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (RunError, ValueError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
