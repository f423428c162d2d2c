"""Arms of one seed: the same initial weights, images, order, crops and pairs, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from momentex import Policy, Targets
from momentex.recipes import arms
from momentex.train.images import classification
from momentex.train.mixing import mixing, no_mixing
from momentex.train.place import Place
from momentex.train.recipe import Augment, Data, Exchange, Recipe
from momentex.train.run import Run, prepare
from momentex.train.task import Batch
from tests.compare import assert_same_bits
from tests.train_models import small
from tests.train_runs import MODELS, tiny

HERE = Place(torch.device("cpu"))

BASE = tiny(
    data=Data(name="digits", train_size=60, validation=20),
    augment=Augment(crop_padding=2, flip=True),
    model=f"{MODELS}:dropping",
    epochs=3,
    batch_size=16,
    seed=5,
)
WITH = arms.moex(BASE, Exchange(layer="resnet.bn1", p=0.5, lam=0.8))
ARMS = {"plain": BASE, "moex": WITH, "labels_only": arms.labels_only(WITH), "lam1": arms.lam1(WITH)}


def begun(recipe: Recipe) -> Run:
    torch.manual_seed(recipe.seed)
    return prepare(recipe, classification(recipe, HERE), HERE)


def batches(run: Run) -> list[Batch]:
    return [batch for epoch in range(run.recipe.epochs) for batch in run.task.batches.epoch(epoch)]


def mixed(recipe: Recipe) -> list[Targets]:
    """The targets of every step."""
    run = begun(recipe)
    found = []
    for step, batch in enumerate(batches(run)):
        block = run.mixing.block(batch, Targets(batch.labels), step, True)
        with block as targets:
            run.task.model(*batch.inputs)
        found.append(targets)
    return found


@pytest.mark.parametrize("arm", ["moex", "labels_only", "lam1"])
def test_arms_of_one_seed_have_the_same_weights_and_batches(arm: str) -> None:
    one, other = begun(ARMS["plain"]), begun(ARMS[arm])
    for (name, mine), theirs in zip(
        one.task.model.state_dict().items(), other.task.model.state_dict().values(), strict=True
    ):
        assert_same_bits(theirs, mine), name
    for mine, theirs in zip(batches(one), batches(other), strict=True):
        assert_same_bits(theirs.inputs[0], mine.inputs[0])
        assert torch.equal(theirs.labels, mine.labels)
    assert one.task.facts == other.task.facts


def test_another_seed_has_other_weights_images_and_crops() -> None:
    one, other = begun(BASE), begun(replace(BASE, seed=6))
    assert not torch.equal(one.task.model.resnet.conv1.weight, other.task.model.resnet.conv1.weight)
    assert not torch.equal(batches(one)[0].inputs[0], batches(other)[0].inputs[0])
    assert one.task.facts["training"] != other.task.facts["training"]
    assert one.task.facts["validation"] == other.task.facts["validation"]


def test_dropout_draws_the_same_in_every_arm() -> None:
    found = []
    for recipe in ARMS.values():
        run = begun(recipe)
        torch.manual_seed(recipe.seed)
        run.task.model.train()
        found.append(run.task.model.drop(torch.ones(100)))
    assert all(torch.equal(drawn, found[0]) for drawn in found)


def test_labels_alone_are_mixed_exactly_as_with_features() -> None:
    features, labels = mixed(ARMS["moex"]), mixed(ARMS["labels_only"])
    assert len({len(targets.terms) for targets in features}) == 2  # the coin said yes and no
    for one, other in zip(features, labels, strict=True):
        assert len(one.terms) == len(other.terms)
        for (mine, weight), (theirs, other_weight) in zip(one.terms, other.terms, strict=True):
            assert torch.equal(mine, theirs)
            assert weight == other_weight


def test_with_lam_1_features_are_exchanged_and_labels_are_not() -> None:
    assert all(len(targets.terms) == 1 for targets in mixed(ARMS["lam1"]))
    run = begun(ARMS["lam1"])
    for step, batch in enumerate(batches(run)):
        with run.mixing.block(batch, Targets(batch.labels), step, True):
            run.task.model(*batch.inputs)
    assert 0 < run.mixing.log()["exchanged_steps"] < 1


def logits(recipe: Recipe, step: int) -> Tensor:
    run = begun(recipe)
    batch = batches(run)[step]
    run.task.model.eval()
    with torch.no_grad(), run.mixing.block(batch, Targets(batch.labels), step, True):
        return run.task.model(*batch.inputs)


def test_features_are_exchanged_where_they_should_be() -> None:
    on = [Policy(p=0.5).draw(BASE.seed, step, 16).on for step in range(6)]
    yes, no = on.index(True), on.index(False)
    assert_same_bits(logits(ARMS["labels_only"], yes), logits(ARMS["plain"], yes))
    assert_same_bits(logits(ARMS["moex"], no), logits(ARMS["plain"], no))
    assert_same_bits(logits(ARMS["moex"], yes), logits(ARMS["lam1"], yes))
    assert not torch.allclose(logits(ARMS["moex"], yes), logits(ARMS["plain"], yes), rtol=1e-2)


@pytest.mark.parametrize("facts", [{"mask": True}, {}], ids=["with a mask", "without"])
def test_labels_of_samples_that_could_not_exchange_features_stay_in_both_arms(facts: dict) -> None:
    """A sample with one valid position has no moments: neither arm may mix its label."""
    model = small(4)
    mask = torch.ones(6, 8, 8, dtype=torch.bool)
    mask[2] = False
    mask[2, 0, 0] = True
    batch = Batch((torch.randn(6, 1, 8, 8),), torch.arange(6) % 4, {"mask": mask} if facts else {})
    exchange = Exchange(layer="stage", p=1.0, lam=0.6, pairing="derangement", over=_over())
    found = []
    for features in (True, False):
        mix = mixing(replace(exchange, features=features), model, None, seed=3, rank=0)
        with mix.block(batch, Targets(batch.labels), 0, True) as targets:
            model(*batch.inputs)
        found.append(targets.probabilities(4))
    assert torch.equal(found[0], found[1])
    assert bool((found[0][2] == torch.eye(4)[2]).all()) == bool(facts)


def _over():
    from momentex import IN

    return IN()


def test_coins_are_common_to_all_processes_and_pairs_are_their_own() -> None:
    """What `rank` does to the blocks of one recipe: eight steps of two processes."""
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    on: list[list[bool]] = []
    partners: list[list[Tensor]] = []
    for features in (True, False):
        for rank in (0, 1):
            model = small(4)
            mix = mixing(Exchange(layer="stage", p=0.5, features=features), model, None, seed=1, rank=rank)
            on.append([])
            partners.append([])
            for step in range(8):
                with mix.block(Batch((x,), y, {}), Targets(y), step, True) as targets:
                    model(x)
                on[-1].append(len(targets.terms) == 2)
                partners[-1].append(targets.terms[-1].labels)
    assert on[0] == on[1] == on[2] == on[3]
    assert set(on[0]) == {True, False}
    assert any(not torch.equal(a, b) for a, b in zip(partners[0], partners[1], strict=True))
    for rank in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(partners[rank], partners[2 + rank], strict=True))


def test_without_exchange_nothing_is_mixed_or_logged() -> None:
    mix = no_mixing()
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 1]), {})
    with mix.block(batch, Targets(batch.labels), 0, True) as targets:
        assert len(targets.terms) == 1
    assert mix.log() == {}
