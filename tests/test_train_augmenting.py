"""Input space in a run: what a step computes, by hand; recipes without it are as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentex import CutMix, Cutout, Mixup, MomentExchange, smooth_labels
from momentex.errors import RecipeError
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Data, Exchange, Recipe
from momentex.train.run import Run, prepare, train_step
from momentex.train.task import Batch
from tests.compare import assert_same_bits
from tests.train_runs import MODELS, assert_same_run, fitted, tiny, trained

HERE = Place(torch.device("cpu"))


def begun(recipe: Recipe) -> Run:
    torch.manual_seed(recipe.seed)
    return prepare(recipe, classification(recipe, HERE), HERE)


def first_losses(recipe: Recipe, steps: int = 4) -> list[float]:
    run, found = begun(recipe), []
    for batch in run.task.batches.epoch(0):
        found.append(float(train_step(run, batch)))
        run.at.step += 1
    return found[:steps]


def by_hand(recipe: Recipe, moex: Exchange | None, steps: int = 4) -> list[float]:
    """The same steps as a user writes them, with momentex in a loop of one's own."""
    run = begun(replace(recipe, exchange=None, mixup=None, cutmix=None, cutout=None))
    model, optimizer, found = run.task.model, run.optimizer, []
    exchange = MomentExchange(model, "stage", lam=moex.lam, p=moex.p, seed=recipe.seed) if moex else None
    for step, batch in enumerate(run.task.batches.epoch(0)):
        x, targets = batch.inputs[0], batch.labels
        for method in (recipe.cutout, recipe.mixup, recipe.cutmix):
            if method is not None:
                x, targets = method(x, targets, step=step, seed=recipe.seed)
        optimizer.zero_grad()
        if exchange is not None:
            with exchange(targets) as both:
                loss = both.loss(F.cross_entropy, model(x))
        else:
            loss = targets.loss(F.cross_entropy, model(x))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found[:steps]


METHODS: dict[str, dict[str, Any]] = {
    "mixup": {"mixup": Mixup(alpha=0.4)},
    "cutmix": {"cutmix": CutMix(p=0.5)},
    "cutout": {"cutout": Cutout(size=4)},
    "all three": {"mixup": Mixup(p=0.5), "cutmix": CutMix(p=0.5, pairs="own"), "cutout": Cutout()},
}


@pytest.mark.parametrize("exchange", [None, Exchange(layer="stage", p=0.5, lam=0.8)], ids=["alone", "with MoEx"])
@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_a_run_computes_what_the_same_loop_by_hand_computes(methods: dict[str, Any], exchange: Exchange | None) -> None:
    recipe = tiny(seed=6, exchange=exchange, **methods)
    found = first_losses(recipe)
    assert found == pytest.approx(by_hand(recipe, exchange), rel=1e-5)
    assert found != pytest.approx(first_losses(replace(recipe, mixup=None, cutmix=None, cutout=None)), rel=1e-4)


def test_shared_partners_follow_the_pairing_of_the_exchange() -> None:
    recipe = tiny(cutmix=CutMix(), exchange=Exchange(layer="stage", p=1.0, pairing="derangement"))
    run = begun(recipe)
    batch = next(iter(run.task.batches.epoch(0)))
    names = Batch(batch.inputs, torch.arange(len(batch.labels)), {})
    for step in range(8):  # most permutations have a fixed point, and are not drawn as derangements
        _, targets = run.augment(names, step)
        with run.mixing.block(names, targets, step, True) as both:
            run.task.model(*batch.inputs)
        if len(targets.terms) == 1:
            continue  # the border cut the box away
        partner = both.terms[-1].labels  # the partner's partner
        pasted = targets.terms[-1].labels
        assert torch.equal(partner, pasted[pasted])
        assert not bool((pasted == names.labels).any())


def test_without_input_space_the_batch_goes_through_as_it_is() -> None:
    run = begun(tiny())
    batch = next(iter(run.task.batches.epoch(0)))
    same, targets = run.augment(batch, 0)
    assert same is batch
    assert targets.terms[0].labels is batch.labels


