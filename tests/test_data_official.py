"""Where an official set is found, and whether it is whole."""

import tarfile
from dataclasses import replace

import pytest
import torchvision

from momentex.data.official import CIFAR10, CIFAR100, OFFICIAL, locate, located, named, read
from momentex.errors import DataError
from tests.sets import FEW, extract, files_of, knowing, pack

FORMS = [(name, layout) for name, official in FEW.items() for layout in official.layouts]
form = pytest.mark.parametrize(("name", "layout"), FORMS, ids=lambda value: getattr(value, "folder", value))
BINARY10, PYTHON10 = FEW["cifar10"].layouts


# --- what is known of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("official", "theirs"),
    [(CIFAR10, torchvision.datasets.CIFAR10), (CIFAR100, torchvision.datasets.CIFAR100)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_names_and_checksums_of_the_python_form_are_those_that_torchvision_has(official, theirs):
    (layout,) = (layout for layout in official.layouts if layout.kind == "python")
    assert (layout.folder, layout.archive.name, layout.archive.md5) == (
        theirs.base_folder,
        theirs.filename,
        theirs.tgz_md5,
    )
    assert layout.train == tuple(name for name, _ in theirs.train_list)
    assert layout.test == tuple(name for name, _ in theirs.test_list)
    assert layout.md5 == dict([*theirs.train_list, *theirs.test_list, (theirs.meta["filename"], theirs.meta["md5"])])
    assert official.host + layout.archive.name == theirs.url


def test_the_classes_are_as_many_as_their_names_say_and_in_the_order_of_the_alphabet():
    assert [len(set(official.classes)) for official in (CIFAR10, CIFAR100)] == [10, 100]
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)


def test_records_are_a_label_or_two_and_the_pixels():
    assert [(official.record, official.train, official.test) for official in OFFICIAL.values()] == [
        (3073, 50_000, 10_000),
        (3074, 50_000, 10_000),
    ]
    assert CIFAR10.records(CIFAR10.layouts[0], "data_batch_3.bin") == 10_000
    assert CIFAR100.records(CIFAR100.layouts[0], "train.bin") == 50_000


def test_an_unknown_set_is_answered_with_the_known_ones():
    with pytest.raises(
        DataError, match=r"no official set 'cifar-10'; there are cifar10, cifar100\. Did you mean 'cifar10'"
    ):
        named("cifar-10")


# --- where it is -----------------------------------------------------------------------------------------------------


@form
def test_a_folder_is_found_below_and_as_the_root_itself(tmp_path, name, layout):
    folder = extract(FEW[name], layout, tmp_path)
    for root in (tmp_path, folder):
        assert locate(FEW[name], root) == (layout, folder)


@form
def test_an_archive_is_found_below_and_as_the_root_itself(tmp_path, name, layout):
    official = pack(FEW[name], layout.kind, tmp_path)
    for root in (tmp_path, tmp_path / layout.archive.name):
        place = locate(official, root)
        assert (place.layout.folder, place.path) == (layout.folder, tmp_path / layout.archive.name)


def test_extracted_comes_before_packed_and_binary_before_python(tmp_path):
    official = pack(pack(FEW["cifar10"], "python", tmp_path), "binary", tmp_path)
    assert locate(official, tmp_path).path.name == "cifar-10-binary.tar.gz"
    extract(official, PYTHON10, tmp_path)
    assert locate(official, tmp_path).path.name == "cifar-10-batches-py"
    extract(official, BINARY10, tmp_path)
    assert locate(official, tmp_path).path.name == "cifar-10-batches-bin"


def test_one_set_is_not_taken_for_the_other(tmp_path):
    for layout in FEW["cifar100"].layouts:
        folder = extract(FEW["cifar100"], layout, tmp_path)
        assert locate(FEW["cifar10"], tmp_path) is None
        assert locate(FEW["cifar10"], folder) is None


def test_a_folder_of_images_with_train_and_test_is_no_cifar(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "test" / "cat").mkdir(parents=True)
    assert locate(CIFAR100, tmp_path) is None


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    folder = extract(FEW["cifar10"], BINARY10, tmp_path / "data")
    assert locate(FEW["cifar10"], "~/data").path == folder


def test_where_nothing_is_the_error_lists_what_was_looked_for(tmp_path):
    text = (
        r"^No CIFAR-10 in .*\. Looked for the folders cifar-10-batches-bin and cifar-10-batches-py, and for "
        r"cifar-10-binary\.tar\.gz and cifar-10-python\.tar\.gz\. Fetch it with: momentex data get cifar10 --to .*"
    )
    with pytest.raises(DataError, match=text):
        located(CIFAR10, tmp_path)
    with pytest.raises(DataError, match=r"No CIFAR-100 in .*none \(there is no such folder\)\. .*get cifar100 --to "):
        located(CIFAR100, tmp_path / "none")


# --- whether it is whole ---------------------------------------------------------------------------------------------


@form
@pytest.mark.parametrize("packed", [False, True])
def test_every_file_comes_as_it_was_written(tmp_path, name, layout, packed):
    official = pack(FEW[name], layout.kind, tmp_path) if packed else FEW[name]
    if not packed:
        extract(official, layout, tmp_path)
    assert read(official, located(official, tmp_path)) == files_of(FEW[name], layout)


