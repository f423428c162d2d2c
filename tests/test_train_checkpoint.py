"""A checkpoint holds everything exactly, is refused if a single bit of it differs, and never runs code."""

from __future__ import annotations

import ast
import io
import math
import pickle
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

import momentex.train
from momentex.errors import RunError
from momentex.train import checkpoint
from momentex.train.checkpoint import Snapshot, join, merged, newest, read, save_position, split, write
from tests.compare import assert_same_bits
from tests.train_runs import Told, assert_same_run, checkpoints, fitted, tiny, trained

SNAPSHOT = merged(
    [
        split({"w": torch.arange(6.0).view(2, 3), "steps": torch.tensor(7)}, "model"),
        split({"lr": 0.1, "best": math.inf, "names": ["a", ("é", None, True)], 3: {"x": torch.zeros(2)}}, "rate"),
    ]
)


def assert_same_snapshot(given: Snapshot, wanted: Snapshot) -> None:
    assert given.facts == wanted.facts
    assert given.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert_same_bits(given.tensors[name], tensor)


# --- exactly ---------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda some: (
        st.lists(some, max_size=3)
        | st.tuples(some, some)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.booleans()), some)
    ),
    max_leaves=8,
)


@given(values)
def test_what_is_split_and_written_is_joined_again(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("written") / "1.safetensors"
    write(path, split(value, "it"))
    found = join(read(path), "it")
    assert found == value
    assert repr(found) == repr(value)  # True is not 1, a tuple no list, and the order of a dict stays


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    one, two, three = (torch.full((1,), float(i)) for i in range(3))
    write(tmp_path / "1.safetensors", split({"a.b": one, "a": {"b": two}, "a.b'": three}, "it"))
    found = join(read(tmp_path / "1.safetensors"), "it")
    assert [found["a.b"].item(), found["a"]["b"].item(), found["a.b'"].item()] == [0.0, 1.0, 2.0]


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
def test_a_tensor_keeps_its_bits_whatever_its_kind_shape_and_layout(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = (torch.randn(2, 3, 4, 5) * 3).to(dtype)
    tensors = {
        "plain": whole,
        "last": whole.contiguous(memory_format=torch.channels_last),
        "part": whole[1:, ::2],
        "none": whole[:0],
        "number": whole[0, 0, 0, 0],
        "spread": whole[0, 0, 0, 0].expand(3, 2),
    }
    write(tmp_path / "1.safetensors", split(tensors, "it"))
    for name, found in join(read(tmp_path / "1.safetensors"), "it").items():
        assert found.shape == tensors[name].shape
        assert found.dtype == dtype
        assert torch.equal(found, tensors[name])


def test_nan_and_minus_zero_keep_their_bits(tmp_path: Path) -> None:
    odd = torch.tensor([math.nan, -math.nan, math.inf, -0.0, 1e-45])
    write(tmp_path / "1.safetensors", split(odd, "it"))
    assert_same_bits(join(read(tmp_path / "1.safetensors"), "it"), odd)


def test_two_names_for_one_tensor_are_both_written(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    write(tmp_path / "1.safetensors", split({"a": weight, "b": weight, "row": weight[1], "turned": weight.T}, "it"))
    found = join(read(tmp_path / "1.safetensors"), "it")
    assert_same_bits(found["a"], weight)
    assert_same_bits(found["b"], weight)
    assert_same_bits(found["row"], weight[1].clone())
    assert_same_bits(found["turned"], weight.T.contiguous())


def test_the_same_snapshot_gives_the_same_bytes(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / f"{number}.safetensors", SNAPSHOT)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_what_cannot_be_held_is_an_error_that_names_it() -> None:
    with pytest.raises(RunError, match=r"model\.head\._extra_state is a bytes, which a checkpoint cannot hold"):
        split({"head._extra_state": b"x"}, "model")
    with pytest.raises(RunError, match=r"cannot hold tensors of torch\.complex128: the format has no such numbers"):
        write(Path("never.safetensors"), split(torch.zeros(2, dtype=torch.complex128), "it"))


# --- or not at all ---------------------------------------------------------------------------------------------------


def test_one_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "1.safetensors"
    write(path, SNAPSHOT)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=re.escape(f"the checkpoint {path} ")):
            read(path)
    path.write_bytes(whole)
    assert_same_snapshot(read(path), SNAPSHOT)


def test_a_file_that_was_cut_off_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "1.safetensors"
    write(path, SNAPSHOT)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(RunError, match="cannot be read: SafetensorError"):
            read(path)


def test_garbage_is_noticed(tmp_path: Path) -> None:
    path, draw = tmp_path / "1.safetensors", random.Random(0)
    for _ in range(300):
        path.write_bytes(draw.randbytes(draw.randrange(300)))
        with pytest.raises(RunError, match="cannot be read"):
            read(path)


def test_a_folder_or_nothing_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.safetensors").mkdir()
    for name in ("1.safetensors", "2.safetensors"):
        with pytest.raises(RunError, match=f"{name} cannot be read"):
            read(tmp_path / name)


# --- and never code --------------------------------------------------------------------------------------------------


class Bomb:
    """What would run if somebody unpickled it."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of a checkpoint was run')",)


def lies() -> dict[str, bytes]:
    """Files that are not what they say."""
    zipped = io.BytesIO()
    torch.save({"model": Bomb()}, zipped)
    tensors = {"x": torch.zeros(2)}
    huge = b'{"__metadata__":{}}'
    return {
        "pickle": pickle.dumps(Bomb()),
        "torch.save": zipped.getvalue(),
        "huge header": struct.pack("<Q", 2**62) + huge,
        "header of another length": struct.pack("<Q", len(huge) + 4) + huge,
        "beyond the end": _with_header('{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
        "overlapping": _with_header(
            '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
        ),
        "unknown numbers": _with_header('{"x":{"dtype":"Q7","shape":[2],"data_offsets":[0,8]}}'),
        "no facts": save(tensors),
        "facts of somebody else": save(tensors, metadata={"momentex": "12 {}"}),
        "no checksum": save(tensors, metadata={"momentex": "{}"}),
        "deep": save(tensors, metadata={"momentex": "0 " + "[" * 100_000}),
    }


def _with_header(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + bytes(8)


@pytest.mark.parametrize("lie", lies())
def test_a_file_that_lies_is_refused_and_runs_nothing(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "1.safetensors"
    path.write_bytes(lies()[lie])
    with pytest.raises(RunError, match=re.escape(str(path))):
        read(path)


def test_nothing_in_training_reads_what_can_run_code() -> None:
    banned = {"pickle", "marshal", "shelve", "dill", "joblib", "runpy", "eval", "exec", "compile", "__import__"}
    for path in Path(momentex.train.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not names & banned, f"{path.name}, line {node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save"), ("np", "load")}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{path.name}, line {node.lineno}"


# --- the checkpoints of a run ----------------------------------------------------------------------------------------


def numbered(number: int) -> Snapshot:
    return Snapshot({"x": torch.full((3,), float(number))}, {"number": number})


def stems(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.iterdir())


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for number in (0, 5, 10, 999_999_999, 1_000_000_000):
        save_position(tmp_path / "c", number, numbered(number))
        snapshot, problems = newest(tmp_path / "c")
        assert snapshot is not None
        assert snapshot.facts == {"number": number}
        assert problems == []
    assert stems(tmp_path / "c") == [999_999_999, 1_000_000_000]


def test_a_damaged_one_is_passed_over_and_does_not_push_out_a_whole_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save_position(tmp_path, number, numbered(number))
    (tmp_path / "000000003.safetensors").write_bytes(b"")
    snapshot, problems = newest(tmp_path)
    assert snapshot is not None
    assert snapshot.facts == {"number": 2}
    assert len(problems) == 1
    assert "000000003.safetensors cannot be read" in problems[0]
    (tmp_path / "000000004.safetensors").write_bytes(b"damaged as well")
    save_position(tmp_path, 3, numbered(3))
    assert stems(tmp_path) == [2, 3]


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("notes.safetensors", ".000000009.safetensors.part", "5.txt")]
    for path in mine:
        path.write_text("mine")
    for number in (1, 2, 3):
        save_position(tmp_path, number, numbered(number))
    snapshot, _ = newest(tmp_path)
    assert snapshot is not None
    assert snapshot.facts == {"number": 3}
    assert all(path.read_text() == "mine" for path in mine)


# --- of a run that goes on -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tiny(checkpoint_steps=1), tmp_path_factory.mktemp("whole") / "run")


def stopped(to: Path, step: int) -> Path:
    """A run that ended after so many steps, and had a checkpoint of each."""

    def at(now: int) -> None:
        if now == step:
            raise RuntimeError("the lights went out")

    with pytest.raises(RuntimeError, match="lights"):
        fitted(tiny(checkpoint_steps=1), to, Told(at))
    assert [int(path.stem) for path in checkpoints(to)] == [step - 1, step]
    return to


DAMAGES = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "a bit": lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "garbage": lambda whole: random.Random(0).randbytes(len(whole)),
    "pickle": lambda whole: pickle.dumps(Bomb()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(whole: Path, tmp_path: Path, damage: str) -> None:
    run = stopped(tmp_path / "run", 3)
    newest_one = checkpoints(run)[-1]
    newest_one.write_bytes(DAMAGES[damage](newest_one.read_bytes()))
    told = Told()
    fitted(tiny(checkpoint_steps=1), run, told)
    assert str(newest_one) in told.said[0]
    assert told.said[0].endswith("The one before it is used.")
    assert told.said[1] == "going on after epoch 0, step 2"
    assert_same_run(run, whole)


def test_if_all_are_damaged_the_run_does_not_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", 6)
    for path in checkpoints(run):
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RunError, match=r"every checkpoint in .* is damaged: .*5\.safetensors .*Remove the folder to"):
        fitted(tiny(checkpoint_steps=1), run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_the_comparison_would_notice_another_checkpoint(whole: Path, tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", 3)
    at = checkpoint.read(checkpoints(run)[-1])
    at.tensors["model.stem.weight"][0, 0, 0, 0] *= 1 + 2**-22
    write(checkpoints(run)[-1], at)
    fitted(tiny(checkpoint_steps=1), run)
    with pytest.raises(AssertionError):
        assert_same_run(run, whole)
