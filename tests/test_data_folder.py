"""Folders of images: every layout, the pixels of torchvision, and what is not there or cannot be read."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, PILToTensor, Resize

from momentex.data import folder
from momentex.errors import DataError, MomentexWarning, OutOfRange

DRAW = np.random.default_rng(0)


def picture(path, size=(9, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAW.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)
    return path


def pictures(root, *classes, count=2, parts=("train", "val")):
    for part in parts:
        for name in classes:
            for i in range(count):
                picture(root / part / name / f"{i}.png")
    return root


def names(samples):
    return [f"{sample.path.parent.name}/{sample.path.name}={sample.label}" for sample in samples]


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_training_and_testing_come_from_their_folders_in_the_order_of_names(tmp_path, test):
    pictures(tmp_path, "dog", "Cat", "ant", parts=("train", test))
    picture(tmp_path / test / "ant" / "2.png")
    train, testing = folder.load(tmp_path, 4)
    assert train.classes == testing.classes == ("Cat", "ant", "dog")
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert testing.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert train.images.shape == (6, 3, 4, 4)
    assert train.images.dtype == torch.uint8
    assert train.labels.dtype == torch.int64


def test_the_images_belong_to_their_labels_and_parts(tmp_path):
    for part, base in (("train", 0), ("val", 100)):
        for label, name in enumerate("abc"):
            for i in range(70):  # more than one thread takes at once
                path = tmp_path / part / name / f"{i:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (3, 3), (base + label, i, 7)).save(path)
    for part, base in zip(folder.load(tmp_path, 3), (0, 100), strict=True):
        assert (part.images[:, 0] == part.labels[:, None, None] + base).all()
        assert part.images[:, 1, 0, 0].tolist() == [*range(70)] * 3


def test_of_several_test_folders_test_is_taken_if_it_has_classes(tmp_path):
    pictures(tmp_path, "a", "b", parts=("train", "test", "val", "valid"))
    assert {sample.path.parts[-3] for sample in folder.listed(tmp_path).test} == {"test"}


def test_a_test_folder_without_classes_is_passed_over(tmp_path):
    pictures(tmp_path, "a", "b")
    picture(tmp_path / "test" / "0.png")
    assert {sample.path.parts[-3] for sample in folder.listed(tmp_path).test} == {"val"}


def tiny_imagenet(root):
    """The official layout: images one folder deeper, boxes beside them, a list for val, and a test without labels."""
    wnids = ["n02124075", "n01443537"]
    for wnid in wnids:
        for i in range(3):
            picture(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
    lines = []
    for i in range(4):
        picture(root / "val" / "images" / f"val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{wnids[i % 2]}\t0\t32\t44\t62\n")
    picture(root / "test" / "images" / "test_0.JPEG")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "words.txt").write_text("n01443537\tgoldfish\n")
    return root


def test_tiny_imagenet_is_read_as_it_is_published(tmp_path):
    classes, train, test = folder.listed(tiny_imagenet(tmp_path))
    assert classes == ("n01443537", "n02124075")
    assert [sample.label for sample in train] == [0, 0, 0, 1, 1, 1]
    assert sorted(names(test)) == [
        "images/val_0.JPEG=1",
        "images/val_1.JPEG=0",
        "images/val_2.JPEG=1",
        "images/val_3.JPEG=0",
    ]
    assert folder.load(tmp_path, 5).test.images.shape == (4, 3, 5, 5)


def test_a_fifth_of_every_class_is_held_out_where_there_is_no_test_folder(tmp_path):
    for name, count in (("a", 10), ("b", 5), ("c", 2)):
        pictures(tmp_path, name, count=count, parts=("",))
    classes, train, test = folder.listed(tmp_path)
    assert classes == ("a", "b", "c")
    assert [sum(sample.label == label for sample in test) for label in range(3)] == [2, 1, 1]
    assert len({sample.path for sample in (*train, *test)}) == len(train) + len(test) == 17
    assert folder.listed(tmp_path) == (classes, train, test)


def test_hidden_files_are_left_out_links_followed_and_extensions_read_in_any_case(tmp_path):
    pictures(tmp_path, "a", "b")
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "a" / "._0.png").write_bytes(b"not one either")
    (tmp_path / "train" / "a" / "Thumbs.db").write_bytes(b"nor this")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    picture(tmp_path / "train" / "a" / ".hidden" / "x.png")
    picture(tmp_path / "train" / "a" / "deeper" / "UPPER.JPG")
    for name in ("x.bmp", "x.GIF", "x.webp", "x.tif", "x.ppm"):
        picture(tmp_path / "train" / "a" / name)
    outside = picture(tmp_path.parent / f"{tmp_path.name} outside" / "c" / "linked.png")
    (tmp_path / "train" / "b" / "link.png").symlink_to(outside)
    (tmp_path / "train" / "b" / "folder").symlink_to(outside.parent)
    (tmp_path / "train" / "b" / "circle").symlink_to(tmp_path / "train" / "b")
    listed = folder.listed(tmp_path)
    found = {name: sorted(s.path.name for s in listed.train if s.label == label) for label, name in enumerate("ab")}
    assert found["a"] == ["0.png", "1.png", "UPPER.JPG", "x.GIF", "x.bmp", "x.ppm", "x.tif", "x.webp"]
    assert found["b"] == ["0.png", "1.png", "link.png", "linked.png"]
    assert len(folder.load(tmp_path, 4).train.labels) == 12


# --- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(7, 7), (9, 7), (7, 12), (31, 8), (8, 31), (5, 4), (100, 63), (1, 1), (3, 1)])
@pytest.mark.parametrize("side", [1, 7, 8])
def test_pixels_are_those_of_torchvision(tmp_path, size, side):
    path = picture(tmp_path / "x.png", size)
    theirs = Compose([Resize(side), CenterCrop(side), PILToTensor()])(Image.open(path).convert("RGB"))
    assert torch.from_numpy(folder._pixels(path, side).copy()).equal(theirs)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "1", "P", "LA", "I;16"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    grey = Image.fromarray(np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    else:
        image = grey.convert("P") if mode == "P" else grey.convert("RGB").convert(mode)
    image.save(path)
    pixels = folder._pixels(path, 8)
    assert pixels.shape == (3, 8, 8)
    expected = grey.convert("1").convert("L") if mode == "1" else grey
    assert (pixels == np.asarray(expected)).all()


def test_a_palette_with_transparency_warns_of_nothing(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "x.png", transparency=b"\x00\x80")
    assert folder._pixels(tmp_path / "x.png", 4)[:, 0, 0].tolist() == [10, 20, 30]


# --- what cannot be read ---------------------------------------------------------------------------------------------

PNG = bytes.fromhex("89504e470d0a1a0a")
DAMAGE = {
    "empty": b"",
    "text": b"no image at all",
    "a signature": PNG,
    "a header": PNG + bytes.fromhex("0000000d49484452000000080000000808020000004b6d29dc"),
    "a wrong checksum": PNG + bytes.fromhex("0000000d494844520000000800000008080200000000000000"),
    "a bomb": PNG + bytes.fromhex("0000000d4948445200ffffff00ffffff080200000022db2a42"),
}


@pytest.mark.parametrize("raw", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_image_is_counted_and_named(tmp_path, raw):
    pictures(tmp_path, "a", "b")
    (tmp_path / "val" / "b" / "0.png").write_bytes(raw)
    text = r"1 of 8 images cannot be read: .*b.0\.png \(.+\)\. A share of 0 may be; .* unreadable=0\.13"
    with pytest.raises(DataError, match=text):
        folder.load(tmp_path, 4)
    with pytest.warns(MomentexWarning, match="left out"):
        assert len(folder.load(tmp_path, 4, unreadable=0.13).test.images) == 3  # what the error says is enough


@pytest.mark.parametrize("extension", ["png", "jpg", "gif", "bmp", "tif", "webp", "ppm"])
@pytest.mark.parametrize("kept", [0.03, 0.3, 0.6, 0.9])
def test_no_part_of_a_file_brings_anything_else_than_an_image_or_our_error(tmp_path, extension, kept):
    pictures(tmp_path, "a", "b")
    path = picture(tmp_path / "train" / "a" / f"part.{extension}", (40, 30))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Pillow's own, about what it finds
        try:
            images = folder.load(tmp_path, 4).train.images
        except DataError as error:
            images, said = torch.zeros(5), str(error)
    assert len(images) == 5
    assert not said or f"1 of 9 images cannot be read: {path} (" in said


def test_numbers_without_a_range_and_links_to_nothing_cannot_be_read(tmp_path):
    pictures(tmp_path, "a", "b", count=4)
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "train" / "a" / "float.tif")
    (tmp_path / "train" / "a" / "gone.png").symlink_to(tmp_path / "nothing")
    with pytest.raises(
        DataError, match=r"2 of 18 images .*float\.tif \(mode F: its numbers have no range.*gone\.png \("
    ):
        folder.load(tmp_path, 4)


def spoil(root, count):
    pictures(root, "a", "b", count=10)
    for i in range(count):
        (root / "train" / "a" / f"{i}.png").write_bytes(b"")
    return root


def test_what_is_allowed_to_fail_is_left_out_with_a_warning(tmp_path):
    spoil(tmp_path, 4)
    with pytest.warns(
        MomentexWarning, match=r"4 of 40 images cannot be read: .*a.0\.png .*a.3\.png .*\. They are left out"
    ):
        train, test = folder.load(tmp_path, 7, unreadable=0.1)
    assert train.labels.bincount().tolist() == [6, 10]
    assert test.labels.bincount().tolist() == [10, 10]
    for image, path in zip(train.images[:6], sorted((tmp_path / "train" / "a").glob("*.png"))[4:], strict=True):
        assert image.equal(torch.from_numpy(folder._pixels(path, 7).copy()))


def test_one_more_than_is_allowed_is_refused_and_five_are_named(tmp_path):
    with pytest.raises(
        DataError, match=r"7 of 40 images cannot be read: (.*?\.png \([^)]*\)(, )?){5}…\. .* 0\.15 may be"
    ):
        folder.load(spoil(tmp_path, 7), 4, unreadable=0.15)


def test_a_class_of_which_nothing_can_be_read_is_refused(tmp_path):
    spoil(tmp_path, 10)
    with (
        pytest.warns(MomentexWarning, match="10 of 40"),
        pytest.raises(DataError, match="no image to train on of class a can be read"),
    ):
        folder.load(tmp_path, 4, unreadable=0.5)


def test_where_all_can_be_read_nothing_is_said(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder.load(spoil(tmp_path, 0), 4, unreadable=0.5)


# --- what is not there -----------------------------------------------------------------------------------------------


def nothing(root):
    return root / "none"


def a_file(root):
    picture(root / "x.png")
    return root / "x.png"


def empty_class(root):
    (pictures(root, "a", "b") / "train" / "c").mkdir()
    (root / "train" / "c" / "readme.txt").write_text("")


def differing(root):
    pictures(root, "a", "b", "c", parts=("train",))
    pictures(root, "a", "b", "d", "e", parts=("val",))


def unannotated(root):
    (tiny_imagenet(root) / "val" / "images" / "val_2.JPEG").unlink()
    picture(root / "val" / "images" / "more.JPEG")


def misannotated(root):
    (tiny_imagenet(root) / "val" / "val_annotations.txt").write_text("val_0.JPEG n02124075\n")


def single(root):
    pictures(root, "a", "b", parts=("",))
    picture(root / "c" / "0.png")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (nothing, r"none is no folder; it must hold train/CLASS/\*\.jpg and val/CLASS/\*\.jpg, or CLASS/\*\.jpg"),
        (a_file, r"x\.png is no folder"),
        (lambda root: None, "holds no folders; it must hold one for each class, with images in it"),
        (lambda root: (root / "train").mkdir(), "train holds no folders"),
        (lambda root: picture(root / "x.png"), "holds no folders"),
        (lambda root: pictures(root, "a") and None, r"train holds one class only, a; classifying needs two or more"),
        (empty_class, r"train: no images of class c\. Remove the folders, or fill them"),
        (differing, r"differ\. Only in training: c; only in testing: d, e\. Give both the same folders"),
        (
            lambda root: pictures(root, "a", "b", parts=("train",)) and None,
            r"none to test on: .* test, val, valid, val",
        ),
        (
            unannotated,
            r"differ\. Without an image: val_2\.JPEG; without a line: more\.JPEG\. Extract the archive again",
        ),
        (misannotated, r"a line without a class: \['val_0\.JPEG n02124075'\]\. It must be: image, tab, class"),
        (single, r"class c has a single image; one to train on and one to test on are needed"),
    ],
)
def test_what_is_missing_is_said(tmp_path, make, text):
    root = make(tmp_path)
    with pytest.raises(DataError, match=text):
        folder.load(root if make in (nothing, a_file) else tmp_path, 4)


@pytest.mark.parametrize("closed", ["train", "train/b", "train/b/deeper"])
def test_a_folder_that_cannot_be_looked_into_is_not_an_empty_one(tmp_path, monkeypatch, closed):
    pictures(tmp_path, "a", "b")
    picture(tmp_path / "train" / "b" / "deeper" / "0.png")
    scandir = os.scandir

    def refusing(path):  # whoever runs this may be allowed everything
        if Path(path) == tmp_path / closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=rf"{closed} cannot be looked into \(Permission denied\)"):
        folder.load(tmp_path, 4)


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", True])
def test_a_size_is_a_number_of_pixels(tmp_path, size):
    with pytest.raises(OutOfRange, match=rf"size is {re.escape(repr(size))}; it must be a whole number of pixels"):
        folder.load(tmp_path, size)


def test_a_share_is_a_fraction(tmp_path):
    with pytest.raises(OutOfRange, match="unreadable is 3"):
        folder.load(tmp_path, 4, unreadable=3)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_more_than_half_of_the_memory_is_refused_with_both_numbers():
    folder.check_memory(1000, 10, 600_000)
    folder.check_memory(10**9, 1000, None)
    with pytest.raises(
        DataError, match=r"1,281,167 images of 224 × 224 pixels need 192\.9 GB .* available is 10\.0 GB"
    ):
        folder.check_memory(1_281_167, 224, 20 * 10**9)
    with pytest.raises(DataError, match="Ask for smaller images, or for fewer"):
        folder.check_memory(1001, 10, 600_000)


def test_memory_is_asked_for_before_anything_is_decoded(tmp_path):
    pictures(tmp_path, "a", "b")
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"8 images of 100000000 × 100000000 pixels need 240,000,000\.0 GB"):
        folder.load(tmp_path, 10**8)


def test_available_memory_is_less_than_there_is():
    assert 0 < folder.available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- real data -------------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.skipif("MOMENTEX_DATA" not in os.environ, reason="MOMENTEX_DATA names no folder")
def test_the_real_tiny_imagenet_has_two_hundred_classes():
    train, test = folder.load(Path(os.environ["MOMENTEX_DATA"]) / "tiny-imagenet-200", 64)
    assert len(train.classes) == 200
    assert train.classes[0] == "n01443537"
    for part in (train, test):
        assert part.images.shape == (len(part.labels), 3, 64, 64)
        assert len(part.labels.bincount().unique()) == 1
