"""`momentex report`: any runs and comparisons, in every form."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from momentex import cli
from momentex.comparison import store
from momentex.comparison.gather import gather_all
from momentex.errors import RunError
from momentex.recipes import find
from momentex.train.recipe import Exchange, Recipe
from momentex.train.resolved import to_json
from tests.reports import runs
from tests.train_runs import tiny


def wrote(folder: Path, recipe: Recipe, errors: list[float]) -> Path:
    """A run directory as training leaves it, with these errors."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(to_json(replace(recipe, epochs=len(errors)))))
    rows = [
        {"epoch": i, "loss": 1.0, "lr": 0.1, "split": "test", "error": e, "nll": e / 10}
        for i, e in enumerate(errors, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def seeds(folder: Path, recipe: Recipe, level: float, count: int = 3) -> None:
    for seed in range(count):
        wrote(folder / f"seed-{seed}", replace(recipe, seed=seed), [level + 9, level + seed * 0.5 + level * seed / 100])


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The default folders of `momentex train`, of two recipes that are arms of each other."""
    seeds(tmp_path / "runs" / "tiny", tiny(), 10.0)
    seeds(tmp_path / "runs" / "tiny_moex", tiny(exchange=Exchange(layer="stage")), 8.0)
    return tmp_path / "runs"


def test_runs_of_a_recipe_and_of_its_arm_are_compared(there, capsys):
    assert cli.main(["report", str(there), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# runs\n")
    assert re.search(r"\| baseline +\| 10\.60 ± 0\.35", out)
    assert "**MoEx is better than baseline: error is lower by" in out


def test_folders_can_be_named_one_by_one(there, capsys):
    assert cli.main(["report", str(there / "tiny_moex"), str(there / "tiny"), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# tiny_moex and tiny\n")
    assert "**MoEx is better than baseline" in out


@pytest.mark.parametrize("ending", ["html", "md", "tex"])
def test_the_ending_says_the_form(there, tmp_path, capsys, ending):
    to = tmp_path / "new" / f"report.{ending}"
    assert cli.main(["report", str(there), "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"report: {to}\n"
    assert to.read_text(encoding="utf8").startswith(
        {"html": "<!doctype html>", "md": "# runs", "tex": "% needs"}[ending]
    )


def test_a_page_goes_to_the_folder_and_other_forms_are_printed(there, capsys):
    assert cli.main(["report", str(there)]) == 0
    assert capsys.readouterr().out == f"report: {there / 'report.html'}\n"
    assert cli.main(["report", str(there), "--format", "latex"]) == 0
    assert r"\toprule" in capsys.readouterr().out


def test_comparisons_below_a_folder_are_reported_each_and_runs_beside_them_together(there, tmp_path, capsys):
    for name in ("one", "two"):
        store.write(there / "compare" / name, runs(3, title=name))
    assert cli.main(["report", str(there)]) == 0
    text = (there / "report.html").read_text(encoding="utf8")
    assert re.findall("<h1>(.*?)</h1>", text) == ["one", "two", "runs"]
    assert re.findall(r'<a href="#(\d)">', text) == ["1", "2", "3"]


def test_the_same_runs_by_two_paths_count_once(there):
    (once,) = gather_all([there])
    (twice,) = gather_all([there, there / "tiny"])
    assert len(twice.outcomes) == len(once.outcomes) == 6


def test_the_other_standard_error_can_be_asked_for(there, capsys):
    assert cli.main(["report", str(there), "--format", "markdown", "--sem", "corrected"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| baseline +\| 10\.60 ± 0\.39", out)
    assert "small-sample correction" in out


def test_the_papers_number_stands_beside_ours_where_the_recipe_has_one(tmp_path, capsys):
    for arm in ("", "_moex"):
        recipe = find(f"cifar10.resnet110{arm}")
        folder = tmp_path / f"resnet110{arm}" / "seed-0"
        wrote(folder, recipe, [9.0] * recipe.epochs)
    assert cli.main(["report", str(tmp_path), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| baseline \|.* 6\.82 ± 0\.23 \|", out)
    assert re.search(r"\| MoEx +\|.* 6\.03 ± 0\.24 \|", out)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["markdown", "latex", "html"])
def test_runs_of_several_recipes_stand_side_by_side_and_are_not_compared(there, tmp_path, capsys, form):
    seeds(there / "wider", tiny(batch_size=40), 7.0)
    to = tmp_path / "out"
    assert cli.main(["report", str(there), "--format", form, "--to", str(to)]) == 0
    text = to.read_text(encoding="utf8").replace("\\_", "_")
    assert "These runs differ in more than what an arm is: batch_size" in text
    assert "No differences are drawn between these arms" in text
    assert "is better than" not in text
    assert "wider" in text


@pytest.mark.parametrize("form", ["markdown", "latex", "html"])
def test_a_run_that_became_nan_is_a_gap_in_every_form(there, tmp_path, form):
    shutil.rmtree(there / "tiny_moex" / "seed-1")
    recipe = tiny(exchange=Exchange(layer="stage"), seed=1)
    wrote(there / "tiny_moex" / "seed-1", recipe, [9.0, math.nan])
    to = tmp_path / "out"
    assert cli.main(["report", str(there), "--format", form, "--to", str(to)]) == 0
    text = to.read_text(encoding="utf8")
    assert "MoEx: failed: error is nan, nll is nan (seed 1)." in text
    assert "2 of 3" in text


def test_seeds_of_one_arm_with_several_recipes_are_refused(there, capsys):
    wrote(there / "tiny" / "seed-7", tiny(seed=7, batch_size=40), [1.0, 1.0])
    assert cli.main(["report", str(there)]) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"would be seeds of one arm, and their recipes differ: batch_size: 12 there, 40 now.*are not averaged", said
    )
    assert not (there / "report.html").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"no folder was named: momentex report runs"),
        (["nowhere"], r"nowhere is no folder: name that of a comparison"),
        (["."], r"\. holds neither a comparison \(comparison\.json\) nor any run directory \(recipe\.json\)"),
        (["runs", "--to", "x.pdf"], r"--to is x\.pdf: what form that is, its ending does not say"),
        (["runs", "--fromat", "html"], r"--format"),
    ],
)
def test_what_cannot_be_reported_is_said(tmp_path, monkeypatch, capsys, given, message):
    if given[:1] == ["runs"]:
        seeds(tmp_path / "runs" / "tiny", tiny(), 10.0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *given]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_comparison_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(RunError, match=r"comparison\.json cannot be read"):
        gather_all([tmp_path])