def test_reading_an_archive_writes_nothing(tmp_path):
    official = pack(FEW["cifar10"], "binary", tmp_path)
    read(official, located(official, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


@form
def test_a_missing_file_is_named(tmp_path, name, layout):
    folder = extract(FEW[name], layout, tmp_path)
    for gone in (layout.train[-1], layout.test[0]):
        (folder / gone).unlink()
    lacks = rf"{layout.folder} lacks {layout.train[-1]}, {layout.test[0]}: it is not extracted to the end\. "
    with pytest.raises(DataError, match=lacks + rf"Extract {layout.archive.name} again"):
        read(FEW[name], located(FEW[name], tmp_path))


def test_an_empty_folder_is_one_that_was_not_extracted(tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    with pytest.raises(
        DataError, match=r"cifar-100-binary lacks train\.bin, test\.bin: .* fetch: momentex data get cifar100"
    ):
        read(CIFAR100, located(CIFAR100, tmp_path))


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (12_291, r"data_batch_2\.bin is truncated: 12,291 bytes, and 4 images of 3073 bytes are 12,292\."),
        (0, r"data_batch_2\.bin is truncated: 0 bytes"),
        (12_293, r"data_batch_2\.bin is too long: 12,293 bytes, and 4 images of 3073 bytes are 12,292\."),
    ],
)
def test_a_file_of_another_length_is_refused_with_both_lengths(tmp_path, length, text):
    path = extract(FEW["cifar10"], BINARY10, tmp_path) / "data_batch_2.bin"
    path.write_bytes((path.read_bytes() + b"\0")[:length])
    with pytest.raises(DataError, match=text):
        read(FEW["cifar10"], located(FEW["cifar10"], tmp_path))


@pytest.mark.parametrize(("name", "file", "label"), [("cifar10", "test_batch.bin", 10), ("cifar100", "test.bin", 100)])
def test_a_label_beyond_the_classes_is_refused_with_its_place(tmp_path, name, file, label):
    official, layout = FEW[name], FEW[name].layouts[0]
    path = extract(official, layout, tmp_path) / file
    raw = bytearray(path.read_bytes())
    for number in (2, 4):
        raw[number * official.record + official.label_bytes - 1] = label
    path.write_bytes(raw)
    text = rf"{file}: image 2 has the label {label}; {official.title} has {label} classes, 0 to {label - 1}\."
    with pytest.raises(DataError, match=text):
        read(official, located(official, tmp_path))


def test_coarse_labels_are_not_looked_at(tmp_path):
    path = extract(FEW["cifar100"], FEW["cifar100"].layouts[0], tmp_path) / "test.bin"
    raw = bytearray(path.read_bytes())
    raw[0] = 255
    path.write_bytes(raw)
    assert read(FEW["cifar100"], located(FEW["cifar100"], tmp_path))["test.bin"][0] == 255


@form
def test_a_file_with_another_checksum_is_refused(tmp_path, name, layout):
    folder = extract(FEW[name], layout, tmp_path)
    known = replace(layout, md5={layout.test[0]: "0" * 32})
    official = replace(FEW[name], layouts=tuple(known if each == layout else each for each in FEW[name].layouts))
    text = rf"{folder.name}.{layout.test[0]} \([\d,]+ bytes\) is not the official file: its md5 is \w{{32}}, "
    with pytest.raises(DataError, match=text + "and that of the official one is 0{32}"):
        read(official, located(official, tmp_path))


def test_the_real_checksums_are_asked_of_extracted_files(tmp_path):
    extract(replace(CIFAR10, train=20, test=6), CIFAR10.layouts[1], tmp_path)
    with pytest.raises(
        DataError, match=r"data_batch_1 .* is not the official file: .* is c99cafc152244af753f735de768cd75f"
    ):
        read(CIFAR10, located(CIFAR10, tmp_path))


def test_an_archive_with_another_checksum_is_refused(tmp_path):
    official = pack(FEW["cifar10"], "binary", tmp_path)
    path = tmp_path / "cifar-10-binary.tar.gz"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        DataError, match=r"is not the official archive: its md5 is \w{32}, and it must be \w{32}\. Remove it"
    ):
        read(official, located(official, tmp_path))


def test_half_an_archive_is_refused_with_both_lengths(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b" * 50)
    with pytest.raises(
        DataError, match=r"cifar-10-python\.tar\.gz is truncated: 100 bytes, and it needs 170,498,071\."
    ):
        read(CIFAR10, located(CIFAR10, tmp_path))


@pytest.mark.parametrize("raw", [b"no archive", b"\x1f\x8b\x08\x00 no gzip either", b""])
def test_what_cannot_be_unpacked_is_an_error_of_ours(tmp_path, raw):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(raw)
    official = knowing(FEW["cifar10"], BINARY10, path)
    with pytest.raises(
        DataError, match=r"cifar-10-binary\.tar\.gz cannot be unpacked \(.*\)\. Remove it, and fetch again"
    ):
        read(official, located(official, tmp_path))


def test_an_archive_without_a_file_says_which(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    official = knowing(FEW["cifar10"], BINARY10, path)
    with pytest.raises(DataError, match=r"tar\.gz lacks data_batch_1\.bin, .*, test_batch\.bin: it is not extracted"):
        read(official, located(official, tmp_path))


def test_links_and_files_elsewhere_in_an_archive_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
        archive.add(tmp_path / "secret", "../cifar-10-batches-bin/test_batch.bin")
    official = knowing(FEW["cifar10"], BINARY10, path)
    with pytest.raises(DataError, match=r"lacks .*test_batch\.bin"):
        read(official, located(official, tmp_path))
