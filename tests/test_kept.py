"""What is kept of comparisons, and what the README says of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import keep, report
from momentex.comparison.analysis import analyse
from momentex.comparison.result import Outcome
from momentex.errors import RecipeError, RunError
from momentex.recipes import find, measured
from momentex.train.resolved import to_json
from tests.comparisons import comparison

ROOT = Path(__file__).parent.parent
RESULTS = sorted((ROOT / "results").glob("*.json"))
KEPT = [path for path in RESULTS if "comparison" in json.loads(path.read_text("utf8"))]
NUMBERS = {
    "baseline": [9.0, 8.0, 8.5],
    "moex": [7.0, 7.5, 6.5],
    "labels_only": [8.0, 8.5, 7.0],
    "moex_paper": [9, 9, 7],
}


def digits(**changes):
    return comparison(NUMBERS, **{"title": "digits", "recipe": to_json(find("digits"))} | changes)


def test_what_is_kept_is_read_again_and_listed_with_the_recipes(tmp_path):
    keep.write(tmp_path / "digits.json", keep.kept(digits()))
    assert keep.read(tmp_path / "digits.json") == digits()
    listed = measured(tmp_path)
    assert set(listed) == {"digits", "digits_moex", "digits_labels_only"}  # there is no recipe digits_moex_paper
    assert listed["digits_moex"][:3] == (7.0, pytest.approx(0.5 / 3**0.5), 3)
    assert listed["digits"].verdict == analyse(digits()).verdict


def test_arms_of_a_recipe_that_has_a_method_already_are_not_listed_as_recipes():
    numbers = {"baseline": [9.0, 8.0], "moex": [7.0, 7.5], "cutmix": [8.0, 8.5], "cutmix+moex": [7.0, 6.0]}
    name = "digits.stacking.cutmix"
    made = comparison(numbers, title=name, recipe=to_json(replace(find(name), cutmix=None)))
    assert keep.kept(made)["errors"] == {}


def test_curves_are_not_kept():
    outcome = Outcome(arm="moex", seed=0, last={"error": 7.0}, curve=({"epoch": 1, "error": 7.0},))
    made = digits()
    kept = keep.kept(replace(made, outcomes=(*made.outcomes[:3], outcome, *made.outcomes[4:])))
    assert [row["curve"] for row in kept["comparison"]["outcomes"]] == [()] * 12


def test_a_comparison_of_another_recipe_is_not_kept_under_its_name():
    other = to_json(replace(find("digits"), epochs=3))
    with pytest.raises(RecipeError, match=r"the recipe digits is not what was compared: epochs: 3 there, \d+ now"):
        keep.kept(digits(recipe=other))


def test_a_single_seed_is_not_kept():
    one = comparison({"baseline": [9.0], "moex": [8.0]}, title="digits", recipe=to_json(find("digits")))
    with pytest.raises(RunError, match=r"^one seed has no standard error"):
        keep.kept(one)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_compared_is_the_recipe_of_that_name(path):
    found = keep.read(path)
    assert keep.stale(found) == []
    listed = keep.kept(found)["errors"] if path.stem == found.title else {}  # of several of a recipe, one is listed
    assert listed == json.loads(path.read_text("utf8"))["errors"]


@pytest.mark.parametrize("block", list(report.BLOCKS))
def test_the_readme_has_what_the_results_give(block):
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    made = report.BLOCKS[block]()
    assert made
    assert report.filled(readme, block, made) == readme


def test_sizes_are_told_by_verdict():
    worse = {"baseline": [3.0, 3.1, 3.2], "moex": [9.0, 9.2, 9.3], "labels_only": [9.0, 9.1, 9.5]}
    better = {"baseline": [9.0, 9.2, 9.1], "moex": [3.0, 3.1, 3.3], "labels_only": [9.0, 9.1, 9.2]}
    assert report.by_size([(50, comparison(better)), (800, comparison(worse))]).splitlines() == [
        "- MoEx against labels_only, by training images: better with 50; not distinguishable with 800.",
        "- MoEx against baseline, by training images: better with 50; worse with 800.",
    ]


def test_a_block_says_verdicts_first_and_what_was_measured_where():
    made = digits(facts={"command": "momentex compare digits", "hardware": "a CPU, 2 cores", "torch": "2.6.0"})
    block = report.compared(made)
    verdict, table = block.index("moex"), block.index("| arm")
    assert verdict < table < block.index("`momentex compare digits`")
    assert "a CPU, 2 cores" in block
    assert "7.00 ± 0.29" in block
    text = "before\n<!-- digits -->\nold\n<!-- /digits -->\nafter"
    assert report.filled(text, "digits", "new") == text.replace("old", "new")
