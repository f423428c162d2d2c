"""The official CIFAR sets: what their archives are called and hold, where one lies, and whether it is whole.

Works on bytes alone: neither torch nor numpy is needed to say what is there.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from momentex.errors import DataError, did_you_mean

PIXELS = 3 * 32 * 32


class Archive(NamedTuple):
    """A file of the data set's page."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Layout:
    """One form in which a set is published: a folder in an archive."""

    kind: Literal["binary", "python"]
    folder: str
    archive: Archive
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str  # the file in which the classes are named
    md5: dict[str, str] = field(default_factory=dict)  # of single files, where they are published

    @property
    def files(self) -> tuple[str, ...]:
        return *self.train, *self.test


@dataclass(frozen=True)
class Official:
    """A set: `train` and `test` are numbers of images; of `label_bytes` before an image the last is its class."""

    name: str
    title: str
    classes: tuple[str, ...]
    train: int
    test: int
    label_bytes: int
    layouts: tuple[Layout, ...]
    host: str = "https://www.cs.toronto.edu/~kriz/"

    @property
    def record(self) -> int:
        return self.label_bytes + PIXELS

    def records(self, layout: Layout, file: str) -> int:
        """How many images `file` holds."""
        return self.train // len(layout.train) if file in layout.train else self.test // len(layout.test)


class Place(NamedTuple):
    """Where a set lies: an extracted folder, or an archive."""

    layout: Layout
    path: Path


