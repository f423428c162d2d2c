"""The statistics of a comparison against scipy's, against tables, and against simulations with a known effect."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from momentex.comparison.statistics import correction, holm, paired, pairs_needed, power, spread

numbers = st.floats(-1e3, 1e3, allow_nan=False)
pairs = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30)


# --- against scipy ---------------------------------------------------------------------------------------------------


@given(pairs)
def test_interval_and_p_are_those_of_scipys_paired_t_test(found):
    ours, theirs = zip(*found, strict=True)
    mine = paired(ours, theirs)
    differences = np.subtract(ours, theirs)
    if mine.p is None:
        assert differences.std() < 1e-6
        return
    wanted = stats.ttest_rel(ours, theirs)
    low, high = wanted.confidence_interval(0.95)
    assert mine.mean == pytest.approx(differences.mean(), rel=1e-9, abs=1e-9)
    assert (mine.low, mine.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)
    assert mine.p == pytest.approx(wanted.pvalue, rel=1e-6, abs=1e-12)


@given(st.lists(numbers, min_size=2, max_size=30))
def test_the_plain_standard_error_is_scipys(values):
    assert spread(values).sem == pytest.approx(stats.sem(values), rel=1e-9, abs=1e-9)


def by_integration(effect: float, count: int) -> float:
    """The mean over what the sample's deviation may be (χ²) of how often the mean then is beyond the edge."""
    degrees, shift = count - 1, effect * math.sqrt(count)
    edge = stats.t.ppf(0.975, degrees)

    def beyond(u: float) -> float:
        root = math.sqrt(stats.chi2.ppf(u, degrees) / degrees)
        return stats.norm.sf(edge * root - shift) + stats.norm.cdf(-edge * root - shift)

    return integrate.quad(beyond, 0, 1, limit=200)[0]


@pytest.mark.parametrize("effect", [0.05, 0.2, 0.5, 1.0, 2.0, 6.0, 11.0, 30.0])
@pytest.mark.parametrize("count", [2, 3, 5, 20, 100])
def test_power_is_what_integration_over_the_deviation_gives(effect, count):
    assert power(effect, count) == pytest.approx(by_integration(effect, count), abs=1e-4)
    assert power(-effect, count) == power(effect, count)


@given(st.floats(0, 1e4), st.integers(2, 10**6))
def test_power_is_a_share(effect, count):
    assert 0.05 - 1e-9 <= power(effect, count) <= 1 + 1e-9


# --- against tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "table"), [(2, 1.2533), (3, 1.1284), (4, 1.0854), (5, 1.0638), (6, 1.0509), (10, 1.0281), (20, 1.0132)]
)
def test_the_small_sample_correction_is_one_over_the_c4_of_control_charts(n, table):
    """1 / c4(n): 0.7979, 0.8862, 0.9213, 0.9400, 0.9515, 0.9727, 0.9869 in the tables."""
    assert correction(n) == pytest.approx(table, abs=5e-5)
    values = [float(i * i) for i in range(n)]
    assert spread(values).sem_corrected == pytest.approx(stats.sem(values) * table, rel=1e-4)


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.3, 90), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_pairs_needed_are_those_of_the_books(effect, n):
    """G*Power 3.1, means of two dependent groups, two-sided 5 %, power 80 %."""
    assert pairs_needed(effect) == pairs_needed(-effect) == n


@pytest.mark.parametrize("effect", [0.0, 1e-9])
def test_no_number_of_pairs_shows_nothing(effect):
    assert pairs_needed(effect) is None


@given(st.floats(0.01, 100))
def test_one_pair_fewer_than_needed_is_not_enough(effect):
    needed = pairs_needed(effect)
    assert power(effect, needed) >= 0.8
    assert needed == 2 or power(effect, needed - 1) < 0.8


def test_an_effect_beyond_all_measure_needs_two_pairs():
    assert pairs_needed(1e9) == pairs_needed(1e3) == 2


def test_holm_is_the_example_of_its_paper():
    """Steps of α/3, α/2, α: 0.01 · 3, then 0.02 · 2, and never less than the one before."""
    assert holm([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_in_order_and_stops_at_the_first_that_it_does_not(ps):
    order = sorted(range(len(ps)), key=ps.__getitem__)
    rejected = []
    for rank, i in enumerate(order):
        if ps[i] * (len(ps) - rank) > 0.05:
            break
        rejected.append(i)
    assert {i for i, p in enumerate(holm(ps)) if p <= 0.05} == set(rejected)


# --- where there is nothing to calculate with ------------------------------------------------------------------------


def test_one_pair_has_a_difference_and_no_interval():
    assert tuple(paired([3.0], [2.0])) == (1.0, None, None, None, None)
    assert paired([], []).mean is None
    assert tuple(spread([3.0])) == (3.0, None, None)


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_differences_without_spread_have_no_interval_though_they_are_rounded(shift):
    ours = [0.1 * i + shift for i in range(1, 8)]
    found = paired(ours, [0.1 * i for i in range(1, 8)])
    assert found.p is None
    assert found.mean == (0.0 if shift == 0 else pytest.approx(shift))


# --- simulations -----------------------------------------------------------------------------------------------------


def drawn(effect: float, count: int, seed: int) -> tuple[list[float], list[float]]:
    """A pair shares what the seed decides (σ = 2), and each has noise of its own (σ = 1): differences have σ = √2."""
    draw = random.Random(seed)
    shared = [draw.gauss(10, 2) for _ in range(count)]
    return [s + effect + draw.gauss(0, 1) for s in shared], [s + draw.gauss(0, 1) for s in shared]


@pytest.mark.parametrize("count", [3, 5, 20])
def test_intervals_hold_the_true_difference_95_times_of_100(count):
    runs = 4000
    found = [paired(*drawn(-0.7, count, seed)) for seed in range(runs)]
    covered = sum(one.low <= -0.7 <= one.high for one in found) / runs
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs)


def test_unpaired_intervals_would_be_wider():
    """Why arms share seeds: what the seed decides cancels."""
    ours, theirs = drawn(-0.7, 20, 0)
    unpaired = stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    mine = paired(ours, theirs)
    assert mine.high - mine.low < 0.8 * (unpaired.high - unpaired.low)


def test_without_an_effect_5_of_100_are_called_one():
    runs = 4000
    called = sum(paired(*drawn(0.0, 5, seed)).p < 0.05 for seed in range(runs)) / runs
    assert abs(called - 0.05) < 3 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("effect", [0.8, 2.0])
def test_so_many_seeds_as_are_needed_show_the_effect_80_times_of_100(effect):
    runs = 2000
    count = pairs_needed(effect / math.sqrt(2))
    shown = sum(paired(*drawn(effect, count, seed)).p < 0.05 for seed in range(runs)) / runs
    assert power(effect / math.sqrt(2), count) == pytest.approx(shown, abs=3 * math.sqrt(0.16 / runs))


def test_the_corrected_deviation_is_right_on_average_and_the_plain_one_too_small():
    draw = random.Random(0)
    deviations = [stdev([draw.gauss(0, 1) for _ in range(3)]) for _ in range(20000)]
    assert fmean(deviations) == pytest.approx(0.886, abs=0.01)
    assert fmean(deviations) * correction(3) == pytest.approx(1.0, abs=0.01)
