"""The paper's ablations as sweeps: its rows, its numbers, and the twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from momentex import ablations, recipes
from momentex.ablations import exchanges
from momentex.ablations.named import PAPER, twin_of
from momentex.errors import RecipeError
from momentex.over import PONO
from momentex.train.recipe import Exchange, Recipe
from momentex.train.resolved import identity

LATER = ("ablation.lambda_p_imagenet", "search.modelnet", "search.speech", "search.iwslt")
NAMES = [named.name for named in ablations.names()]


def test_no_name_is_that_of_a_recipe_too() -> None:
    assert not set(NAMES) & {entry.name for entry in recipes.names()}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LATER])
def test_every_sweep_can_be_made(name: str) -> None:
    found = ablations.find(name)
    assert len(found.points) > 1
    assert all(point.recipe.data.validation for point in found.points) == ("held-out" in found.title)


@pytest.mark.parametrize("name", LATER)
def test_a_sweep_over_a_recipe_that_is_not_there_says_so_and_names_its_twin(name: str) -> None:
    with pytest.raises(
        RecipeError, match=rf"{name}: this is over the recipe .* which this version does not have\. Its "
    ):
        ablations.find(name)
    ablations.find(twin_of(name))


def test_every_one_of_the_papers_has_a_twin_of_the_same_shape() -> None:
    assert {twin_of(named.name) for named in PAPER} <= set(NAMES)
    for named in PAPER:
        if named.name not in LATER:
            paper, twin = (ablations.find(name) for name in (named.name, twin_of(named.name)))
            assert [p.name for p in paper.points] == [p.name for p in twin.points]
            assert [p.recipe.exchange for p in paper.points] == [p.recipe.exchange for p in twin.points]
            assert all(p.recipe.paper is None for p in twin.points)


def test_the_moments_are_the_eight_rows_of_the_papers_table() -> None:
    rows = [(p.name, p.recipe.paper.error, p.recipe.paper.sem) for p in ablations.find("ablation.moments").points]  # type: ignore[union-attr]
    assert rows == [
        ("none", 26.3, 0.10),
        ("ln", 25.6, 0.02),
        ("in", 25.7, 0.13),
        ("gn", 25.7, 0.09),
        ("pono", 25.5, 0.09),
        ("first", 25.9, 0.06),
        ("second", 26.0, 0.13),
        ("lrn", 26.3, 0.05),
    ]


def test_pono_before_the_first_stage_is_the_papers_own_row() -> None:
    """The same run under three names: the recipe of its first table, and a point of two ablations."""
    recipe = identity(recipes.find("cifar100.resnet110_moex"))
    for name, point in (("ablation.moments", "pono"), ("ablation.moments_layer", "over=PONO,layer=before-stage-1")):
        found = ablations.find(name).point(point).recipe
        assert found.exchange == Exchange(layer="layer1", over=PONO())
        assert replace(identity(found), exchange=Exchange()) == recipe


def test_each_row_of_moments_is_at_the_layer_where_the_table_of_layers_has_it_best() -> None:
    rows, layers = ablations.find("ablation.moments"), ablations.find("ablation.moments_layer")
    for name, over in (("ln", "LN"), ("in", "IN"), ("gn", "GN"), ("pono", "PONO")):
        mine = [point for point in layers.points if point.at["over"] == over]
        best = min(mine, key=lambda point: point.recipe.paper.error)  # type: ignore[union-attr]
        row = rows.point(name).recipe
        assert row.exchange == best.recipe.exchange
        assert (row.paper.error, row.paper.sem) == (best.recipe.paper.error, best.recipe.paper.sem)  # type: ignore[union-attr]


def test_the_search_has_the_footnotes_four_sites_with_every_setting_of_lambda_and_p() -> None:
    found = ablations.find("ablation.moments_layer_search")
    assert len(found.points) == 4 * 4 * 4 * 4
    assert found.searched == ("lam", "p")
    sites = {(p.recipe.exchange.layer, p.recipe.exchange.where) for p in found.points if p.recipe.exchange}
    assert sites == {("layer1", "input"), ("layer2", "input"), ("layer3", "input"), ("layer3", "output")}


def test_the_ten_rows_of_imagenet_begin_without_an_exchange() -> None:
    made = exchanges.lambda_p_rows(Recipe(), "mine", reported=True)
    assert [point.recipe.paper and (point.recipe.paper.error, point.recipe.paper.top5) for point in made.points] == [
        *((23.1, 6.6), (22.6, 6.6), (22.4, 6.4), (22.3, 6.3), (22.9, 6.9)),
        *((22.2, 6.4), (21.9, 6.2), (21.9, 6.1), (22.5, 6.3), (22.6, 6.5)),
    ]
    assert made.points[0].recipe.exchange is None
    assert all(point.recipe.exchange for point in made.points[1:])


def test_a_misspelt_name_is_answered_with_near_ones() -> None:
    with pytest.raises(RecipeError, match=r"there is no sweep 'ablation\.moment'\. Did you mean 'ablation\.moments'"):
        ablations.find("ablation.moment")
