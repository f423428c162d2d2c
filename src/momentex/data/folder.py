"""Any folder of images: a folder for each class, or the layout of tiny-imagenet-200. Decoded once, kept as bytes."""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from momentex.data.arrays import Arrays, Loaded
from momentex.data.splits import stratified
from momentex.errors import DataError, MomentexWarning, OutOfRange, check_fraction

TEST_FOLDERS = ("test", "val", "valid", "validation")
ANNOTATIONS = "val_annotations.txt"


class Sample(NamedTuple):
    """An image on the disk, and the place of its class."""

    path: Path
    label: int


class Listing(NamedTuple):
    """What a folder holds, before any image is opened."""

    classes: tuple[str, ...]
    train: list[Sample]
    test: list[Sample]


def load(root: Path, size: int, *, unreadable: float = 0.0) -> Loaded:
    """The images under `root`, RGB, shorter side `size`, centre cropped: uint8 (N, 3, size, size).

    Layouts, of which the first that fits is taken:

    - `root/train/CLASS/*` with `root/val/images/*` and `root/val/val_annotations.txt`: tiny-imagenet-200
    - `root/train/CLASS/*` with the first of `test`, `val`, `valid`, `validation` that has folders of classes
    - `root/CLASS/*`: of every class a fifth, drawn with a fixed seed, is the test set

    A class is a folder; its images may lie deeper, have any extension that Pillow reads, and be links. Hidden files are
    left out. `unreadable` is the share of images that may fail to decode: they are left out with a warning.
    """
    if type(size) is not int or size < 1:
        raise OutOfRange(f"size is {size!r}; it must be a whole number of pixels, at least 1.")
    check_fraction("unreadable", unreadable)
    root = Path(root).expanduser()
    classes, *parts = listed(root)
    count = sum(map(len, parts))
    check_memory(count, size, available_memory())
    decoded = [_decode(samples, size) for samples in parts]
    _check_unreadable(root, [failed for _, failures in decoded for failed in failures.values()], count, unreadable)
    train, test = (_kept(samples, *part, classes) for samples, part in zip(parts, decoded, strict=True))
    _check_every_class(root, train, test)
    return Loaded(train, test)


def listed(root: Path) -> Listing:
    """Which images there are, and of which class: without opening one."""
    if not root.is_dir():
        raise DataError(f"{root} is no folder; it must hold train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg.")
    if not (root / "train").is_dir():
        return _without_test(root)
    train = _by_class(root / "train")
    classes = tuple(train)
    official = (root / "val" / ANNOTATIONS).is_file()
    test = _annotated(root / "val") if official else _by_class(_test_folder(root))
    if set(test) != set(classes):
        raise DataError(
            f"{root}: the classes of training and testing differ. Only in training: {_some(set(classes) - set(test))}; "
            f"only in testing: {_some(set(test) - set(classes))}. Give both the same folders."
        )
    return Listing(classes, _samples(train, classes), _samples(test, classes))


def check_memory(count: int, size: int, available: int | None) -> None:
    """Raise if so many images take more than half of the memory that is available (nothing, if that is unknown)."""
    needed = count * 3 * size * size
    if available is not None and needed > available / 2:
        raise DataError(
            f"{count:,} images of {size} × {size} pixels need {needed / 1e9:,.1f} GB of memory, and half of what is "
            f"available is {available / 2e9:,.1f} GB. Ask for smaller images, or for fewer."
        )


def available_memory() -> int | None:
    """Bytes that can be had without swapping; where that is not said, all there are, and None where that is not either.

    >>> available_memory() > 0
    True
    """
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        names = getattr(os, "sysconf_names", {})  # there is none on Windows
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in names else None


def _test_folder(root: Path) -> Path:
    for name in TEST_FOLDERS:
        if (root / name).is_dir() and _folders(root / name):  # the official tiny-imagenet has a test without labels
            return root / name
    raise DataError(
        f"{root} has a folder train and none to test on: looked for folders of classes in {', '.join(TEST_FOLDERS)}. "
        f"Make one of them, or point to {root / 'train'}: then a fifth of it is the test set."
    )


def _without_test(root: Path) -> Listing:
    found = _by_class(root)
    classes = tuple(found)
    samples = _samples(found, classes)
    single = [name for name in classes if len(found[name]) < 2]
    if single:
        raise DataError(
            f"{root}: class {_some(single)} has a single image; one to train on and one to test on are needed."
        )
    labels = torch.tensor([sample.label for sample in samples])
    train, test = stratified(labels, 0.2, torch.Generator().manual_seed(0))
    return Listing(classes, [samples[i] for i in train.tolist()], [samples[i] for i in test.tolist()])


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """The images of each folder in `folder`, both in the order of their names."""
    found = {name: sorted(_images(folder / name)) for name in _folders(folder)}
    if not found:
        raise DataError(f"{folder} holds no folders; it must hold one for each class, with images in it.")
    empty = [name for name, images in found.items() if not images]
    if empty:
        raise DataError(f"{folder}: no images of class {_some(empty)}. Remove the folders, or fill them.")
    if len(found) == 1:
        raise DataError(f"{folder} holds one class only, {_some(found)}; classifying needs two or more.")
    return found


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise _closed(error) from None


