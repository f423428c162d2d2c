"""The run directory: one process, one recipe, nothing of anybody else's; and it may be moved, linked and looked at."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from momentex.errors import RunError
from momentex.train.engine import evaluate_run
from momentex.train.recipe import SGD, Adam, Cosine, Data, Exchange, Recipe, Reported
from momentex.train.record import Record, locked
from momentex.train.resolved import differences, from_json, to_json
from tests.train_runs import (
    STARTING,
    Process,
    Told,
    assert_same_run,
    checkpoints,
    everything,
    fitted,
    last,
    metrics,
    tiny,
    trained,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tiny(), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run that was interrupted in its second epoch, at step 6 of 8."""
    to = tmp_path / "half"

    def at(step: int) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fitted(tiny(), to, Told(at))
    return to


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- one process -----------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_which_the_first_is_and_the_lock_ends_with_it(tmp_path: Path) -> None:
    to, recipe = tmp_path / "run", everything(epochs=200)
    process = Process(recipe, to)
    process.wait_until_it_fits()
    patience = time.monotonic() + STARTING
    while not checkpoints(to):
        assert time.monotonic() < patience
        time.sleep(0.01)
    owner = (to / ".lock").read_text().strip()
    assert re.fullmatch(r"process \d+ on .+", owner)
    with pytest.raises(RunError, match=rf"is in use by another process \({re.escape(owner)}\)\. Wait for it, or name"):
        fitted(recipe, to)
    with pytest.raises(RunError, match="is in use by another process"), locked(to):
        pass
    assert process.running
    process.send(signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    with locked(to) as record:
        assert record.recipe() == recipe


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    def at(step: int) -> None:
        raise RuntimeError("of the reporter")

    with pytest.raises(RuntimeError, match="of the reporter"):
        fitted(tiny(), tmp_path / "run", Told(at))
    fitted(tiny(), tmp_path / "run")


def test_a_run_is_evaluated_while_it_goes_on(tmp_path: Path) -> None:
    to, recipe = tmp_path / "run", tiny(epochs=150, checkpoint_steps=1)
    process = Process(recipe, to)
    process.wait_until_it_fits()
    patience, looks = time.monotonic() + STARTING, 0
    while not (to / "best.safetensors").exists():
        assert time.monotonic() < patience
        time.sleep(0.01)
    while process.running and looks < 40:
        for which in ("last", "best"):
            found = evaluate_run(to, which=which)
            assert found["nll"] > 0
        looks += 1
    assert looks > 3
    code, said = process.end()
    assert code == 0, said


# --- one recipe ------------------------------------------------------------------------------------------------------


def test_another_recipe_is_refused_with_the_difference_and_nothing_is_touched(half: Path) -> None:
    before = content(half)
    other = tiny(epochs=3, optimizer=Adam(), exchange=Exchange(layer="stage", p=0.25))
    with pytest.raises(RunError) as caught:
        fitted(other, half)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{half} holds a run of another recipe:"
    assert lines[-1] == "Name another folder with --to, or remove this one."
    assert "  epochs: 2 there, 3 now" in lines
    assert "  optimizer.is: SGD there, Adam now" in lines
    assert "  exchange: None there, nothing now" in lines
    assert "  exchange.p: nothing there, 0.25 now" in lines
    assert content(half) == before


def test_what_does_not_change_the_result_may_change(half: Path, whole: Path) -> None:
    other = tiny(data=replace(tiny().data, root=Path("/elsewhere")), checkpoint_steps=1, paper=Reported(error=1.0))
    assert differences(tiny(), other) == []
    fitted(other, half)
    assert_same_run(half, whole)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"label_smoothing": 0.1},
        {"model_options": {"channels": 1}},
        {"optimizer": SGD(lr=0.05, nesterov=True)},
        {"schedule": Cosine()},
        {"data": Data(name="digits", train_size=41)},
        {"precision": "bfloat16"},
    ],
    ids=str,
)
def test_every_other_change_counts(change: dict) -> None:
    assert len(differences(tiny(), tiny(**change))) >= 1


def test_a_recipe_survives_json() -> None:
    for recipe in (
        Recipe(),
        tiny(),
        everything(),
        tiny(optimizer=Adam(), data=Data(name="folder", folder=Path("ä b"))),
    ):
        assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe
    whole = to_json(Recipe())
    del whole["data"]["root"], whole["seed"]  # written by a version that did not have them
    assert from_json(whole) == Recipe()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"recipe\.json cannot be read: JSONDecodeError"),
        ("[]", r"recipe\.json holds no recipe"),
        ('{"is": "Recipe", "epoch": 3}', r"recipe's Recipe has epoch, which this version does not know"),
        ('{"is": "Recipes"}', r"a part 'Recipes', which this version does not know"),
        ('{"is": "Recipe", "epochs": "three"}', r"recipe\.json cannot be read: TypeError"),
        ('{"is": "Recipe", "epochs": 0}', r"epochs is 0; it must be 1 or more"),
    ],
)
def test_a_recipe_that_somebody_broke_is_an_error(half: Path, text: str, message: str) -> None:
    (half / "recipe.json").write_text(text)
    for use in (lambda: fitted(tiny(), half), lambda: evaluate_run(half)):
        with pytest.raises(RunError, match=message):
            use()


