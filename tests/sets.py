"""Official sets of a few images, in every form in which the real ones are published."""

import hashlib
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from momentex.data.official import CIFAR10, CIFAR100, Archive, Layout, Official


def few(official: Official) -> Official:
    """The same set of 20 + 6 images, of which no checksums are known."""
    layouts = tuple(replace(layout, md5={}) for layout in official.layouts)
    return replace(official, train=20, test=6, layouts=layouts)


FEW = {"cifar10": few(CIFAR10), "cifar100": few(CIFAR100)}


class Part(NamedTuple):
    images: Tensor
    labels: Tensor


def contents(official: Official) -> dict[str, Part]:
    """What is in it: pixels of all values, every label a class."""
    draw = torch.Generator().manual_seed(7)
    return {
        name: Part(
            torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=draw),
            torch.randint(0, len(official.classes), (count,), generator=draw),
        )
        for name, count in (("train", official.train), ("test", official.test))
    }


def files_of(official: Official, layout: Layout) -> dict[str, bytes]:
    """Every file of the layout."""
    files: dict[str, bytes] = {}
    for names, part in zip((layout.train, layout.test), contents(official).values(), strict=True):
        each = len(part.labels) // len(names)
        for i, name in enumerate(names):
            images, labels = (tensor[i * each : (i + 1) * each] for tensor in part)
            files[name] = (
                binary(official, images, labels) if layout.kind == "binary" else python2(official, images, labels)
            )
    classes = list(official.classes)
    if layout.kind == "binary":
        files[layout.names] = "".join(f"{name}\n" for name in [*classes, ""]).encode()  # it ends in an empty line
    else:
        key = "label_names" if official.label_bytes == 1 else "fine_label_names"
        files[layout.names] = pickle.dumps({key: classes}, protocol=2)
    return files


def binary(official: Official, images: Tensor, labels: Tensor) -> bytes:
    coarse = b"\x13" * (official.label_bytes - 1)
    return b"".join(
        coarse + bytes([int(label)]) + bytes(image.flatten().tolist())
        for image, label in zip(images, labels, strict=True)
    )


def python2(official: Official, images: Tensor, labels: Tensor) -> bytes:
    """A batch as Python 2 and the numpy of 2009 pickled it, opcode for opcode."""
    raw = bytes(images.flatten().tolist())
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"  # an empty array ...
        + b"(K\x01" + _int(len(images)) + _int(3072) + b"\x86"
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"  # ... and its state
    )  # fmt: skip
    key = "labels" if official.label_bytes == 1 else "fine_labels"
    numbers = b"](" + b"".join(_int(int(label)) for label in labels) + b"e"
    return (
        b"\x80\x02}("
        + _text("batch_label")
        + _text("training batch")
        + _text("data")
        + array
        + _text(key)
        + numbers
        + b"u."
    )


def _int(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()


def extract(official: Official, layout: Layout, root: Path) -> Path:
    """Write the folder of the layout into `root`."""
    folder = root / layout.folder
    folder.mkdir(parents=True)
    for name, raw in files_of(official, layout).items():
        (folder / name).write_bytes(raw)
    return folder


def pack(official: Official, kind: str, root: Path, **changed: bytes) -> Official:
    """Write the archive of that kind into `root`; the set that knows its size and checksum."""
    (layout,) = (layout for layout in official.layouts if layout.kind == kind)
    loose = root / "loose"
    folder = extract(official, layout, loose)
    for name, raw in changed.items():
        (folder / name).write_bytes(raw)
    path = root / layout.archive.name
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, layout.folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    loose.rmdir()
    return knowing(official, layout, path)


def knowing(official: Official, layout: Layout, path: Path) -> Official:
    """The set whose archive is the file at `path`, whatever it holds."""
    raw = path.read_bytes()
    archive = Archive(layout.archive.name, len(raw), hashlib.md5(raw).hexdigest())
    layouts = tuple(replace(each, archive=archive) if each == layout else each for each in official.layouts)
    return replace(official, layouts=layouts)
