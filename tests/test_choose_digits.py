"""The search for the digits default: its rule, on numbers that are made."""

import json
from dataclasses import astuple, replace

import pytest

from benchmarks import choose_digits as search
from momentex.recipes import find
from momentex.train.recipe import Exchange


def rows(errors, nlls=None):
    return {seed: {"error": e, "nll": n} for seed, (e, n) in enumerate(zip(errors, nlls or errors, strict=True))}


def test_a_setting_is_judged_by_the_control_that_it_does_worse_against():
    moex, labels_only, baseline = rows([5.0, 7.0]), rows([5.5, 7.5]), rows([8.0, 8.0])
    assert search.judged(search.mean, moex, labels_only, baseline) == (-0.5, -0.5)
    assert search.judged(search.mean, moex, baseline, labels_only) == (-0.5, -0.5)
    assert search.judged(search.mean, moex, baseline, rows([4.0, 4.0])) == (2.0, 2.0)


def test_the_last_stage_prefers_what_is_certain_to_what_is_large():
    base = [10.0, 10.0, 10.0, 10.0]
    certain = search.judged(search.upper_end, rows([9.0, 9.1, 8.9, 9.0]), rows(base))
    large = search.judged(search.upper_end, rows([2.0, 13.0, 4.0, 12.0]), rows(base))
    assert certain < (0.0, 0.0) < large


class Made:
    """Runs that nobody made: GN with four groups before the second stage is best, on 50 images, with λ = 0.7."""

    def __init__(self):
        self.seeds, self.asked = [], []

    def of(self, recipes, seeds):
        self.seeds.append(list(seeds))
        self.asked += recipes
        return [{seed: {"error": self.error(r) + seed % 3, "nll": 1.0} for seed in seeds} for r in recipes]

    def error(self, recipe):
        rate, exchange = recipe.optimizer, recipe.exchange
        error = 10 + (rate.lr != 0.2) + (rate.weight_decay != 3e-3)
        if exchange is None:
            return error + 1
        if not exchange.features:
            return error
        right = (exchange.layer == "layer2") + (search.short(exchange.over) == "gn4") + (exchange.lam == 0.7)
        return error - right - 0.5 * (exchange.p == 1.0) - (recipe.data.train_size == 50)


@pytest.fixture(scope="module")
def made():
    runs = Made()
    return runs, search.chosen(runs)


def test_without_noise_the_search_finds_the_best_setting(made):
    _, found = made
    assert found["chosen"] == {
        "train_size": 50,
        "lr": 0.2,
        "weight_decay": 3e-3,
        "over": "gn4",
        "layer": "layer2",
        "lam": 0.7,
        "p": 1.0,
    }
    assert [len(stage["rows"]) for stage in found["stages"]] == [9, 72, 3 * search.GO_ON[0], search.GO_ON[1]]
    assert found["stages"][3]["rows"][0]["judged"][0] == pytest.approx(-4.5)


def test_no_run_of_the_search_sees_a_test_image_or_a_seed_below_1000(made):
    runs, _ = made
    assert min(map(min, runs.seeds)) >= 1000
    later = [set(seeds) for seeds in runs.seeds[1:]]
    assert all(not one & other for i, one in enumerate(later) for other in later[:i])
    assert {recipe.data.validation for recipe in runs.asked} == {500}


def test_every_recipe_of_the_search_has_a_name_of_its_own_and_the_same_number_of_steps(made):
    runs, _ = made
    names = {search.named(recipe): recipe for recipe in runs.asked}
    assert all(names[search.named(recipe)] == recipe for recipe in runs.asked)
    assert {r.epochs * r.data.train_size // r.batch_size for r in runs.asked} == {search.STEPS}


def test_what_was_chosen_is_the_recipe():
    chosen = search.Setting(**json.loads(search.RESULT.read_text("utf8"))["chosen"])
    recipe = find("digits")
    assert recipe.data.train_size == chosen.train_size
    assert recipe.optimizer == chosen.recipe(None).optimizer
    assert recipe.epochs == chosen.recipe(None).epochs
    assert find("digits_moex").exchange == chosen.exchange


def test_a_setting_has_its_exchange_and_the_baseline_none():
    setting = search.Setting(lr=0.1, weight_decay=1e-3, over="in-std", layer="layer3", lam=0.5, p=1.0)
    assert setting.exchange == Exchange(over=search.over("in-std"), layer="layer3", lam=0.5, p=1.0)
    assert replace(setting, over="").exchange is None
    assert search._setting({**dict(zip(search.Setting.__dataclass_fields__, astuple(setting), strict=True))}) == setting