CIFAR10 = Official(
    name="cifar10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train=50_000,
    test=10_000,
    label_bytes=1,
    layouts=(
        Layout(
            kind="binary",
            folder="cifar-10-batches-bin",
            archive=Archive("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
            train=tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
            test=("test_batch.bin",),
            names="batches.meta.txt",
            md5={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
        Layout(
            kind="python",
            folder="cifar-10-batches-py",
            archive=Archive("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
            train=tuple(f"data_batch_{n}" for n in range(1, 6)),
            test=("test_batch",),
            names="batches.meta",
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
                "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            },
        ),
    ),
)

# fmt: off
_FINE = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on

CIFAR100 = Official(
    name="cifar100",
    title="CIFAR-100",
    classes=_FINE,
    train=50_000,
    test=10_000,
    label_bytes=2,
    layouts=(
        Layout(
            kind="binary",
            folder="cifar-100-binary",
            archive=Archive("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
            train=("train.bin",),
            test=("test.bin",),
            names="fine_label_names.txt",
        ),
        Layout(
            kind="python",
            folder="cifar-100-python",
            archive=Archive("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
            train=("train",),
            test=("test",),
            names="meta",
            md5={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
        ),
    ),
)

OFFICIAL = {official.name: official for official in (CIFAR10, CIFAR100)}


def named(name: str) -> Official:
    """The set of that name.

    >>> named("cifar10").title
    'CIFAR-10'
    """
    if name not in OFFICIAL:
        near = did_you_mean(name, OFFICIAL)
        raise DataError(f"There is no official set {name!r}; there are {', '.join(OFFICIAL)}. {near}".strip())
    return OFFICIAL[name]


def locate(official: Official, root: Path) -> Place | None:
    """Where the set lies: under `root`, or `root` itself. Extracted before packed, binary before pickled."""
    root = Path(root).expanduser()
    for layout in official.layouts:
        if (root / layout.folder).is_dir():
            return Place(layout, root / layout.folder)
        if any((root / file).is_file() for file in layout.files):
            return Place(layout, root)
    for layout in official.layouts:
        if (root / layout.archive.name).is_file():
            return Place(layout, root / layout.archive.name)
        if root.name == layout.archive.name and root.is_file():
            return Place(layout, root)
    return None


def located(official: Official, root: Path) -> Place:
    """As `locate`; an error that says what was looked for, if there is nothing."""
    place = locate(official, root)
    if place is None:
        raise DataError(
            f"No {official.title} in {root}{'' if Path(root).expanduser().exists() else ' (there is no such folder)'}. "
            f"Looked for the folders {' and '.join(layout.folder for layout in official.layouts)}, and for "
            f"{' and '.join(layout.archive.name for layout in official.layouts)}. "
            f"Fetch it with: momentex data get {official.name} --to {root}"
        )
    return place


def read(official: Official, place: Place) -> dict[str, bytes]:
    """The files of the set: all there, whole, with the official checksums; every label of the binary form exists."""
    layout, path = place
    files = _extracted(place) if path.is_dir() else _packed(place)
    missing = [file for file in layout.files if file not in files]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}: it is not extracted to the end. Extract {layout.archive.name} again, "
            f"or remove it, and fetch: momentex data get {official.name}"
        )
    for file, raw in files.items():
        if layout.kind == "binary" and file in layout.files:
            check_records(official, raw, official.records(layout, file), path / file)
        if path.is_dir():  # an archive was compared as a whole
            check_file(layout, file, raw, path / file)
    return files


def checked(place: Place) -> str:
    """What `read` has compared, in a few words.

    >>> checked(Place(CIFAR100.layouts[0], Path("cifar-100-binary.tar.gz")))
    'md5 03b5dce01913d631647c71ecec9e9cb8'
    """
    layout, path = place
    if not path.is_dir():
        return f"md5 {layout.archive.md5}"
    return "md5 of every file of images" if layout.md5 else "sizes and labels; no md5 of single files is published"


def check_file(layout: Layout, file: str, raw: bytes, path: Path) -> None:
    """Raise unless `raw` has the checksum of the official `file`, where one is published."""
    digest, expected = hashlib.md5(raw, usedforsecurity=False).hexdigest(), layout.md5.get(file)
    if expected not in (None, digest):
        raise DataError(
            f"{path} ({len(raw):,} bytes) is not the official file: its md5 is {digest}, and that of the official one "
            f"is {expected}. Extract {layout.archive.name} again."
        )


def check_records(official: Official, raw: bytes, records: int, path: Path) -> None:
    """Raise unless `raw` is that many records with labels that exist."""
    if len(raw) != records * official.record:
        state = "truncated" if len(raw) < records * official.record else "too long"
        raise DataError(
            f"{path} is {state}: {len(raw):,} bytes, and {records:,} images of {official.record} bytes are "
            f"{records * official.record:,}. {_again(official)}"
        )
    check_labels(official, raw[official.label_bytes - 1 :: official.record], path)


def check_labels(official: Official, labels: Iterable[int], path: Path) -> None:
    """Raise unless every label is a class of the set."""
    for number, label in enumerate(labels):
        if not 0 <= label < len(official.classes):
            raise DataError(
                f"{path}: image {number} has the label {label}; {official.title} has {len(official.classes)} classes, "
                f"0 to {len(official.classes) - 1}. {_again(official)}"
            )


def check_names(official: Official, names: Iterable[str], path: Path) -> tuple[str, ...]:
    """The classes as the set's own file names them, if they are as many as there should be."""
    names = tuple(name for name in names if name)
    if len(names) != len(official.classes):
        raise DataError(
            f"{path} names {len(names)} classes; {official.title} has {len(official.classes)}. {_again(official)}"
        )
    return names


def fault(archive: Archive, path: Path) -> str | None:
    """What is wrong with the file at `path`, if it is to be that archive."""
    size = path.stat().st_size
    if size < archive.size:
        return f"{path} is truncated: {size:,} bytes, and it needs {archive.size:,}"
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() == archive.md5:
        return None
    return f"{path} is not the official archive: its md5 is {digest.hexdigest()}, and it must be {archive.md5}"


def _extracted(place: Place) -> dict[str, bytes]:
    files = (*place.layout.files, place.layout.names)
    return {file: (place.path / file).read_bytes() for file in files if (place.path / file).is_file()}


def _packed(place: Place) -> dict[str, bytes]:
    """Straight out of the archive: nothing is written, whatever names it holds."""
    layout, path = place
    if wrong := fault(layout.archive, path):
        raise DataError(f"{wrong}. Remove it, and fetch again.")
    wanted = {f"{layout.folder}/{file}": file for file in (*layout.files, layout.names)}
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and (name := member.name.removeprefix("./")) in wanted:
                    files[wanted[name]] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as broken:
        raise DataError(f"{path} cannot be unpacked ({broken}). Remove it, and fetch again.") from None
    return files


def _again(official: Official) -> str:
    return f"Remove it, and fetch: momentex data get {official.name}"
