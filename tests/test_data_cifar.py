"""CIFAR in every form gives the same images, labels and names."""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from momentex.data import cifar, find
from momentex.data.official import CIFAR10, CIFAR100
from momentex.errors import DataError
from tests.sets import FEW, contents, extract, files_of, pack, python2

FORMS = [(name, layout.kind, packed) for name in FEW for layout in FEW[name].layouts for packed in (False, True)]
PYTHON10 = FEW["cifar10"].layouts[1]


def written(name, kind, packed, root):
    """The set in that form under `root`."""
    if packed:
        return pack(FEW[name], kind, root)
    (layout,) = (layout for layout in FEW[name].layouts if layout.kind == kind)
    extract(FEW[name], layout, root)
    return FEW[name]


@pytest.mark.parametrize(("name", "kind", "packed"), FORMS)
def test_every_form_holds_the_same(tmp_path, name, kind, packed):
    loaded = cifar.load_official(tmp_path, written(name, kind, packed, tmp_path))
    for part, expected in zip(loaded, contents(FEW[name]).values(), strict=True):
        assert part.images.dtype == torch.uint8
        assert part.images.equal(expected.images)
        assert part.images.is_contiguous()
        assert part.labels.dtype == torch.int64
        assert part.labels.equal(expected.labels)
        assert part.classes == FEW[name].classes


@pytest.mark.parametrize(("name", "kind", "packed"), FORMS)
def test_the_images_are_their_own_memory(tmp_path, name, kind, packed):
    loaded = cifar.load_official(tmp_path, written(name, kind, packed, tmp_path))
    for part in loaded:
        assert part.images.untyped_storage().nbytes() == part.images.numel()
        part.images.zero_()  # and may be written to


def test_classes_are_named_as_the_set_names_them(tmp_path):
    named = "\n".join(reversed(CIFAR10.classes)).encode() + b"\n\n"
    official = pack(FEW["cifar10"], "binary", tmp_path, **{"batches.meta.txt": named})
    assert cifar.load_official(tmp_path, official).train.classes == tuple(reversed(CIFAR10.classes))


@pytest.mark.parametrize(("name", "kind"), [(name, layout.kind) for name in FEW for layout in FEW[name].layouts])
def test_without_the_file_of_names_the_classes_are_the_known_ones(tmp_path, name, kind):
    (layout,) = (layout for layout in FEW[name].layouts if layout.kind == kind)
    (extract(FEW[name], layout, tmp_path) / layout.names).unlink()
    assert cifar.load_official(tmp_path, FEW[name]).test.classes == FEW[name].classes


@pytest.mark.parametrize(
    ("kind", "file", "raw"),
    [
        ("binary", "batches.meta.txt", b"cat\ndog\n"),
        ("python", "batches.meta", pickle.dumps({"label_names": ["cat", "dog"]}, protocol=2)),
        ("python", "batches.meta", b"\x80\x02}U\x0blabel_names](U\x03catU\x03doges."),
    ],
)
def test_another_number_of_classes_is_refused(tmp_path, kind, file, raw):
    official = pack(FEW["cifar10"], kind, tmp_path, **{file: raw})
    with pytest.raises(DataError, match=rf"{file} names 2 classes; CIFAR-10 has 10\. Remove it, and fetch"):
        cifar.load_official(tmp_path, official)


