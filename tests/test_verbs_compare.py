"""`momentex compare` from beginning to end, with models and data that are not ours."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import momentex
from momentex import cli, flags
from momentex.comparison import store
from momentex.comparison.design import designed
from momentex.comparison.result import Comparison
from momentex.errors import RunError
from momentex.train.record import locked
from momentex.verbs.compare import parsed
from momentex.verbs.report import Report
from tests.test_data_folder import picture

SOURCE = Path(momentex.__file__).parents[1]
PAGE = Path(__file__).parent.parent / "docs" / "comparing.md"

MINE = """
import os
import time
from pathlib import Path
from torch import nn
from momentex.train.recipe import SGD, Data, Evaluation, Exchange, Recipe

class Net(nn.Module):
    def __init__(self, num_classes, breaks):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, stride=2)
        self.stage = nn.Sequential(nn.Tanh(), nn.Conv2d(6, 6, 3), nn.Tanh())
        self.head = nn.Linear(6, num_classes)
        self.breaks, self.steps = breaks, 0

    def forward(self, x):
        self.steps += self.training
        time.sleep(float(os.environ.get("SECONDS_OF_A_STEP", 0)) * self.training)
        exchanged = bool(self.stage._forward_pre_hooks or self.stage._forward_hooks)
        if self.breaks and exchanged and self.steps > 3:
            raise ZeroDivisionError("only where features are exchanged")
        return self.head(self.stage(self.stem(x)).mean((2, 3)))

def net(num_classes, breaks=False):
    return Net(num_classes, breaks)

def recipe(epochs=3, breaks=False):
    return Recipe(
        data=Data(name="digits", train_size=60), model=f"{Path(__file__)}:net", model_options={"breaks": breaks},
        exchange=Exchange(layer="stage", p=1.0), epochs=epochs, batch_size=20, optimizer=SGD(lr=0.05),
        evaluation=Evaluation(batch_size=2000),
    )

def broken():
    return recipe(breaks=True)
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(MINE)
    return path


def compared(*arguments: object) -> int:
    return cli.main(["compare", *map(str, arguments), "--workers", "1", "--threads", "1", "--quiet"])


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("metrics.jsonl"))}


def read(folder: Path) -> Comparison:
    found = store.read(folder)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def folder(mine, tmp_path_factory) -> Path:
    """A recipe of the user's own, the four arms with two seeds."""
    to = tmp_path_factory.mktemp("compared") / "there"
    assert compared(f"{mine}:recipe", "--seeds", 2, "--to", to) == 0
    return to


def test_a_recipe_of_ones_own_is_compared_in_four_arms(folder):
    found = read(folder)
    assert [arm.name for arm in found.arms] == ["baseline", "moex", "labels_only", "lam1"]
    assert found.contrasts[0] == ("moex", "labels_only")
    assert len({(o.arm, o.seed) for o in found.outcomes if o.failure is None}) == 8
    assert {"error", "nll", "calibration"} <= set(found.outcomes[0].last)
    assert (folder / "report.html").stat().st_size < 1_000_000
    assert re.fullmatch(r"momentex compare .*mine\.py:recipe --seeds 2 --to .*", found.facts["command"])


def test_the_same_command_runs_nothing_again_and_prints_the_same_table(folder, mine, capsys):
    before = stamps(folder)
    assert len(before) == 8
    assert compared(f"{mine}:recipe", "--seeds", 2, "--to", folder) == 0
    out = capsys.readouterr().out
    assert stamps(folder) == before
    assert re.search(
        r"^\| arm +\| +error \(%\) \|.* NLL \| calibration error \(%\) \|.* cost \(×\) \|$", out, re.MULTILINE
    )
    assert "**MoEx " in out
    assert out.endswith(f"report: {folder / 'report.html'}\n")


