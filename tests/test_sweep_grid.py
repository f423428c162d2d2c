"""Sweeps as values: fields by name, grids and lists, what flags change, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from momentex.errors import RecipeError
from momentex.over import GN, IN, PONO
from momentex.sweep.fields import check_field, moved, names_of, value_at, with_fields
from momentex.sweep.grid import Axis, Point, Sweep, axis, flagged, grid, listed, slug, swept
from momentex.train.recipe import SGD, Adam, Cosine, Data, Exchange, Recipe, Reported, Steps


def test_every_field_that_is_listed_can_be_read_and_set_to_what_it_is() -> None:
    recipe = Recipe(exchange=Exchange(), model_options={"depth": 8}, schedule=Steps(milestones=(3, 5)))
    names = names_of(recipe)
    assert {"exchange.lam", "model_options.depth", "schedule.milestones", "data.train_size", "epochs"} <= set(names)
    for name in names:
        assert with_fields(recipe, {name: value_at(recipe, name)}) == recipe


def test_fields_are_set_all_at_once_so_that_what_is_valid_together_is_valid() -> None:
    recipe = Recipe(epochs=200, schedule=Steps(milestones=(100, 150)))
    made = with_fields(recipe, {"epochs": 10, "schedule.milestones": (5, 8)})
    assert (made.epochs, made.schedule) == (10, Steps(milestones=(5, 8)))
    assert with_fields(recipe, {"optimizer": Adam(), "optimizer.lr": 0.5}).optimizer == Adam(lr=0.5)
    assert with_fields(recipe, {"model_options.dropout": 0.3}).model_options == {"dropout": 0.3}
    assert with_fields(recipe, {"exchange.lam": 0.5}).exchange == Exchange(lam=0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exchange.lamb", r"no field 'exchange\.lamb'\. Did you mean 'exchange\.lam'"),
        ("lam", r"no field 'lam'\. Did you mean 'exchange\.lam'\?"),
        ("optimizer.betas", r"no field 'optimizer\.betas'"),
        ("model_options.", r"no field 'model_options\.'"),
        ("seed", "a sweep runs each of them with the seeds of --seeds"),
        ("paper", "paper is no field of a sweep's points"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_near_names(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_field(Recipe(), name)


def test_a_grid_has_a_point_for_every_combination_each_with_its_place() -> None:
    lams, ps = (0.5, 0.9), (0.25, 0.5, 1.0)
    made = grid("mine", Recipe(), [axis("exchange.lam", *lams, title="λ"), axis("exchange.p", *ps)])
    assert [p.recipe.exchange for p in made.points] == [Exchange(lam=a, p=b) for a, b in product(lams, ps)]
    first = made.points[0]
    assert (first.name, first.heading) == ("lam=0.5,p=0.25", "λ = 0.5, p = 0.25")
    assert first.at == {"lam": "0.5", "p": "0.25"}
    assert made.whole
    assert swept(made) == {"exchange.lam", "exchange.p"}
    assert not replace(made, points=made.points[1:]).whole
    assert made.point("lam=0.9,p=1").recipe.exchange == Exchange(lam=0.9, p=1.0)


def test_the_value_of_an_axis_may_set_several_fields() -> None:
    sites = Axis(
        name="layer",
        values={"before": {"exchange.layer": "a"}, "after": {"exchange.layer": "a", "exchange.where": "output"}},
    )
    made = grid("mine", Recipe(), [sites, axis("exchange.over", PONO(), GN(4), IN(only="mean"))])
    assert [point.name for point in made.points[:3]] == [
        *("layer=before,over=PONO", "layer=before,over=GN-4", "layer=before,over=IN-mean")
    ]
    assert made.points[-1].recipe.exchange == Exchange(layer="a", where="output", over=IN(only="mean"))


def test_names_of_points_are_names_of_folders() -> None:
    assert slug("a/b: c") == "a-b-c"
    assert slug("..") == "none"
    with pytest.raises(RecipeError, match=r"a point is called '\.\./x', which cannot be the name of its folder"):
        Sweep(title="mine", points=(Point(name="../x", recipe=Recipe()),))


def test_flags_hold_for_all_points_and_those_of_the_exchange_for_points_that_have_one() -> None:
    like = Recipe(exchange=Exchange())
    made = listed("mine", {"none": Recipe(), "some": like, "short": replace(like, epochs=5)})
    after = replace(like, clip=1.0, exchange=Exchange(p=1.0))
    none, some, short = (point.recipe for point in flagged(made, like, after).points)
    assert (none.clip, none.exchange) == (1.0, None)
    assert some == after
    assert short == replace(after, epochs=5)


def test_what_the_paper_reports_is_of_the_recipe_without_further_flags() -> None:
    paper = Reported(error=1.0)
    made = listed("mine", {"a": Recipe(paper=paper), "b": Recipe(epochs=3, paper=paper)})
    home = Recipe(data=Data(root="/data"))  # type: ignore[arg-type]
    assert all(point.recipe.paper == paper for point in flagged(made, Recipe(), home).points)
    assert all(point.recipe.paper is None for point in flagged(made, Recipe(), Recipe(clip=1.0)).points)


def test_flags_of_a_part_that_a_point_has_in_another_form_are_refused() -> None:
    with pytest.raises(RecipeError, match="change the optimizer of points that have a SGD, and one has a Adam"):
        moved(Recipe(optimizer=Adam()), Recipe(), Recipe(optimizer=SGD(lr=0.2)))
    assert moved(Recipe(optimizer=Adam()), Recipe(), Recipe(schedule=Cosine())).schedule == Cosine()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grid("mine", Recipe(), []), "the grid is empty: name an axis at least"),
        (lambda: axis("epochs"), "the axis epochs has no values"),
        (lambda: axis("epochs", 1, 2, 1), "the axis epochs has 1 twice: name each value once"),
        (lambda: grid("mine", Recipe(), [axis("epochs", 1), axis("epochs", 2)]), "two axes set epochs"),
        (
            lambda: grid(
                "mine", Recipe(), [axis("optimizer.weight_decay", 1.0), axis("clip", 2.0, name="weight_decay")]
            ),
            "two axes are called weight_decay",
        ),
        (
            lambda: grid("mine", Recipe(), [axis("epochs", 0, 1)]),
            "the point epochs=0: epochs is 0; it must be 1 or more",
        ),
        (lambda: listed("mine", {}), "the sweep is empty: it needs a point at least"),
        (
            lambda: listed("mine", {"a": Recipe(), "b": Recipe(checkpoint_steps=3)}),
            "the points a and b do not differ: both are trained in the same way",
        ),
        (lambda: listed("mine", {"a b": Recipe(), "A-b": Recipe(epochs=3)}), "two points are called A-b"),
        (lambda: listed("mine", {"one": Recipe()}).point("on"), "no point 'on'. Did you mean 'one'?"),
    ],
)
def test_what_is_no_sweep_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RecipeError, match=message):
        make()