def test_a_checkpoint_of_another_recipe_is_refused_even_where_the_directory_was_edited(half: Path) -> None:
    path = half / "recipe.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 4'))
    with pytest.raises(RunError, match=r"of another recipe or of other data:\n  recipe\.epochs: 2 there, 4 now"):
        fitted(tiny(epochs=4), half)


# --- nothing of anybody else's ---------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run_directory_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "d.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    with pytest.raises(
        RunError, match=r"is not empty and no run directory \(it has a\.txt, b\.txt, c\.txt\)\. Name an"
    ):
        fitted(tiny(), tmp_path)
    assert sorted(content(tmp_path)) == ["a.txt", "b.txt", "c.txt", "d.txt"]


def test_a_file_of_somebody_else_that_is_called_lock_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    with pytest.raises(RunError, match="it has lock"):
        fitted(tiny(), tmp_path)
    assert content(tmp_path) == {"lock": b"mine"}


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".recipe.json.part"]], ids=str)
def test_an_empty_folder_and_what_a_run_leaves_that_was_killed_at_its_beginning_are_taken(
    tmp_path: Path, whole: Path, left: list[str]
) -> None:
    for name in left:
        (tmp_path / name).write_text("{")
    assert_same_run(trained(tiny(), tmp_path), whole)


def test_a_path_that_cannot_be_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for to in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=f"{to} cannot be a run directory: "):
            fitted(tiny(), to)
    assert content(tmp_path) == {"file": b"mine"}


def test_a_folder_where_one_may_not_write_is_an_error(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from momentex.errors import RunError\n"
        "from momentex.train.record import locked\n"
        "folder = Path(sys.argv[1]) / 'closed'; folder.mkdir(); folder.chmod(0o555)\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for to in (folder, folder / 'run'):\n"
        "    try:\n"
        "        with locked(to): pass\n"
        "    except RunError as error: print(error)\n"
    )
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    closed = tmp_path / "closed"
    assert done.stdout.splitlines() == [
        f"{to} cannot be a run directory: Permission denied." for to in (closed, closed / "run")
    ]