def test_as_json_it_is_the_comparison_and_its_analysis(folder, mine, capsys):
    assert cli.main(["compare", f"{mine}:recipe", "--seeds", "2", "--to", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"comparison", "analysis"}
    assert found["analysis"]["contrasts"][0]["arm"] == "moex"


def test_arms_of_one_seed_begin_alike_and_then_differ(folder):
    """With one seed, what no arm changes is the same to the last digit: the learning rates, and nothing else."""
    outcomes = {(o.arm, o.seed): o for o in read(folder).outcomes}
    for seed in (0, 1):
        rows = [outcomes[arm, seed].curve for arm in ("baseline", "moex", "labels_only", "lam1")]
        assert len({tuple(row["lr"] for row in curve) for curve in rows}) == 1
        assert len({curve[-1]["nll"] for curve in rows}) == 4


def test_another_recipe_is_refused_in_its_folder_and_nothing_is_touched(folder, mine, capsys):
    before = stamps(folder)
    assert compared(f"{mine}:recipe", "--seeds", 2, "--to", folder, "--epochs", 4) == 2
    assert re.search(
        r"holds a comparison of another recipe:\n  epochs: 3 there, 4 now\nName another folder", capsys.readouterr().err
    )
    assert stamps(folder) == before


def test_a_comparison_goes_on_when_recipes_have_got_another_field_since(folder, mine, tmp_path):
    older = shutil.copytree(folder, tmp_path / "older")
    written = json.loads((older / "comparison.json").read_text())
    assert written["recipe"].pop("cutout", "missing") is None
    (older / "comparison.json").write_text(json.dumps(written))
    assert compared(f"{mine}:recipe", "--seeds", 2, "--to", older) == 0


def test_an_arm_that_fails_is_a_gap_and_the_others_are_reported(mine, tmp_path, capsys):
    to = tmp_path / "there"
    assert compared(f"{mine}:broken", "--seeds", 1, "--arms", "baseline", "moex", "--to", to) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| MoEx +\| +— \|.* 0 of 1 \|", out)
    assert "MoEx: failed: ZeroDivisionError: only where features are exchanged" in out
    assert re.search(r"\| baseline +\| +\d+\.\d\d \|", out)
    assert "0 of 1" in (to / "report.html").read_text(encoding="utf8")


def test_a_folder_of_images_and_a_model_of_torchvision_are_compared(tmp_path, capsys):
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            for i in range(3):
                picture(tmp_path / "images" / part / name / f"{i}.png", (32, 32))
    given = ["--data.folder", tmp_path / "images", "--data.size", 32, "--model", "torchvision:resnet18"]
    asked = ["--exchange.layer", "layer1", "--epochs", 1, "--batch-size", 3, "--seeds", 1, "--arms", "baseline", "moex"]
    assert compared(*given, *asked, "--to", tmp_path / "there") == 0
    out = capsys.readouterr().out
    assert "There is one seed: no standard error, no interval, no verdict." in out
    assert f"- data: {tmp_path / 'images'}" in out
    found = read(tmp_path / "there")
    assert [o.failure for o in found.outcomes] == [None, None]
    assert (
        json.loads((tmp_path / "there" / "moex" / "seed-0" / "recipe.json").read_text())["exchange"]["layer"]
        == "layer1"
    )


def test_a_comparison_that_was_killed_goes_on_to_the_same_numbers(mine, folder, tmp_path):
    to, arms = tmp_path / "killed", ["--arms", "baseline", "moex", "--seeds", "1", "--workers", "1", "--threads", "1"]
    command = [sys.executable, "-m", "momentex", "compare", f"{mine}:recipe", *arms, "--quiet", "--to", str(to)]
    slowly = os.environ | {"PYTHONPATH": str(SOURCE), "SECONDS_OF_A_STEP": "0.15"}
    process = subprocess.Popen(command, env=slowly, stdout=subprocess.DEVNULL)
    first, second = (to / arm / "seed-0" / "metrics.jsonl" for arm in ("baseline", "moex"))
    wait_until(lambda: process.poll() is not None or second.exists())
    process.kill()
    process.wait()
    wait_until(lambda: nobody_is_in(second.parent))
    before = first.stat().st_mtime_ns
    assert len(first.read_text().splitlines()) == 3
    assert len(second.read_text().splitlines()) < 3
    assert compared(f"{mine}:recipe", *arms[:5], "--to", to) == 0
    assert first.stat().st_mtime_ns == before  # it was complete
    whole = {(o.arm, o.seed): (o.last, o.best, o.curve) for o in read(folder).outcomes}
    found = {(o.arm, o.seed): (o.last, o.best, o.curve) for o in read(to).outcomes}
    assert found == {key: whole[key] for key in (("baseline", 0), ("moex", 0))}


def wait_until(there: Callable[[], bool]) -> None:
    patience = time.monotonic() + 120
    while not there():
        assert time.monotonic() < patience
        time.sleep(0.01)


def nobody_is_in(run: Path) -> bool:
    """Runs notice that nobody waits for them any more, and stop with a checkpoint."""
    try:
        with locked(run):
            return True
    except RunError:
        return False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--seed", "1"], r"--seed is that of one run; a comparison takes --seeds 5"),
        (["--exchange", "None"], r"--exchange is decided by the arms"),
        (["--seeds", "x"], r"--seeds has 'x'; it is a number"),
        (["--seeds", "0"], r"a comparison needs a seed at least"),
        (["--arms", "moex"], r"a comparison needs two arms or more, and there is moex"),
        (["--arms", "moex", "basline"], r"there is no arm 'basline'\. Did you mean 'baseline'\?"),
        (["--arms", "moex", "moex"], r"the arm moex is there twice"),
        (["--exchange.layer", "nowhere"], r"the arm moex: .*nowhere"),
    ],
)
def test_what_is_asked_wrongly_is_refused_and_leaves_nothing(mine, tmp_path, capsys, given, message):
    assert compared(f"{mine}:recipe", "--to", tmp_path / "there", *given) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "there").exists()


# --- the page --------------------------------------------------------------------------------------------------------

COMMANDS = re.findall(r"^momentex (.*?)(?: +#.*)?$", PAGE.read_text(encoding="utf8"), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_page_are_understood(line, mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    verb, *rest = shlex.split(line)
    if verb == "report":
        assert flags.parse(Report, rest, prog="momentex report").runs
    else:
        assert verb == "compare"
        name, asked = parsed(rest)
        assert designed(name, asked.recipe, arms=asked.arms, seeds=(0,)).recipes


def test_the_page_has_commands_of_both_verbs():
    assert {line.split()[0] for line in COMMANDS} == {"compare", "report"}
