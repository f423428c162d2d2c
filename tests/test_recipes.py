"""Recipes: every name, the structure of the paper's table, controls, functions of users."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from momentex import CutMix, Cutout, Mixup, models, recipes
from momentex.comparison.contrasts import of_arms
from momentex.errors import MomentexError, RecipeError
from momentex.recipes import arms, cifar, find, names
from momentex.recipes.arms import labels_only, lam1, moex
from momentex.train.recipe import Exchange, Recipe, Reported
from momentex.train.resolved import differences, from_json, to_json

ENTRIES = {entry.name: entry for entry in names()}
MODELS = [row.__name__ for row in cifar.ROWS]
DESIGN = [name for name in ENTRIES if ".design." in name]
STACKED = [name for name in ENTRIES if ".stacking." in name or name.startswith("stacking.")]
ROWS = [*DESIGN, *STACKED]  # of tables that are no model without and with Moment Exchange
WITH_MOEX = [name for name in ENTRIES if "_moex" in name and name not in ROWS]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_recipe_is_found_by_its_name_and_survives_json(name):
    recipe = find(name)
    assert recipe == ENTRIES[name].recipe
    assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe


@pytest.mark.parametrize("name", ENTRIES)
def test_a_name_begins_with_its_data_set(name):
    assert re.match(rf"({find(name).data.name}(\.|_|$)|ablation\.|stacking\.)", name)


def test_the_command_line_sees_all_names_once_and_small_ones_first():
    listed = [entry.name for entry in names()]
    assert len(listed) == len(set(listed))
    assert listed[0] == "digits"


# --- the paper's table -----------------------------------------------------------------------------------------------


def test_the_table_has_six_models_two_data_sets_and_two_numbers_for_each():
    reported = {name for name, entry in ENTRIES.items() if entry.reported and name not in ROWS}
    assert reported == {f"{data}.{model}{arm}" for data in cifar.TITLES for model in MODELS for arm in ("", "_moex")}
    assert len(reported) == 24
    assert len(cifar.REPORTED) == 12


@pytest.mark.parametrize(("model", "data"), cifar.REPORTED)
def test_in_every_row_the_paper_reports_less_error_with_moex(model, data):
    plain, exchanged = (ENTRIES[f"{data}.{model}{arm}"].reported for arm in ("", "_moex"))
    assert exchanged.error < plain.error
    assert all(number.sem > 0 and "Table 1" in number.where and not number.cited for number in (plain, exchanged))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arm", ["", "_moex"])
def test_hundred_classes_are_harder_than_ten(model, arm):
    assert ENTRIES[f"cifar100.{model}{arm}"].reported.error > 3 * ENTRIES[f"cifar10.{model}{arm}"].reported.error


@pytest.mark.parametrize("model", MODELS)
def test_both_data_sets_are_trained_alike(model):
    ten, hundred = find(f"cifar10.{model}"), find(f"cifar100.{model}")
    assert differences(ten, hundred) == ["data.name: cifar10 there, cifar100 now"]


@pytest.mark.parametrize("name", WITH_MOEX)
def test_the_arms_of_a_recipe_differ_in_the_exchange_alone(name):
    def arm(word):
        return find(name.replace("_moex", word))

    released = name.endswith("_released_script")
    plain = find(name.partition("_moex")[0]) if released else arm("")
    assert plain.exchange is None
    assert replace(find(name), exchange=None, paper=plain.paper) == plain
    assert differences(find(name), arm("_labels_only")) == ["exchange.features: True there, False now"]
    assert differences(find(name), arm("_lam1")) == [f"exchange.lam: {find(name).exchange.lam} there, 1.0 now"]


def test_every_recipe_with_an_exchange_has_its_controls():
    assert len(WITH_MOEX) * 3 == sum(ENTRIES[n].recipe.exchange is not None for n in ENTRIES if n not in ROWS)


def test_the_released_script_differs_from_the_text_in_lam_and_p():
    text, script = (find(f"cifar100.pyramidnet_200_moex{end}") for end in ("", "_released_script"))
    assert differences(text, script) == ["exchange.lam: 0.9 there, 0.5 now", "exchange.p: 0.5 there, 0.25 now"]


@pytest.mark.parametrize("data", cifar.TITLES)
@pytest.mark.parametrize("arm", ["", "_moex", "_labels_only", "_lam1"])
def test_the_undecided_dropout_is_a_variant_of_every_arm(data, arm):
    without, dropout = (find(f"{data}.wrn_28_10{arm}{end}") for end in ("", "_dropout"))
    assert differences(without, dropout) == ["model_options.dropout: nothing there, 0.3 now"]
    assert dropout.paper is None


@pytest.mark.parametrize("name", WITH_MOEX)
def test_the_exchange_is_at_the_recorded_first_stage_but_where_another_was_chosen(name):
    recipe = find(name)
    assert recipe.exchange.layer == (recipes.usual(name).exchange or Exchange()).layer
    assert models.first_site(recipe.model)


BUILT = {(r.model, tuple(r.model_options.items())): r for r in (entry.recipe for entry in ENTRIES.values())}


@pytest.mark.parametrize("recipe", BUILT.values(), ids=lambda r: f"{r.model}{dict(r.model_options) or ''}")
def test_the_model_of_every_recipe_can_be_built_with_its_options(recipe):
    with torch.device("meta"):
        model = models.build(recipe.model, 10, **recipe.model_options)
    dropped = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    assert dropped <= {recipe.model_options.get("dropout", 0.0)}
    assert bool(dropped) == (recipe.model == "cifar:wrn_28_10")


# --- the paper's ablation of design choices --------------------------------------------------------------------------


def test_the_ablation_has_the_six_rows_of_the_paper_and_two_twins():
    paper = {name: ENTRIES[name].reported for name in DESIGN if name.startswith("ablation.")}
    assert {name.rpartition(".")[2]: (number.error, number.sem) for name, number in paper.items()} == {
        "baseline": (26.3, 0.10),
        "label_smoothing": (26.0, 0.06),
        "labels_only": (26.0, 0.12),
        "lam1": (26.3, 0.02),
        "moex_label_smoothing": (25.8, 0.09),
        "moex": (25.5, 0.09),
    }
    assert len(DESIGN) == 18
    assert all(ENTRIES[name].reported is None for name in set(DESIGN) - set(paper))


@pytest.mark.parametrize(
    ("stem", "base"),
    [
        ("ablation.design", "cifar100.resnet110"),
        ("cifar10.resnet20_5k.design", "cifar10.resnet20_5k"),
        ("digits.design", "digits"),
    ],
)
def test_a_row_of_the_ablation_differs_from_its_recipe_in_one_thing(stem, base):
    changed = {row: differences(find(base), find(f"{stem}.{row}")) for row in ("baseline", "label_smoothing")}
    assert changed["baseline"] == []
    assert changed["label_smoothing"] == ["label_smoothing_others: 0.0 there, 0.1 now"]
    moex = find(f"{stem}.moex")
    assert replace(moex, exchange=None, paper=find(base).paper) == find(base)
    assert moex.exchange == Exchange(lam=0.9, p=0.5)
    assert differences(moex, find(f"{stem}.labels_only")) == ["exchange.features: True there, False now"]
    assert differences(moex, find(f"{stem}.lam1")) == ["exchange.lam: 0.9 there, 1.0 now"]
    assert differences(moex, find(f"{stem}.moex_label_smoothing")) == ["exchange.labels: partner there, others now"]


# --- the paper's table of combinations -------------------------------------------------------------------------------


def test_the_table_of_combinations_has_the_papers_thirteen_rows_and_marks_those_that_are_copied():
    paper = {
        name: ENTRIES[name].reported for name in STACKED if name.startswith("stacking.") and ENTRIES[name].reported
    }
    assert {name.partition(".")[2]: (n.error, n.top5) for name, n in paper.items()} == {
        "baseline": (16.45, 3.69),
        "manifold_mixup": (16.14, 4.07),
        "stochastic_depth": (15.86, 3.33),
        "dropblock": (15.73, 3.26),
        "mixup": (15.63, 3.99),
        "shakedrop": (15.08, 2.72),
        "moex": (15.02, 2.96),
        "cutout": (16.53, 3.65),
        "cutout_moex": (15.11, 3.23),
        "cutmix": (14.47, 2.97),
        "cutmix_moex": (13.95, 2.95),
        "cutmix_shakedrop": (13.81, 2.29),
        "cutmix_shakedrop_moex": (13.47, 2.15),
    }
    assert {name for name, n in paper.items() if not n.cited} == {name for name in paper if name.endswith("moex")}
    assert all(ENTRIES[name].reported is None for name in set(STACKED) - set(paper))
    assert len(STACKED) == 3 * 18


@pytest.mark.parametrize(
    ("stem", "base"),
    [
        ("stacking", "cifar100.pyramidnet_200"),
        ("digits.stacking", "digits"),
        ("cifar10.resnet20_5k.stacking", "cifar10.resnet20_5k"),
    ],
)
def test_a_row_of_combinations_adds_its_method_to_the_recipe_and_moment_exchange_to_that(stem, base):
    assert differences(find(base), find(f"{stem}.baseline")) == []
    for name in STACKED:
        row, _, arm = name.rpartition(".")
        if row == stem and not arm.endswith("moex"):
            plain, stacked = find(name), find(f"{stem}.moex" if arm == "baseline" else f"{name}_moex")
            assert replace(stacked, exchange=None, paper=plain.paper) == plain
            assert stacked.exchange == find(f"{stem}.moex").exchange
            methods = {"cutmix", "shakedrop"} if arm == "cutmix_shakedrop" else {arm} - {"baseline"}
            assert {line.partition(".")[0].partition(":")[0] for line in differences(find(base), plain)} == methods


def test_moment_exchange_on_the_pyramid_is_as_its_script_has_it():
    assert find("stacking.cutmix_moex").exchange == find("cifar100.pyramidnet_200_moex_released_script").exchange


# --- lab notes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_a_lab_note_says_what_it_is_the_number_and_the_command(name):
    entry = ENTRIES[name]
    lines = entry.note.splitlines()
    assert lines[0] == entry.summary
    assert lines[0].endswith(".")
    assert lines[-1].strip() == f"momentex train {name}"
    assert max(map(len, lines)) <= 120
    if entry.reported:
        assert f"Paper: {arms.spoken(entry.reported)} % error" in entry.note
    assert ("λ = " in entry.note) == (entry.recipe.exchange is not None)


def test_summaries_tell_recipes_apart():
    assert len({entry.summary for entry in ENTRIES.values()}) == len(ENTRIES)


def test_a_number_without_an_error_is_spoken_without_one():
    assert arms.spoken(Reported(error=22.9)) == "22.90"


# --- names that are not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar100.resnet110moex", "'cifar100.resnet110_moex'"),
        ("resnet110_moex", "'cifar10.resnet110_moex'"),
        ("cifar10.wrn2810", "'cifar10.wrn_28_10'"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(name, near):
    with pytest.raises(RecipeError, match=rf"^there is no recipe '{name}'\. Did you mean .*{near}.*`momentex recipes`"):
        find(name)


def test_a_name_that_is_near_to_nothing_says_where_names_are():
    with pytest.raises(RecipeError, match=r"^there is no recipe 'zzz'\. `momentex recipes` lists them; .*mine\.py:"):
        find("zzz")


def test_controls_of_no_exchange_are_refused():
    with pytest.raises(RecipeError, match=r"^labels_only is a control of an exchange, and this recipe has none: "):
        labels_only(Recipe())
    with pytest.raises(RecipeError, match=r"^lam1 is a control"):
        lam1(Recipe())


def test_moex_on_a_recipe_forgets_the_number_of_the_recipe_without_it():
    assert moex(find("cifar10.resnet110")).paper is None
    assert moex(Recipe(), Exchange(lam=0.3)).exchange.lam == 0.3


# --- functions of users ----------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    def write(text):
        file = tmp_path / "mine.py"
        file.write_text("from momentex.train.recipe import Recipe\n" + text)
        return f"{file}:recipe"

    return write


def test_a_function_in_a_file_is_a_recipe(mine):
    assert find(mine("def recipe():\n    return Recipe(epochs=7)")).epochs == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def recipe():\n    return {'epochs': 7}",
            r"returned a dict; it must return a momentex\.train\.recipe\.Recipe",
        ),
        ("def recipe():\n    return Recipe(epochs=0)", r"failed \(.*mine\.py, line 3\): RecipeError: epochs is 0"),
        ("def recipe():\n    return [][1]", r"failed \(.*mine\.py, line 3\): IndexError: list index out of range"),
        ("def recipe(lr):\n    return Recipe()", r"failed: TypeError: recipe\(\) missing 1 required .* argument: 'lr'"),
        ("def recipes():\n    return Recipe()", r"has no function 'recipe'\. Did you mean 'recipes'\?"),
        ("1 / 0", r"could not be imported \(.*mine\.py, line 2\): ZeroDivisionError"),
    ],
)
def test_a_function_that_is_no_recipe_says_which_line(mine, text, message):
    with pytest.raises(MomentexError, match=message):
        find(mine(text))


def test_a_file_without_a_function_says_how_to_name_one():
    with pytest.raises(MomentexError, match=r"'mine\.py' does not say which function of which file"):
        find("mine.py")


# --- what was measured here ------------------------------------------------------------------------------------------


def test_results_of_a_checkout_are_read_by_name_and_other_files_are_left_alone(tmp_path):
    row = {"error": 25.5, "sem": 0.1, "seeds": 3}
    (tmp_path / "cifar.json").write_text(json.dumps({"errors": {"cifar100.resnet110_moex": row}}))
    (tmp_path / "other.json").write_text(json.dumps([1, 2]))
    assert recipes.measured(tmp_path) == {"cifar100.resnet110_moex": recipes.Measured(25.5, 0.1, 3)}
    assert recipes.measured(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("text", ["{", '{"errors": {"a": {}}}', '{"errors": 3}'])
def test_results_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(RecipeError, match=r"broken\.json cannot be read as results: "):
        recipes.measured(tmp_path)


def test_the_list_needs_neither_torch_nor_numpy():
    code = (
        "import sys; from momentex.recipes import names; names(); "
        "assert not {'torch', 'numpy', 'tyro'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_comparison_says_in_words_is_read_with_the_numbers(tmp_path):
    row = {"error": 9.5, "sem": 0.3, "seeds": 20, "verdict": "MoEx is worse."}
    (tmp_path / "digits.json").write_text(json.dumps({"errors": {"digits": row}}))
    assert recipes.measured(tmp_path)["digits"].verdict == "MoEx is worse."


# --- what is usual for a comparison ----------------------------------------------------------------------------------


def test_a_comparison_of_digits_has_twenty_seeds_and_the_papers_setting_beside_its_own():
    usual = recipes.usual("digits")
    assert usual.seeds == 20
    assert usual.arms == (*arms.DEFAULT, "moex_paper")
    made = arms.of(replace(find("digits"), exchange=usual.exchange), usual.arms)
    assert made["moex"] == find("digits_moex")
    assert made["moex_paper"].exchange == Exchange()


def test_what_is_usual_for_a_recipe_is_so_for_its_arms_and_others_have_five_seeds():
    assert recipes.usual("digits_moex") == recipes.usual("digits")
    assert recipes.usual("cifar10.resnet20") == recipes.usual("mine.py:recipe") == arms.Usual()
    assert (arms.Usual().arms, arms.Usual().seeds, arms.Usual().exchange) == (arms.DEFAULT, 5, None)


@pytest.mark.parametrize("name", STACKED)
def test_a_comparison_of_a_row_of_combinations_is_that_row_without_and_with_moment_exchange(name):
    stem, _, row = name.rpartition(".")
    row = row.removesuffix("moex").rstrip("_")
    usual, recipe = recipes.usual(name), find(name)
    made = arms.of(replace(recipe, exchange=recipe.exchange or usual.exchange), usual.arms)
    assert differences(made["baseline"], find(f"{stem}.baseline")) == []
    assert differences(made["moex"], find(f"{stem}.moex")) == []
    if row not in ("", "baseline"):
        *_, alone, both = made
        assert differences(made[alone], find(f"{stem}.{row}")) == []
        assert differences(made[both], find(f"{stem}.{row}_moex")) == []
        assert (both, alone) in of_arms(list(made))[0]


# --- the arms of a comparison ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10.resnet20_5k", "cifar10.resnet20_5k_moex"])
def test_the_default_arms_are_the_recipes_of_that_name(name):
    made = arms.of(find(name))
    assert list(made) == ["baseline", "moex", "labels_only", "lam1"]
    for arm, recipe in made.items():
        named = "cifar10.resnet20_5k" + ("" if arm == "baseline" else f"_{arm}")
        assert differences(recipe, find(named)) == []


def test_what_the_recipe_says_of_its_exchange_holds_for_every_arm_that_exchanges():
    asked = Exchange(layer="layer2", lam=0.6, p=0.25)
    made = arms.of(replace(find("cifar10.resnet20"), exchange=asked))
    assert made["baseline"].exchange is None
    assert made["moex"].exchange == asked
    assert made["labels_only"].exchange == replace(asked, features=False)
    assert made["lam1"].exchange == replace(asked, lam=1.0)


@pytest.mark.parametrize("arm", arms.ARMS)
def test_every_arm_has_a_title_and_sets_one_field_of_a_recipe_alone(arm):
    method = arms.ARMS[arm]
    assert method.title
    assert method.what.endswith(".")
    (recipe,) = arms.of(find("digits"), [arm]).values()
    changed = {line.partition(":")[0].partition(".")[0] for line in differences(find("digits"), recipe)}
    assert changed == ({method.field} if method.field else set())


def test_arms_are_composed_from_left_to_right(monkeypatch):
    monkeypatch.setitem(
        arms.ARMS,
        "smooth",
        arms.Method(title="Smooth", what="Labels.", field="label_smoothing", value=lambda asked: asked or 0.1),
    )
    recipe = find("digits")
    made = arms.of(recipe, ["baseline", "smooth", "smooth+moex", "moex"])
    assert [r.label_smoothing for r in made.values()] == [0.0, 0.1, 0.1, 0.0]
    assert [r.exchange is None for r in made.values()] == [True, True, False, False]
    assert arms.title("smooth+moex") == "Smooth + MoEx"
    asked = arms.of(replace(recipe, label_smoothing=0.3), ["baseline", "smooth"])
    assert [r.label_smoothing for r in asked.values()] == [0.0, 0.3]
    kept = arms.of(replace(recipe, label_smoothing=0.3))  # no arm sets it: it is of the recipe
    assert {r.label_smoothing for r in kept.values()} == {0.3}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["baseline", "mox"], r"^there is no arm 'mox'\. Did you mean 'moex'.* There are baseline, moex, .*a\+b\.$"),
        (["moex+mox"], r"^there is no arm 'mox' \(of 'moex\+mox'\)\. "),
        (["moex+"], r"^there is no arm '' \(of 'moex\+'\)\. There are"),
        (["baseline+moex"], r"^the arm 'baseline\+moex' adds to baseline, which is what every arm adds to"),
        (["moex+lam1"], r"^the arm 'moex\+lam1' has moex and lam1, which both set exchange: it can have one\."),
        (["moex", "baseline", "moex"], r"^the arm moex is there twice: name each once\."),
        (["moex", "moex_paper"], r"^the arms moex and moex_paper do not differ: with this recipe, both are trained"),
    ],
)
def test_arms_that_are_none_or_do_not_differ_are_refused(asked, message):
    with pytest.raises(RecipeError, match=message):
        arms.of(find("digits"), asked)


def test_methods_of_input_space_stack_on_moment_exchange():
    made = arms.of(find("cifar10.resnet20"), ["cutmix", "mixup+moex", "cutout+cutmix+moex", "label_smoothing_others"])
    assert made["cutmix"].cutmix == CutMix(p=0.5)
    assert made["cutmix"].exchange is None
    assert (made["mixup+moex"].mixup, made["mixup+moex"].exchange) == (Mixup(), Exchange())
    assert made["cutout+cutmix+moex"].cutout == Cutout()
    assert made["label_smoothing_others"].label_smoothing_others == 0.1
    asked = arms.of(replace(find("cifar10.resnet20"), cutmix=CutMix(p=1.0)), ["baseline", "cutmix", "cutmix+moex"])
    assert [recipe.cutmix and recipe.cutmix.p for recipe in asked.values()] == [None, 1.0, 1.0]


def test_arms_that_exclude_each_other_are_refused():
    with pytest.raises(RecipeError, match=r"label_smoothing is 0\.1 and label_smoothing_others 0\.1: two forms of one"):
        arms.of(find("digits"), ["label_smoothing+label_smoothing_others"])
    smoothing = replace(find("digits"), exchange=Exchange(labels="others"))
    with pytest.raises(RecipeError, match=r"^exchange\.labels is 'others' in the recipe that is to be compared"):
        arms.of(smoothing, ["baseline", "moex"])


@pytest.mark.parametrize(("control", "said"), [("_labels_only", "features is False"), ("_lam1", "lam is 1")])
@pytest.mark.parametrize("arm", ["moex", "labels_only", "lam1"])
def test_a_control_is_no_recipe_to_compare(control, said, arm):
    with pytest.raises(RecipeError, match=rf"^exchange\.{said} in the recipe that is to be compared: .*already"):
        arms.of(find(f"digits{control}"), ["baseline", arm])