def test_an_error_before_training_leaves_no_directory_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folders"):
        fitted(tiny(data=Data(name="folder", folder=tmp_path)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- moved, linked, looked at ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with spaces", "ünïcödé ☃", "moved"])
def test_a_run_that_was_moved_goes_on(half: Path, whole: Path, tmp_path: Path, name: str) -> None:
    to = tmp_path / "elsewhere" / name
    shutil.copytree(half, to)
    told = Told()
    fitted(tiny(), to, told)
    assert told.said == ["going on after epoch 1, step 2"]
    assert_same_run(to, whole)


def test_a_run_behind_a_link_is_the_same_run(half: Path, whole: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(half)
    with locked(half), pytest.raises(RunError, match="in use"):
        fitted(tiny(), link)
    fitted(tiny(), link)
    assert_same_run(half, whole)


def test_a_relative_path_is_one(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_same_run(trained(tiny(), Path("runs/here")), whole)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: "",
        lambda text: text.replace('"loss": ', '"loss": 1'),
        lambda text: text + text,
        lambda text: "not JSON\n5\n[]\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(", ", ","),
    ],
)
def test_metrics_that_somebody_edited_are_written_again_from_the_checkpoint(half: Path, whole: Path, edit) -> None:
    path = half / "metrics.jsonl"
    before = path.read_bytes()
    path.write_bytes(edit(before.decode()).encode())
    edited = not (path.read_bytes().startswith(before) or before.startswith(path.read_bytes()))
    told = Told()
    fitted(tiny(), half, told)
    assert ("metrics.jsonl was not what the checkpoint says, and was written anew." in told.said) == edited
    assert_same_run(half, whole)


def test_files_that_are_not_needed_may_be_lost(half: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "times.jsonl", "run.json", "best.safetensors", ".lock"):
        (half / name).unlink()
    fitted(tiny(), half)
    assert metrics(half) == metrics(whole)
    assert last(half).facts == last(whole).facts


@pytest.mark.parametrize("text", ["", "{", "[]", '{"starts": 5}', '{"starts": [1]}', '{"starts": [{}]}'])
def test_a_damaged_run_json_does_not_stop_a_run(half: Path, whole: Path, text: str) -> None:
    (half / "run.json").write_text(text)
    fitted(tiny(), half)
    assert_same_run(half, whole)
    assert json.loads((half / "run.json").read_text())["starts"][-1]["threads"] == 1


def test_metrics_without_a_checkpoint_are_not_overwritten(tmp_path: Path, whole: Path) -> None:
    to = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(to / "checkpoints")
    with pytest.raises(RunError, match="has metrics and no checkpoint: a new run would overwrite them"):
        fitted(tiny(), to)
    assert metrics(to) == metrics(whole)


def test_a_run_that_is_complete_is_left_as_it_is(tmp_path: Path, whole: Path) -> None:
    to = shutil.copytree(whole, tmp_path / "run")
    told = Told()
    assert fitted(tiny(), to, told)["last"] == metrics(whole)[-1]
    assert told.said == ["all 2 epochs are complete"]
    assert told.losses == []
    assert_same_run(to, whole)


def test_numbers_are_written_so_that_reading_gives_the_same_bits(whole: Path) -> None:
    for row in metrics(whole):
        assert json.loads(json.dumps(row)) == row
        assert row["loss"] != round(row["loss"], 9)
    assert last(whole).facts["at"]["rows"] == metrics(whole)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_directory_says_what_the_result_depends_on(whole: Path) -> None:
    found = json.loads((whole / "run.json").read_text())
    assert found["seed"] == 0
    (start,) = found["starts"]
    assert start["versions"]["torch"] == torch.__version__
    assert start["device"] == "cpu"
    assert (start["processes"], start["threads"]) == (1, 1)
    assert re.fullmatch(r"crc32 [0-9a-f]{8}", start["model_file"])
    time.strptime(start["at"], "%Y-%m-%dT%H:%M:%S%z")
    assert Record(whole).recipe() == tiny()
    times = [json.loads(line) for line in (whole / "times.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in times] == [1, 2]
    assert all(line["images_per_second"] > 0 for line in times)


def test_a_start_among_other_things_than_the_one_before_says_so(half: Path, whole: Path) -> None:
    path = half / "run.json"
    found = json.loads(path.read_text())
    found["starts"][-1]["versions"]["torch"] = "1.0"
    found["starts"][-1]["model_file"] = "crc32 00000000"
    path.write_text(json.dumps(found))
    told = Told()
    fitted(tiny(), half, told)
    (text,) = [text for text in told.said if "since the last start" in text]
    assert f"versions.torch: 1.0 there, {torch.__version__} now" in text
    assert "model_file: crc32 00000000 there, crc32 " in text
    assert "cores" not in text
    assert len(json.loads(path.read_text())["starts"]) == 2


def test_other_data_under_the_same_recipe_are_refused(tmp_path: Path) -> None:
    folder = _images(tmp_path / "images")
    recipe = tiny(
        data=Data(name="folder", folder=folder, size=8), model_options={"channels": 3}, batch_size=4, epochs=1
    )
    to = trained(recipe, tmp_path / "run")
    shutil.copy(folder / "a" / "0.png", folder / "b" / "9.png")
    with pytest.raises(RunError, match=r"or of other data:\n  data\.training: \d+ images, crc32 \w+ there, \d+ images"):
        fitted(recipe, to)


def _images(folder: Path) -> Path:
    from PIL import Image

    for number, name in enumerate("ab"):
        (folder / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (9, 8), (20 * i, 100 * number, 50)).save(folder / name / f"{i}.png")
    return folder


def test_a_model_whose_code_changed_since_is_refused(tmp_path: Path, half: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from tests.train_models import small\n")
    to, recipe = tmp_path / "run", tiny(model=f"{mine}:small")
    trained(recipe, to)
    mine.write_text(
        "from tests.train_models import Small\ndef small(num_classes): return Small(num_classes, width=9)\n"
    )
    for name in [name for name in sys.modules if name.startswith("_momentex_mine_")]:
        sys.modules.pop(name)  # as in a process that starts anew
    with pytest.raises(
        RunError, match=r"the checkpoint does not fit .*mine\.py:small, whose code must have changed si"
    ):
        fitted(recipe, to)


def test_the_time_zone_and_the_order_of_options_change_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"channels": 1, "num": 2}
    turned = dict(reversed(options.items()))
    assert differences(tiny(model_options=options), tiny(model_options=turned)) == []
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        assert_same_run(trained(tiny(), tmp_path / "run"), whole)
    finally:
        monkeypatch.undo()
        time.tzset()
    (start,) = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert start["at"].endswith("+0545")
