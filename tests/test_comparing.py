"""`momentex.compare` with a training function of the user's own: what it calls, keeps, refuses and reports."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import momentex
from momentex.comparing import compare
from momentex.comparison import store
from momentex.errors import MomentexError, RecipeError, RunError


class Fit:
    """A function of a user's, which remembers how it was called."""

    def __init__(self, broken: object = None) -> None:
        self.calls: list[tuple[str, int]] = []
        self.broken = broken

    def __call__(self, arm, seed):
        self.calls.append((arm, seed))
        if callable(self.broken) and (found := self.broken(arm, seed)) is not None:
            return found
        shared = (seed * 7 % 5) * 0.4
        return {
            "error": 9.0 + shared + {"plain": 0.0, "mine": -1.0}[arm] + (arm == "mine") * (seed % 3) * 0.1,
            "nll": 1.0,
        }


ARMS = ["plain", "mine"]


def test_it_is_a_public_name_and_calls_every_arm_with_every_seed_a_seed_after_the_other():
    fit = Fit()
    found = momentex.compare(fit, arms=ARMS, seeds=3)
    assert fit.calls == [(arm, seed) for seed in range(3) for arm in ARMS]
    assert found.comparison.seeds == (0, 1, 2)
    assert found.analysis.contrasts[0].verdict == "better"


def test_seeds_may_be_numbers_of_numpy():
    assert compare(Fit(), arms=ARMS, seeds=np.arange(1, 3)).comparison.seeds == (1, 2)


def test_it_prints_the_verdict_and_the_table_and_saves_the_report(tmp_path):
    found = compare(Fit(), arms=ARMS, seeds=4, title="my model")
    said = str(found)
    assert found._repr_markdown_() == said  # in a notebook
    assert said.startswith("# my model\n")
    assert "**mine is better than plain: error is lower by" in said
    assert re.search(r"^\| plain \| 9\.\d+ ± 0\.\d+ \|", said, re.MULTILINE)
    report = found.save(tmp_path / "there")
    assert report == tmp_path / "there" / "report.html"
    assert report.read_text(encoding="utf8") == found.html
    assert store.read(tmp_path / "there") == found.comparison


def test_numbers_of_numpy_and_torch_are_numbers():
    found = compare(
        lambda arm, seed: {"error": np.float32(seed + 1), "loss": torch.tensor(0.5), "count": 3}, arms=ARMS, seeds=2
    )
    assert found.comparison.outcomes[0].last == {"error": 1.0, "loss": 0.5, "count": 3.0}


# --- what is there is not run again ----------------------------------------------------------------------------------


def test_a_comparison_that_was_stopped_goes_on_without_calling_again_what_is_there(tmp_path):
    class Stop(BaseException):
        pass

    def stop(arm, seed):
        if (arm, seed) == ("plain", 2):
            raise Stop

    with pytest.raises(Stop):
        compare(Fit(stop), arms=ARMS, seeds=4, title="one", to=tmp_path)
    again = Fit()
    found = compare(again, arms=ARMS, seeds=4, title="one", to=tmp_path)
    assert again.calls == [("plain", 2), ("mine", 2), ("plain", 3), ("mine", 3)]
    assert found.comparison.outcomes[:4] == store.read(tmp_path).outcomes[:4]
    assert [o.last for o in found.comparison.outcomes] == [
        o.last for o in compare(Fit(), arms=ARMS, seeds=4).comparison.outcomes
    ]


def test_what_failed_is_tried_again(tmp_path):
    def fails(arm, seed):
        if (arm, seed) == ("mine", 1):
            raise ZeroDivisionError("no")

    compare(Fit(fails), arms=ARMS, seeds=2, title="one", to=tmp_path)
    again = Fit()
    assert all(
        o.failure is None for o in compare(again, arms=ARMS, seeds=2, title="one", to=tmp_path).comparison.outcomes
    )
    assert again.calls == [("mine", 1)]


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    compare(Fit(), arms=ARMS, seeds=2, title="one", to=tmp_path / "one")
    before = (tmp_path / "one" / "comparison.json").read_bytes()
    with pytest.raises(RunError, match=r"holds the comparison 'one', and this one is 'two': name another folder"):
        compare(Fit(), arms=ARMS, seeds=2, title="two", to=tmp_path / "one")
    assert (tmp_path / "one" / "comparison.json").read_bytes() == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    fit = Fit()
    with pytest.raises(RunError, match=r"is not empty and no comparison \(it has cat\.jpg\)"):
        compare(fit, arms=ARMS, seeds=2, to=tmp_path / "photos")
    assert fit.calls == []


