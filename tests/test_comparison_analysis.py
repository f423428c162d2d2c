"""What is said of a comparison: verdicts, sentences, gaps. Its numbers are checked in test_comparison_statistics."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentex.comparison.analysis import analyse
from momentex.comparison.contrasts import of_arms
from momentex.comparison.result import Arm, Comparison, Outcome, from_json, to_json
from momentex.comparison.statistics import holm, paired
from momentex.errors import RunError
from tests.comparisons import comparison

BETTER = {
    "baseline": [10.0, 11.0, 12.0, 9.0],
    "moex": [8.1, 9.0, 10.2, 6.9],
    "labels_only": [9.8, 11.1, 11.9, 9.2],
    "lam1": [9.9, 10.2, 12.6, 8.7],
}


def contrast(found, arm, against):
    (one,) = [c for c in analyse(found).contrasts if (c.arm, c.against) == (arm, against)]
    return one


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_a_difference_that_shows_is_better_or_worse_and_says_by_how_much():
    analysis = analyse(comparison(BETTER))
    primary = analysis.contrasts[0]
    assert (primary.arm, primary.against, primary.primary, primary.verdict) == ("moex", "labels_only", True, "better")
    assert primary.sentence == (
        "moex is better than labels_only: error is lower by 1.95 points (95 % interval 1.47 to 2.43, p < 0.001, "
        "4 seeds); to see the difference observed, four times out of five, takes 3 seeds."
    )
    turned = comparison(BETTER, contrasts=(("labels_only", "moex"),))
    assert contrast(turned, "labels_only", "moex").sentence.startswith(
        "labels_only is worse than moex: error is higher by 1.95 points (95 % interval 1.47 to 2.43"
    )


def test_one_that_does_not_show_says_how_many_seeds_would():
    found = contrast(comparison(BETTER), "lam1", "baseline")
    assert found.verdict == "not distinguishable"
    assert found.sentence == (
        "lam1 and baseline are not distinguishable with these 4 seeds: error differs by −0.15 points (95 % interval "
        f"−1.07 to +0.77, adjusted p = 1.00); to see the difference observed, four times out of five, takes "
        f"{found.seeds_needed} seeds."
    )


def test_what_was_named_beforehand_is_not_corrected_and_all_others_are():
    analysis = analyse(comparison(BETTER))
    pairs = [(c.arm, c.against) for c in analysis.contrasts]
    assert pairs == [("moex", "labels_only"), ("moex", "baseline"), ("labels_only", "baseline"), ("lam1", "baseline")]
    assert [c.p_adjusted is None for c in analysis.contrasts] == [True, True, False, False]
    others = analysis.contrasts[2:]
    assert [c.p_adjusted for c in others] == holm([c.p for c in others])
    assert any("Named beforehand: moex against labels_only, and moex against baseline. The other 2 are" in n
               for n in analysis.notes)  # fmt: skip


def test_a_difference_that_correction_takes_away_says_so():
    close = [1.0, 0.5, 1.3, 0.2, 1.1]  # p = 0.02 alone
    arms = {"a": [9.0, 8.0, 7.0, 9.5, 8.5]}
    for name in "bcdef":
        arms[name] = [x + d for x, d in zip(arms["a"], close, strict=True)]
    found = contrast(comparison(arms), "f", "a")
    assert found.p < 0.05 < found.p_adjusted
    assert found.verdict == "not distinguishable"
    assert "; the interval alone excludes 0; " in found.sentence


def test_where_higher_is_better_the_verdict_is_turned_around_and_the_words_are_not():
    found = comparison(BETTER, higher=("error",))
    assert contrast(found, "moex", "labels_only").verdict == "worse"
    assert contrast(found, "moex", "labels_only").sentence.startswith("moex is worse than labels_only: error is lower")


def test_the_verdict_is_of_what_was_named_beforehand():
    analysis = analyse(comparison(BETTER))
    assert analysis.verdict == f"{analysis.contrasts[0].sentence} {analysis.contrasts[1].sentence}"


def test_metrics_of_a_user_have_no_unit_and_as_many_digits_as_count():
    numbers = {
        "a": [{"loss": 0.0213}, {"loss": 0.0219}, {"loss": 0.0223}],
        "b": [{"loss": x} for x in (0.02, 0.02, 0.021)],
    }
    found = comparison(numbers, metric="loss", recipe={})
    assert "loss is lower by 0.00150 (95 % interval 0.00064 to 0.00236, p = 0.017" in contrast(found, "b", "a").sentence


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_have_the_last_and_the_best_epoch_of_every_metric():
    outcomes = tuple(
        Outcome(arm=arm, seed=seed, last={"error": 10.0 + seed, "nll": 0.5}, best={"error": 9.0 + seed, "epoch": 3})
        for arm in ("baseline", "moex")
        for seed in range(3)
    )
    analysis = analyse(comparison({"baseline": [0] * 3, "moex": [0] * 3}, outcomes=outcomes))
    row = analysis.rows[0]
    assert {metric: e.mean for metric, e in row.last.items()} == {"error": 11.0, "nll": 0.5}
    assert {metric: e.mean for metric, e in row.best.items()} == {"error": 10.0}
    assert row.last["error"].sem == pytest.approx(1 / math.sqrt(3))
    assert row.last["error"].sem_corrected == pytest.approx(1.1284 / math.sqrt(3), rel=1e-4)
    secondary = [(c.metric, c.which) for c in analysis.secondary]
    assert secondary == [("error", "best"), ("nll", "last")]


def test_seconds_and_costs_are_paired_with_the_baseline():
    times = {"moex": [12.0, 25.0], "baseline": [10.0, 20.0], "fast": [None, 10.0]}
    outcomes = tuple(
        Outcome(arm=arm, seed=seed, last={"error": 1.0}, seconds=s)
        for arm in times
        for seed, s in enumerate(times[arm])
    )
    rows = {row.arm: row for row in analyse(comparison({arm: [0, 0] for arm in times}, outcomes=outcomes)).rows}
    assert rows["moex"].seconds.mean == 18.5
    assert rows["moex"].cost.mean == pytest.approx((1.2 + 1.25) / 2)
    assert rows["baseline"].cost.mean == 1.0
    assert (rows["fast"].seconds.n, rows["fast"].cost.mean, rows["fast"].cost.n) == (1, 0.5, 1)
    assert analyse(comparison(BETTER)).rows[0].seconds is None


def test_the_table_says_which_standard_error_it_has():
    plain, corrected = (analyse(comparison(BETTER, sem=sem)).notes for sem in ("plain", "corrected"))
    assert any("plain standard error over seeds, s / √n" in note for note in plain)
    assert any("small-sample correction of s (Gurland and Tripathi 1971)" in note for note in corrected)


# --- what is missing -------------------------------------------------------------------------------------------------


def test_an_arm_with_a_failed_run_is_averaged_over_the_others_and_says_so():
    found = comparison(BETTER | {"moex": [8.1, "the losses are not finite", 10.2, 6.9]})
    analysis = analyse(found)
    row = analysis.rows[1]
    assert row.failures == {1: "the losses are not finite"}
    assert row.last["error"].n == 3
    assert row.last["error"].mean == pytest.approx((8.1 + 10.2 + 6.9) / 3)
    assert list(analysis.contrasts[0].differences) == [0, 2, 3]
    assert analysis.notes[0] == (
        "moex: failed: the losses are not finite (seed 1). Its numbers are over 3 of 4 seeds, and its differences over "
        "those that the other arm has too."
    )


def test_an_arm_without_any_number_is_reported_beside_the_others():
    analysis = analyse(comparison(BETTER | {"moex": ["broken"] * 4}))
    assert analysis.rows[1].last == {}
    assert analysis.contrasts[0].verdict == "unknown"
    assert analysis.contrasts[0].sentence.endswith("no seed has a number of both, so nothing can be said.")
    assert analysis.contrasts[2].p is not None
    assert analysis.notes[0] == "moex: failed: broken (seed 0, 1, 2, 3). There are no numbers of it."


def test_a_run_that_has_not_been_made_is_a_gap():
    analysis = analyse(comparison(BETTER | {"moex": [8.1, None, 10.2, 6.9]}))
    assert analysis.rows[1].failures == {1: "has not been run"}
    assert analysis.notes[0].startswith("moex: has not been run (seed 1). Its numbers are over 3 of 4 seeds")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_is_not_averaged(bad):
    analysis = analyse(comparison(BETTER | {"moex": [8.1, {"error": 9.0, "nll": bad}, 10.2, 6.9]}))
    assert analysis.rows[1].failures == {1: f"nll is {bad}"}
    assert analysis.rows[1].last["error"].n == 3
    assert any(note.startswith(f"moex: failed: nll is {bad} (seed 1).") for note in analysis.notes)


def test_one_seed_has_no_interval_and_says_so():
    analysis = analyse(comparison({arm: errors[:1] for arm, errors in BETTER.items()}))
    assert analysis.rows[0].last["error"].sem is None
    assert {c.verdict for c in analysis.contrasts} == {"unknown"}
    assert "−1.70 points with the one seed that both have; a single pair has no interval" in analysis.verdict
    assert "There is one seed: no standard error, no interval, no verdict. Take five seeds or more." in analysis.notes
    assert not any("Holm" in note for note in analysis.notes)


def test_a_metric_that_some_runs_lack_is_over_the_others_and_says_so():
    numbers = {
        "a": [{"error": 1.0, "nll": 0.1}, {"error": 2.0}],
        "b": [{"error": 2.0, "nll": 0.2}, {"error": 2.5, "nll": 0.3}],
    }
    analysis = analyse(comparison(numbers))
    assert analysis.rows[0].last["nll"].n == 1
    assert "NLL is missing for a with seed 1: it is over the others alone." in analysis.notes


def test_a_metric_that_nobody_has_is_named():
    assert "Nothing has a number of 'auc'; there are error." in analyse(comparison(BETTER, metric="auc")).notes


# --- what is too good to be true -------------------------------------------------------------------------------------


def test_arms_with_the_same_numbers_are_one_arm():
    analysis = analyse(comparison(BETTER | {"lam1": BETTER["baseline"]}))
    assert analysis.contrasts[3].verdict == "not distinguishable"
    assert "exactly the same numbers with each of 4 seeds" in analysis.contrasts[3].sentence
    assert any(
        note.startswith("baseline and lam1 have exactly the same numbers with every seed:") for note in analysis.notes
    )


def test_seeds_that_do_nothing_give_no_verdict():
    analysis = analyse(comparison({"a": [9.0] * 5, "b": [8.0] * 5}))
    assert analysis.contrasts[0].verdict == "unknown"
    assert "−1.00 points with every one of 5 seeds; differences without any spread" in analysis.contrasts[0].sentence
    assert "a has exactly the same numbers with all of 5 seeds: the seed has no effect." in analysis.notes


def test_another_metric_that_says_otherwise_is_not_passed_over():
    numbers = {
        arm: [{"error": e, "nll": 0.5 + (0.1 + seed / 100) * (arm == "moex")} for seed, e in enumerate(errors)]
        for arm, errors in BETTER.items()
    }
    notes = analyse(comparison(numbers)).notes
    (said,) = [note for note in notes if note.startswith("In another metric: moex is worse than labels_only: NLL")]
    assert "higher by 0.115" in said


# --- contrasts of arms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arms", "pairs", "beforehand"),
    [
        (["baseline", "moex"], ["moex baseline"], 1),
        (["moex", "labels_only"], ["moex labels_only", "labels_only moex"], 1),
        (["baseline", "mixup", "cutmix"], ["mixup baseline", "cutmix baseline"], 1),
        (
            ["baseline", "cutmix", "cutmix+moex"],
            ["cutmix+moex cutmix", "cutmix baseline", "cutmix+moex baseline"],
            1,
        ),
        (
            ["baseline", "moex", "cutmix", "cutmix+moex"],
            ["moex baseline", "cutmix+moex cutmix", "cutmix+moex moex", "cutmix baseline", "cutmix+moex baseline"],
            1,
        ),
        (["a", "b+c", "a+b+c"], ["a+b+c b+c", "b+c a", "a+b+c a"], 1),
    ],
)
def test_what_is_compared_with_what(arms, pairs, beforehand):
    assert of_arms(arms) == (tuple(tuple(pair.split()) for pair in pairs), beforehand)


# --- as JSON ---------------------------------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
metrics = st.dictionaries(st.text(max_size=5), finite, max_size=3)
outcomes = st.builds(
    Outcome,
    arm=st.sampled_from("ab"),
    seed=st.integers(0, 3),
    last=metrics,
    best=metrics,
    curve=st.lists(metrics, max_size=2).map(tuple),
    seconds=st.none() | finite,
    failure=st.none() | st.text(),
)
comparisons = st.builds(
    Comparison,
    title=st.text(),
    arms=st.just((Arm(name="a", paper=(6.0, None)), Arm(name="b"))),
    seeds=st.just((0, 1)),
    outcomes=st.lists(outcomes, max_size=3).map(tuple),
    contrasts=st.just((("b", "a"),)),
    higher=st.lists(st.text(), max_size=2).map(tuple),
    notes=st.lists(st.text(), max_size=2).map(tuple),
    facts=st.dictionaries(st.text(), st.text()),
    recipe=st.dictionaries(st.text(), finite | st.text()),
)


@given(comparisons)
def test_a_comparison_survives_json(found):
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("given", [None, [], {}, {"title": "x"}, {"nothing": 1}, 3])
def test_what_is_no_comparison_is_refused(given):
    with pytest.raises(RunError, match=r"^this is no comparison: "):
        from_json(given)


def test_what_a_later_version_wrote_is_refused_by_name():
    later = to_json(comparison(BETTER)) | {"colour": "blue"}
    with pytest.raises(RunError, match=r"Comparison has colour, which this version does not know"):
        from_json(later)


def test_an_analysis_is_a_function_of_what_was_stored():
    found = comparison(BETTER)
    assert analyse(from_json(json.loads(json.dumps(to_json(found))))) == analyse(found)


def test_the_differences_are_those_of_the_pairs_whatever_the_order_of_outcomes():
    found = comparison(BETTER)
    turned = replace(found, outcomes=found.outcomes[::-1])
    assert analyse(turned) == analyse(found)
    mine = analyse(found).contrasts[0]
    wanted = paired(BETTER["moex"], BETTER["labels_only"])
    assert (mine.mean, mine.low, mine.high, mine.p) == (wanted.mean, wanted.low, wanted.high, wanted.p)
