"""A comparison in its folder: `comparison.json`, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from momentex.comparison.result import Comparison, from_json, to_json
from momentex.errors import RunError
from momentex.train.whole import write_whole

FILE = "comparison.json"

T = TypeVar("T")


def write(folder: Path, comparison: Comparison) -> Path:
    """Put it there; where."""
    return write_document(folder / FILE, to_json(comparison), "a comparison")


def read(folder: Path) -> Comparison | None:
    """The one that is there; None if there is none, and a RunError if it cannot be read."""
    return read_document(folder / FILE, from_json)


def write_document(path: Path, content: Any, what: str) -> Path:
    """Put JSON into the folder of `what`, whole or not at all; where."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be the folder of {what}: {error.strerror or error}.") from error
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def read_document(path: Path, made: Callable[[Any], T]) -> T | None:
    """What is `made` of the JSON there; None if there is none, and a RunError if it cannot be read."""
    try:
        return made(json.loads(path.read_text(encoding="utf8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (RunError, ValueError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