def _closed(error: OSError) -> DataError:
    return DataError(f"{error.filename} cannot be looked into ({error.strerror}). Mend that, or remove it.")


def _images(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        real = os.path.realpath(where)
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in _extensions():
                yield Path(where, name)


def _refuse(error: OSError) -> None:
    """Otherwise a folder that cannot be read would pass for an empty one."""
    raise _closed(error) from None


@cache
def _extensions() -> set[str]:
    stubs = {"BUFR", "GRIB", "HDF5", "MPEG"}  # told apart by Pillow, and not read
    registered = Image.registered_extensions().items()
    return {extension for extension, kind in registered if kind in Image.OPEN and kind not in stubs}


def _annotated(val: Path) -> dict[str, list[Path]]:
    """`val_annotations.txt` of tiny-imagenet: the name of an image, its class, and a box."""
    rows = [line.split("\t") for line in (val / ANNOTATIONS).read_text().splitlines() if line.strip()]
    damaged = [row for row in rows if len(row) < 2]
    if damaged:
        raise DataError(f"{val / ANNOTATIONS}: a line without a class: {damaged[0]!r}. It must be: image, tab, class.")
    there, said = {path.name for path in _images(val / "images")}, {row[0] for row in rows}
    if there != said:
        raise DataError(
            f"{val}: images and {ANNOTATIONS} differ. Without an image: {_some(said - there)}; without a line: "
            f"{_some(there - said)}. Extract the archive again."
        )
    found: dict[str, list[Path]] = {}
    for name, wnid, *_ in rows:
        found.setdefault(wnid, []).append(val / "images" / name)
    return found


def _samples(found: dict[str, list[Path]], classes: tuple[str, ...]) -> list[Sample]:
    return [Sample(path, label) for label, name in enumerate(classes) for path in found[name]]


# --- decoding --------------------------------------------------------------------------------------------------------

# What Pillow raises for files that are damaged: it has no one error for that.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    EOFError,
    TypeError,
    struct.error,
    Image.DecompressionBombError,
)


def _decode(samples: list[Sample], size: int) -> tuple[Tensor, dict[int, str]]:
    """All images, and for those that could not be read (their bytes are undefined) which and why."""
    images = torch.empty(len(samples), 3, size, size, dtype=torch.uint8)
    into = images.numpy()
    failures: dict[int, str] = {}

    def some(start: int) -> None:
        for i in range(start, min(start + 64, len(samples))):
            try:
                into[i] = _pixels(samples[i].path, size)
            except _DAMAGED as failure:
                failures[i] = f"{samples[i].path} ({failure})"

    with ThreadPoolExecutor() as pool:  # Pillow decodes and resizes without holding the interpreter
        for _ in pool.map(some, range(0, len(samples), 64)):
            pass
    return images, dict(sorted(failures.items()))


def _pixels(path: Path, size: int) -> np.ndarray:
    """(3, size, size), the same pixels as those of torchvision's Resize(size) and CenterCrop(size)."""
    with Image.open(path) as image:
        image = _rgb(image)
    width, height = image.size
    short, long = min(width, height), int(size * max(width, height) / min(width, height))
    width, height = (size, long) if width == short else (long, size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode}: its numbers have no range that maps to 0..255")
    elif "transparency" in image.info:  # otherwise Pillow warns
        image = image.convert("RGBA")
    return image.convert("RGB")


def _check_unreadable(root: Path, failures: list[str], count: int, allowed: float) -> None:
    if not failures:
        return
    facts = f"{root}: {len(failures)} of {count} images cannot be read: {', '.join(failures[:5])}"
    facts += ", …" if len(failures) > 5 else ""
    if len(failures) > allowed * count:
        raise DataError(
            f"{facts}. A share of {allowed:g} may be; mend or remove them, or allow more: "
            f"unreadable={_enough(len(failures) / count):g}"
        )
    warnings.warn(f"{facts}. They are left out.", MomentexWarning, stacklevel=3)


def _enough(share: float) -> float:
    """Two digits, and not below it.

    >>> _enough(1 / 8), _enough(1 / 3), _enough(3 / 2000), _enough(1.0)
    (0.13, 0.34, 0.0015, 1.0)
    """
    scale = 10.0 ** (1 - math.floor(math.log10(share)))
    return math.ceil(round(share * scale, 6)) / scale


def _kept(samples: list[Sample], images: Tensor, failures: dict[int, str], classes: tuple[str, ...]) -> Arrays:
    arrays = Arrays(images, torch.tensor([sample.label for sample in samples]), classes)
    if not failures:
        return arrays
    return arrays.taken(torch.tensor([i for i in range(len(samples)) if i not in failures], dtype=torch.int64))


def _check_every_class(root: Path, train: Arrays, test: Arrays) -> None:
    for what, arrays in (("train", train), ("test", test)):
        gone = sorted(set(range(len(arrays.classes))) - set(arrays.labels.tolist()))
        if gone:
            names = _some(arrays.classes[c] for c in gone)
            raise DataError(f"{root}: no image to {what} on of class {names} can be read. Mend or remove them.")


def _some(names: Iterable[str]) -> str:
    """The first five."""
    known = sorted(names)
    return (", ".join(known[:5]) + (f", … ({len(known)} in all)" if len(known) > 5 else "")) or "none"