IMAGES, LABELS = contents(FEW["cifar10"])["test"]
STORED = python2(CIFAR10, IMAGES, LABELS)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (pickle.dumps([1]), r"test_batch holds a list; it must be a dict\."),
        (pickle.dumps({}), r"test_batch: its 'data' is NoneType; it must be bytes of the shape \(6, 3072\)"),
        (python2(CIFAR10, IMAGES[:5], LABELS), r"'data' is \(5, 3072\); it must be bytes of the shape \(6, 3072\)"),
        (python2(CIFAR10, IMAGES, LABELS[:5]), r"its labels are 5 entries; it must be a list of 6 whole numbers"),
        (STORED.replace(b"U\x06labels](", b"U\x06labelz]("), r"its labels are NoneType; it must be a list of 6"),
        (python2(CIFAR100, IMAGES, LABELS), r"its labels are NoneType"),
        (python2(CIFAR10, IMAGES, LABELS - 5), r"image \d has the label -\d; CIFAR-10 has 10 classes, 0 to 9"),
        (python2(CIFAR10, IMAGES, LABELS + 9), r"image \d has the label 1\d; CIFAR-10 has 10 classes, 0 to 9"),
        (pickle.dumps(print), r"test_batch is refused: it names builtins\.print"),
        (STORED[:-1], r"test_batch is no whole pickle"),
    ],
)
def test_a_pickle_that_holds_something_else_is_refused(tmp_path, raw, text):
    official = pack(FEW["cifar10"], "python", tmp_path, test_batch=raw)
    with pytest.raises(DataError, match=text):
        cifar.load_official(tmp_path, official)


def test_labels_that_are_no_whole_numbers_are_refused(tmp_path):
    floats = b"](" + b"F1.5\n" * 6 + b"e"
    start = STORED.index(b"U\x06labels](") + len(b"U\x06labels")
    official = pack(FEW["cifar10"], "python", tmp_path, test_batch=STORED[:start] + floats + b"u.")
    with pytest.raises(DataError, match=r"its labels are 6 entries; it must be a list of 6 whole numbers"):
        cifar.load_official(tmp_path, official)


def test_the_public_function_asks_for_the_real_set(tmp_path):
    extract(replace(CIFAR100, train=20, test=6), CIFAR100.layouts[0], tmp_path)
    with pytest.raises(DataError, match=r"train\.bin is truncated: 61,480 bytes, and 50,000 images of 3074 bytes"):
        cifar.load(tmp_path, "cifar100")
    with pytest.raises(DataError, match="No CIFAR-10 in"):
        cifar.load(tmp_path, "cifar10")
    with pytest.raises(DataError, match=r"no official set 'cifar1000'.*Did you mean 'cifar100'"):
        cifar.load(tmp_path, "cifar1000")


def test_a_pickle_is_compared_before_it_is_opened(tmp_path):
    folder = extract(FEW["cifar10"], PYTHON10, tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps(print))
    known = replace(
        PYTHON10, md5={"test_batch": hashlib.md5(files_of(FEW["cifar10"], PYTHON10)["test_batch"]).hexdigest()}
    )
    with pytest.raises(DataError, match="is not the official file"):
        cifar.load_official(tmp_path, replace(FEW["cifar10"], layouts=(known,)))


# --- real data -------------------------------------------------------------------------------------------------------

real = Path(os.environ.get("MOMENTEX_DATA", "/nowhere"))


@pytest.mark.data
@pytest.mark.skipif("MOMENTEX_DATA" not in os.environ, reason="MOMENTEX_DATA names no folder")
def test_the_real_cifar_100_is_balanced_and_has_the_published_mean_and_deviation():
    train, test = cifar.load(real, "cifar100")
    assert train.labels.bincount().tolist() == [500] * 100
    assert test.labels.bincount().tolist() == [100] * 100
    std, mean = torch.std_mean(train.images.float(), (0, 2, 3))
    assert (mean / 255).tolist() == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)
    assert (std / 255).tolist() == pytest.approx([0.2673, 0.2564, 0.2762], abs=1e-4)


@pytest.mark.data
@pytest.mark.skipif(find("cifar10", real) is None, reason="MOMENTEX_DATA names no folder with CIFAR-10")
def test_the_real_cifar_10_has_the_published_mean_and_deviation():
    train, test = cifar.load(real, "cifar10")
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.labels.bincount().tolist() == [1000] * 10
    std, mean = torch.std_mean(train.images.float(), (0, 2, 3))
    assert (mean / 255).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert (std / 255).tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)