def test_a_run_with_input_space_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    recipe = tiny(epochs=3, mixup=Mixup(p=0.5), cutmix=CutMix(per="sample"), cutout=Cutout(size=2), checkpoint_steps=1)
    whole = trained(recipe, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    from tests.train_runs import Told

    def stop(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, stopped, Told(stop))
    assert_same_run(trained(recipe, stopped), whole)


# --- label smoothing -------------------------------------------------------------------------------------------------


def test_smoothing_over_the_others_is_what_is_trained_on() -> None:
    recipe = tiny(label_smoothing_others=0.3)
    run = begun(recipe)
    batch = next(iter(run.task.batches.epoch(0)))
    loss = smooth_labels(batch.labels, 0.3, num_classes=10, over="others").cross_entropy(run.task.model(*batch.inputs))
    assert first_losses(recipe)[0] == pytest.approx(loss.item(), rel=1e-6)


def test_moex_with_label_smoothing_smoothes_where_features_are_exchanged_and_there_alone() -> None:
    exchange = Exchange(layer="stage", p=0.5, lam=0.8, labels="others", pairing="permutation")
    recipe = tiny(exchange=exchange, batch_size=10)
    run, plain = begun(recipe), begun(replace(recipe, exchange=replace(exchange, labels="partner")))
    seen = set()
    for step, batch in enumerate(run.task.batches.epoch(0)):
        blocks = [r.mixing.block(batch, r.augment(batch, step)[1], step, True) for r in (run, plain)]
        with blocks[0] as smoothed:
            ours = run.task.model(*batch.inputs)
        with blocks[1] as mixed:
            theirs = plain.task.model(*batch.inputs)
        assert_same_bits(ours, theirs)
        rows = smoothed.probabilities(10)
        own = F.one_hot(batch.labels, 10).float()
        if len(mixed.terms) == 1:
            assert torch.equal(rows, own)
            seen.add("off")
            continue
        from momentex import Policy

        index = Policy(p=0.5).draw(recipe.seed, step, len(rows)).index
        others = own * 0.8 + (1 - own) * 0.2 / 9
        wanted = torch.where((index == torch.arange(len(index)))[:, None], own, others)
        torch.testing.assert_close(rows, wanted)
        seen.add("on")
    assert seen == {"on", "off"}


# --- what cannot be, before anything is written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutout": Cutout(size=16)}, r"^cutout\.size is 16 for images of 8×8 pixels: wherever the centre"),
        ({"mixup": Mixup(), "batch_size": 4, "accumulate": 4}, r"each of a single image: nobody would have a partner"),
        (
            {"cutmix": CutMix(), "batch_size": 4, "accumulate": 4},
            r"each of a single image: nobody would have a partner",
        ),
        ({"label_smoothing_others": 0.95}, r"^smoothing is 0\.95 over the others of 10 classes: above 0\.9, the own"),
    ],
)
def test_what_does_not_fit_the_data_is_found_before_training(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label_smoothing": 0.1, "label_smoothing_others": 0.1},
            r"^label_smoothing is 0\.1 and label_smoothing_others 0\.1: two forms of one method\. Leave one out\.$",
        ),
        ({"label_smoothing_others": 1.0}, r"^label_smoothing_others is 1\.0; it is below 1, 0 or more\.$"),
        (
            {"label_smoothing": 0.1, "exchange": Exchange(labels="others")},
            r"^exchange\.labels is 'others', which smoothes labels by itself: leave label_smoothing and",
        ),
    ],
)
def test_methods_that_exclude_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "other"}, r"^exchange\.labels is 'other'; it is 'partner' .* or 'others'"),
        ({"labels": "others", "lam": 1.0}, r"^exchange\.labels is 'others', which smoothes labels where features are"),
        ({"labels": "others", "features": False}, r"^exchange\.labels is 'others', .* that needs exchange\.features"),
    ],
)
def test_an_exchange_that_smoothes_needs_features_and_a_lambda(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Exchange(**changes)


def test_a_model_of_the_users_is_trained_on_what_was_cut_and_pasted() -> None:
    recipe = tiny(data=Data(name="digits", train_size=40), model=f"{MODELS}:small", cutmix=CutMix())
    run = begun(recipe)
    batch = next(iter(run.task.batches.epoch(0)))
    x, _ = CutMix()(batch.inputs[0], batch.labels, step=0)
    assert_same_bits(run.augment(batch, 0)[0].inputs[0], x)
