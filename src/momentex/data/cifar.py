"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from any form in which they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from momentex.data import pickles
from momentex.data.arrays import Arrays, Loaded
from momentex.data.official import Official, Place, check_labels, check_names, located, named, read
from momentex.errors import DataError


def load(root: Path, name: Literal["cifar10", "cifar100"]) -> Loaded:
    """The set that lies under `root`: an extracted folder, binary or python, or one of the archives, not extracted.

    Archives and python files are compared with the official checksums; binary ones by their length and labels.
    The classes of CIFAR-100 are the 100 fine ones.
    """
    return load_official(root, named(name))


def load_official(root: Path, official: Official) -> Loaded:
    """As `load`, for a set that is described by `official`."""
    place = located(official, root)
    files = read(official, place)
    parts = _binary if place.layout.kind == "binary" else _python
    classes = _class_names(official, place, files)
    train, test = (parts(official, place, files, which) for which in (place.layout.train, place.layout.test))
    return Loaded(Arrays(*train, classes), Arrays(*test, classes))


def _binary(
    official: Official, _place: Place, files: dict[str, bytes], which: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    raw = bytearray().join(files.pop(file) for file in which)
    table = torch.frombuffer(raw, dtype=torch.uint8).view(-1, official.record)
    images = table[:, official.label_bytes :].contiguous().view(-1, 3, 32, 32)
    return images, table[:, official.label_bytes - 1].long()


def _python(official: Official, place: Place, files: dict[str, bytes], which: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    parts = [_batch(official, place, file, files.pop(file)) for file in which]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _batch(official: Official, place: Place, file: str, raw: bytes) -> tuple[Tensor, Tensor]:
    path, records = place.path / file, official.records(place.layout, file)
    batch = _entries(raw, path)
    images, labels = batch.get("data"), batch.get("labels" if official.label_bytes == 1 else "fine_labels")
    if not isinstance(images, pickles.StoredArray) or images.shape != (records, 3072):
        given = images.shape if isinstance(images, pickles.StoredArray) else type(images).__name__
        raise DataError(f"{path}: its 'data' is {given}; it must be bytes of the shape {(records, 3072)}.")
    if not isinstance(labels, list) or len(labels) != records or not all(type(label) is int for label in labels):
        given = f"{len(labels)} entries" if isinstance(labels, list) else type(labels).__name__
        raise DataError(f"{path}: its labels are {given}; it must be a list of {records} whole numbers.")
    check_labels(official, labels, path)
    return torch.frombuffer(bytearray(images.raw), dtype=torch.uint8).view(records, 3, 32, 32), torch.tensor(labels)


def _class_names(official: Official, place: Place, files: dict[str, bytes]) -> tuple[str, ...]:
    raw, path = files.get(place.layout.names), place.path / place.layout.names
    if raw is None:
        return official.classes
    if place.layout.kind == "binary":
        return check_names(official, map(str.strip, raw.decode("latin1").splitlines()), path)
    names = _entries(raw, path).get("label_names" if official.label_bytes == 1 else "fine_label_names")
    if not isinstance(names, list):
        raise DataError(f"{path} names no classes. Take the official file.")
    return check_names(official, map(_text, names), path)


def _entries(raw: bytes, path: Path) -> dict[str, Any]:
    content = pickles.loads(raw, str(path))
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}; it must be a dict. Take the official file.")
    return {_text(key): value for key, value in content.items()}


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
