"""Methods on features in a run: what a step computes, by hand; what cannot be is said before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentex import IN, MomentExchange, Targets
from momentex.errors import LayerNotFound, RecipeError
from momentex.feature.dropblock import DropBlock as Dropping
from momentex.feature.manifold_mixup import ManifoldMixup as Mixing
from momentex.feature.shakedrop import ShakeDrop as Shaking
from momentex.models import build
from momentex.recipes import arms
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Data, Exchange, Recipe
from momentex.train.regularizers import DropBlock, ManifoldMixup, ShakeDrop, StochasticDepth
from momentex.train.resolved import from_json, to_json
from momentex.train.run import Run, prepare, train_step
from tests.train_runs import Told, assert_same_run, fitted

HERE = Place(torch.device("cpu"))
BASE = Recipe(
    data=Data(name="digits", train_size=60),
    model="cifar:resnet",
    model_options={"depth": 8, "in_channels": 1, "width": 4},
    epochs=2,
    batch_size=20,
)
EVERY: dict[str, Any] = {
    "manifold_mixup": ManifoldMixup(alpha=2.0),
    "dropblock": DropBlock(p=0.2, block_size=2),
    "shakedrop": ShakeDrop(),
    "stochastic_depth": StochasticDepth(last=0.2),
}
every = pytest.mark.parametrize("name", EVERY)


def begun(recipe: Recipe) -> Run:
    torch.manual_seed(recipe.seed)
    run = prepare(recipe, classification(recipe, HERE), HERE)
    torch.manual_seed(7)
    return run


def losses(run: Run) -> list[float]:
    found = []
    for batch in run.task.batches.epoch(0):
        found.append(float(train_step(run, batch)))
        run.at.step += 1
    return found


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", [None, Exchange(p=1.0, over=IN())], ids=["alone", "with MoEx"])
def test_manifold_mixup_in_a_run_is_that_of_ones_own_loop(exchange: Exchange | None) -> None:
    """With shared pairs, the order of the two makes no difference: a loop need not know which layer comes first."""
    ours = losses(begun(replace(BASE, manifold_mixup=ManifoldMixup(), exchange=exchange)))
    run, theirs = begun(BASE), []
    model = run.task.model
    mixup = Mixing(model, ("conv1", "layer2", "layer3"))
    moex = MomentExchange(model, "layer1", over=IN(), p=1.0 if exchange else 0.0)
    for batch in run.task.batches.epoch(0):
        run.optimizer.zero_grad()
        with moex(batch.labels) as some, mixup(some) as targets:
            loss = targets.loss(F.cross_entropy, model(batch.inputs[0]))
        loss.backward()
        run.optimizer.step()
        theirs.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours != pytest.approx(losses(begun(replace(BASE, exchange=exchange))), rel=1e-3)


@pytest.mark.parametrize("where", ["input", "output"])
def test_labels_are_mixed_in_the_order_of_the_layers(where: Any) -> None:
    """Coins of single samples make pairs that do not commute: then the order counts."""
    exchange = Exchange(over=IN(), p=0.5, per="sample", lam=0.6, where=where)
    layers = ("conv1", "layer1.0.conv1", "layer2")
    run = begun(replace(BASE, exchange=exchange, manifold_mixup=ManifoldMixup(layers=layers, p=0.5, per="sample")))
    orders = set()
    for step in range(12):
        batch = next(iter(run.task.batches.epoch(0)))
        plan = Mixing(build("cifar:resnet20", 10), layers, p=0.5, per="sample")
        plan.step = step
        mixed = plan.draw(batch.labels)
        moex = MomentExchange(build("cifar:resnet20", 10), "layer1", p=0.5, per="sample", lam=0.6)
        moex.step = step
        with moex(batch.labels):
            moex_plan = moex._blocks.plan
            moex._blocks.hooks["layer1"].calls = 1  # nothing runs here
        first = mixed.layer == "conv1" or (where == "output" and mixed.layer == "layer1.0.conv1")
        steps = [mixed, moex_plan] if first else [moex_plan, mixed]
        soft = F.one_hot(batch.labels, 10).double()
        for p in steps:
            lam = torch.as_tensor(p.lam, dtype=torch.float64).expand(len(soft))[:, None]
            soft = lam * soft + (1 - lam) * soft[p.index]
        with run.mixing.block(batch, Targets(batch.labels), step, True) as targets:
            run.task.model(*batch.inputs)
        torch.testing.assert_close(targets.probabilities(10).double(), soft, rtol=1e-5, atol=1e-6)
        orders.add(first)
    assert orders == {True, False}


def test_dropblock_rises_from_nothing_with_the_steps_of_the_run() -> None:
    run, plain = begun(replace(BASE, dropblock=DropBlock(p=0.3))), begun(BASE)
    shares = []
    hook = next(iter(run.task.model.layer3._forward_hooks.values())).__self__
    for batch in run.task.batches.epoch(0):
        loss = train_step(run, batch)
        if not shares:
            assert loss == train_step(plain, batch)
        shares.append(float(hook.p))
        run.at.step += 1
    assert shares == pytest.approx([0.0, 0.05, 0.1])
    constant = begun(replace(BASE, dropblock=DropBlock(p=0.3, rises=False)))
    train_step(constant, next(iter(constant.task.batches.epoch(0))))
    held = next(iter(constant.task.model.layer3._forward_hooks.values())).__self__
    assert float(held.p) == pytest.approx(0.3)


def test_residual_methods_stand_on_every_branch_with_linear_decay() -> None:
    model = begun(replace(BASE, shakedrop=ShakeDrop(last=0.4, alpha=(0.0, 1.0), per="batch"))).task.model
    shaking = [m for m in model.modules() if isinstance(m, Shaking)]
    assert [m.p for m in shaking] == pytest.approx([0.8, 0.6, 0.4])
    assert {(m.alpha, m.per) for m in shaking} == {((0.0, 1.0), "batch")}


# --- runs ------------------------------------------------------------------------------------------------------------


@every
def test_a_run_that_is_stopped_within_an_epoch_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    recipe = replace(BASE, checkpoint_steps=1, exchange=Exchange(over=IN()), **{name: EVERY[name]})
    fitted(recipe, tmp_path / "whole")

    def stop(step: int) -> None:
        if step == 5:  # of six, three in each epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, tmp_path / "stopped", Told(stop))
    again = Told()
    fitted(recipe, tmp_path / "stopped", again)
    assert len(again.losses) == 1
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@every
def test_a_recipe_with_it_survives_json_and_has_an_arm(name: str) -> None:
    recipe = replace(BASE, **{name: EVERY[name]})
    assert from_json(to_json(recipe)) == recipe
    made = arms.of(recipe, ["baseline", "moex", name, f"{name}+moex"])
    assert [getattr(made[arm], name) for arm in made] == [None, None, EVERY[name], EVERY[name]]
    assert [made[arm].exchange is not None for arm in made] == [False, True, False, True]


# --- before training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"model": "cifar:densenet_bc", "model_options": {"depth": 10, "growth_rate": 4, "in_channels": 1}}
         | {"shakedrop": ShakeDrop()}, RecipeError, "cifar:densenet_bc takes nothing there"),
        ({"model": "torchvision:resnet18", "model_options": {}, "stochastic_depth": StochasticDepth()}, RecipeError,
         "stochastic_depth stands on the branches of a residual model"),
        ({"shakedrop": ShakeDrop(), "stochastic_depth": StochasticDepth()}, RecipeError, "a recipe can have one"),
        ({"dropblock": DropBlock(layers=("layr2",))}, LayerNotFound, "Did you mean 'layer2'"),
        ({"dropblock": DropBlock(layers=("fc",))}, RecipeError, r"DropBlock needs floating-point maps"),
        ({"manifold_mixup": ManifoldMixup(layers=("conv1", "layer9"))}, LayerNotFound, "no such layer"),
        ({"manifold_mixup": ManifoldMixup(), "batch_size": 1}, RecipeError, "nobody would have a partner"),
        ({"model_options": {"branch": 1}}, RecipeError, "model_options has branch, which the recipe decides"),
    ],
    ids=["no residuals", "torchvision", "both", "near", "no maps", "layer", "alone", "options"],
)  # fmt: skip
def test_what_cannot_be_is_an_error_before_training(changes: dict, error: type, text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        fitted(replace(BASE, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ManifoldMixup(alpha=0.0), "manifold_mixup.alpha is 0.0"),
        (lambda: ManifoldMixup(p=0.0), "leave the method out for 0"),
        (lambda: DropBlock(p=0.0), "dropblock.p is 0.0"),
        (lambda: DropBlock(block_size=0), "dropblock.block_size is 0"),
        (lambda: ShakeDrop(last=1.0), "At 1 every block would always be as it is"),
        (lambda: ShakeDrop(alpha=(1.0, 0.0)), "shakedrop.alpha is 1.0 to 0.0"),
        (lambda: ShakeDrop(alpha=(1.0, 1.0), beta=(1.0, 1.0)), "no branch would ever be changed"),
        (lambda: StochasticDepth(last=-0.5), "stochastic_depth.last is -0.5"),
    ],
)
def test_values_out_of_range_and_without_effect_are_refused(make: Any, text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make()
    assert text in str(caught.value)


def test_a_trial_leaves_no_hook_behind() -> None:
    from momentex.train.rehearsal import rehearse

    recipe = replace(BASE, dropblock=DropBlock(), manifold_mixup=ManifoldMixup())
    task = classification(recipe, HERE)
    rehearse(recipe, task, HERE)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in task.model.modules())
    Dropping(task.model, "layer1").remove()