# --- what goes wrong in a call is a gap, and is said -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"error": math.nan, "nll": 1.0}, "error is nan"),
        ({"error": 1.0, "nll": math.inf}, "nll is inf"),
        ({"error": 1.0}, "fit returned error here and error, nll before"),
        ({"error": 1.0, "nll": 1.0, "f1": 0.3}, "fit returned error, f1, nll here and error, nll before"),
        ({"error": "low", "nll": 1.0}, "fit returned error = 'low', which is no number"),
        ({"error": True, "nll": 1.0}, "fit returned error = True, which is no number"),
        ([1.0], "fit returned a list; it must return its metrics"),
        ({}, "fit returned an empty dict"),
        ({3: 1.0}, "fit returned a metric whose name is 3"),
    ],
)
def test_what_cannot_be_compared_is_a_gap_with_its_reason_and_never_averaged(returned, reason):
    found = compare(Fit(lambda arm, seed: returned if (arm, seed) == ("mine", 1) else None), arms=ARMS, seeds=4)
    (failed,) = [o for o in found.comparison.outcomes if o.failure]
    assert (failed.arm, failed.seed) == ("mine", 1)
    assert reason in failed.failure
    assert found.analysis.rows[1].last["error"].n == 3
    assert 1 not in found.analysis.contrasts[0].differences
    said = str(found)
    assert "3 of 4" in said
    assert any(reason.partition(";")[0] in note for note in found.analysis.notes)


def test_a_call_that_raises_says_where_and_the_others_go_on():
    def raises(arm, seed):
        if arm == "mine" and seed == 0:
            raise MemoryError("out of it")

    found = compare(Fit(raises), arms=ARMS, seeds=3)
    (failed,) = [o for o in found.comparison.outcomes if o.failure]
    assert re.fullmatch(r"MemoryError: out of it \(.*test_comparing\.py, line \d+\)", failed.failure)


def test_without_a_single_number_there_is_nothing_to_compare():
    with pytest.raises(
        RunError, match=r"no call of fit gave numbers, so there is nothing to compare: ValueError: always"
    ):
        compare(_always, arms=ARMS, seeds=2)


def _always(arm, seed):
    raise ValueError("always")


# --- what is refused before anything is called -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arms": ["plain"]}, r"a comparison needs two arms or more, and there is plain"),
        ({"arms": "plain"}, r"arms is 'plain'; it is a list of names"),
        ({"arms": ["plain", "plain"]}, r"an arm is there twice"),
        ({"seeds": 0}, r"a comparison needs a seed at least"),
        ({"seeds": [1, 1]}, r"the seed 1 is there twice"),
        ({"seeds": 2.0}, r"seeds is 2\.0; it is how many"),
        ({"seeds": [0.5]}, r"seeds is \[0\.5\]; it is how many, or a list of whole numbers"),
        ({"contrasts": [("mine", "plian")]}, r"names 'plian', which is no arm\. Did you mean 'plain'\?"),
        ({"contrasts": [("mine", "mine")]}, r"must be \(arm, against\), two arms that are not the same"),
        ({"contrasts": []}, r"contrasts is empty"),
    ],
)
def test_what_is_asked_wrongly_is_an_error_before_anything_is_called(given, message):
    fit = Fit()
    with pytest.raises(RecipeError, match=message) as caught:
        compare(fit, **{"arms": ARMS, "seeds": 2} | given)
    assert isinstance(caught.value, MomentexError)
    assert isinstance(caught.value, ValueError)
    assert fit.calls == []


@pytest.mark.parametrize(
    ("returned", "given", "message"),
    [
        (
            {"error": 1.0},
            {"metric": "eror"},
            r"fit returns no metric 'eror'\. Did you mean 'error'\? It returns error\.",
        ),
        ({"accuracy": 1.0}, {}, r"of accuracy more is better, by the name, .* higher_is_better=\['accuracy'\]"),
        ({"a": 1.0, "b": 2.0}, {}, r"fit returns a, b: say what the verdict is about, as in metric='a'\."),
    ],
)
def test_metrics_that_do_not_say_what_is_better_end_it_after_the_first_call(returned, given, message):
    calls = []

    def fit(arm, seed):
        calls.append(arm)
        return returned

    with pytest.raises(RecipeError, match=message):
        compare(fit, arms=ARMS, seeds=3, **given)
    assert calls == ["plain"]


def test_higher_is_better_where_it_is_said():
    found = compare(
        lambda arm, seed: {"accuracy": 0.9 + (arm == "mine") * 0.01 + seed * 0.001 * (1 + (arm == "mine"))},
        arms=ARMS,
        seeds=5,
        higher_is_better=["accuracy"],
    )
    assert found.analysis.contrasts[0].verdict == "better"
    assert "mine is better than plain: accuracy is higher by" in str(found)


# --- one seed, one arm twice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, lambda found: found.html])
def test_one_seed_has_no_interval_and_every_form_says_so(form):
    found = compare(Fit(), arms=ARMS, seeds=1)
    assert found.analysis.contrasts[0].verdict == "unknown"
    assert "There is one seed: no standard error, no interval, no verdict." in form(found)
    assert "a single pair has no interval and no verdict" in form(found)


def test_arms_that_do_not_differ_are_said_to_be_one():
    found = compare(lambda arm, seed: {"error": float(seed)}, arms=ARMS, seeds=3)
    assert found.analysis.contrasts[0].verdict == "not distinguishable"
    assert "plain and mine have exactly the same numbers with every seed" in str(found)


def test_every_outcome_is_told_as_it_comes(tmp_path: Path):
    told: list[str] = []
    compare(Fit(), arms=ARMS, seeds=1, to=tmp_path, say=told.append)
    assert told == [
        "plain, seed 0: error 9.0000, nll 1.0000 (1 of 2)",
        "mine, seed 0: error 8.0000, nll 1.0000 (2 of 2)",
    ]
