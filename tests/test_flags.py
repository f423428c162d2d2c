"""Flags: every kind of field, what is done before tyro reads them, short names of what moments range over."""

from dataclasses import replace
from pathlib import Path

import pytest

from momentex import CutMix, Cutout, Mixup, flags
from momentex.errors import RecipeError
from momentex.over import GN, IN, PONO
from momentex.recipes import find, names
from momentex.train.recipe import SGD, Adam, Constant, Cosine, Data, Exchange, InverseSqrt, Plateau, Recipe, Steps
from momentex.verbs import compare
from tests.strategies import OVERS


def recipe(*arguments):
    return flags.train(arguments)[1].recipe


@pytest.mark.parametrize("name", [entry.name for entry in names()])
def test_without_flags_a_recipe_is_what_it_is(name):
    assert recipe(name) == find(name)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ("--epochs 3", "epochs", 3),
        ("--seed=7", "seed", 7),
        ("--clip 1.5", "clip", 1.5),
        ("--clip None", "clip", None),
        ("--precision float16", "precision", "float16"),
        ("--model torchvision:resnet18", "model", "torchvision:resnet18"),
        ("--compile", "compile", True),
        ("--no-channels-last", "channels_last", False),
        ("--checkpoint_steps 10", "checkpoint_steps", 10),
        ("--checkpoint-steps 10", "checkpoint_steps", 10),
        ("--data.train-size 500", "data.train_size", 500),
        ("--data.train_size 500", "data.train_size", 500),
        ("--data here", "data.root", Path("here")),
        ("--data=here", "data.root", Path("here")),
        ("--data.root here", "data.root", Path("here")),
        ("--augment.no-flip", "augment.flip", False),
        ("--augment.mean .5 .4 .3 --augment.std 1 1 1", "augment.mean", (0.5, 0.4, 0.3)),
        ("--optimizer.lr 0.05", "optimizer.lr", 0.05),
        ("--optimizer.nesterov", "optimizer.nesterov", True),
        ("--optimizer adam", "optimizer", Adam()),
        ("--optimizer Adam --optimizer.betas .8 .9", "optimizer", Adam(betas=(0.8, 0.9))),
        ("--optimizer sgd --optimizer.lr 1", "optimizer", SGD(lr=1.0)),
        ("--schedule constant", "schedule", Constant()),
        ("--schedule steps --schedule.milestones 10 20", "schedule", Steps(milestones=(10, 20))),
        ("--schedule cosine --schedule.warmup-epochs 2", "schedule", Cosine(warmup_epochs=2.0)),
        ("--schedule inverse_sqrt", "schedule", InverseSqrt()),
        ("--schedule plateau --data.validation 100", "schedule", Plateau()),
        ("--exchange.lam 0.7", "exchange", Exchange(lam=0.7)),
        ("--exchange.off_epochs 2", "exchange", Exchange(off_epochs=2)),
        ("--exchange.no-features", "exchange.features", False),
        ("--exchange.channel-dim -1", "exchange.channel_dim", -1),
        ("--exchange.layer layer2 --exchange.over in-std", "exchange", Exchange(layer="layer2", over=IN(only="std"))),
        ("--exchange.over=gn4", "exchange.over", GN(4)),
        ("--exchange None", "exchange", None),
        ("--exchange.labels others", "exchange", Exchange(labels="others")),
        ("--mixup.alpha 0.2", "mixup", Mixup(alpha=0.2)),
        ("--cutmix.p 0.5 --cutmix.per sample", "cutmix", CutMix(p=0.5, per="sample")),
        ("--cutout.size 4", "cutout", Cutout(size=4)),
        ("--cutmix None", "cutmix", None),
        ("--label-smoothing-others 0.1", "label_smoothing_others", 0.1),
        ("--model-options.width 32", "model_options", {"width": 32}),
        ("--model_options.use-checkpoint", "model_options", {"use_checkpoint": True}),
        ("--model-options.dropout=0.3 --model-options.act relu", "model_options", {"dropout": 0.3, "act": "relu"}),
        ("--model-options width 32 act relu", "model_options", {"width": 32, "act": "relu"}),
        ("--evaluation.every 5", "evaluation.every", 5),
    ],
)
def test_a_flag_changes_its_field_and_no_other(given, field, value):
    changed = recipe("cifar10.resnet20", *given.split())
    found = changed
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value
    others = {"mean": "augment", "validation": "data"}
    touched = {field.split(".")[0], *(whole for word, whole in others.items() if word in given)}
    plain = find("cifar10.resnet20")
    assert replace(changed, **{name: getattr(plain, name) for name in touched}) == plain


def test_a_recipe_keeps_the_rest_of_its_exchange_and_of_its_model_options():
    assert recipe("cifar100.pyramidnet_200_moex_released_script", "--exchange.p", "1").exchange == Exchange(
        lam=0.5, p=1.0
    )
    assert recipe("cifar10.resnet110_moex", "--exchange", "None").exchange is None
    assert recipe("cifar10.resnet110_moex", "--epochs", "90", "--schedule", "cosine").paper.error == 6.03
    options = {"depth": 14, "in_channels": 1, "width": 16}
    assert recipe("digits", "--model-options.depth", "14").model_options == options
    assert recipe("digits", "--model-options.in_channels", "1").model_options == {**options, "depth": 8}
    warm = recipe("cifar10.resnet20_5k", "--schedule", "cosine").schedule
    assert warm == Cosine(warmup_epochs=5)  # it is one already


def test_a_folder_of_images_needs_no_recipe():
    name, asked = flags.train(
        ["--data.folder", "photos", "--model", "torchvision:resnet18", "--exchange.layer", "layer1"]
    )
    exchange = Exchange(layer="layer1")
    data = Data(name="folder", folder=Path("photos"))
    assert asked.recipe == Recipe(data=data, model="torchvision:resnet18", exchange=exchange)
    assert name == "folder.photos"
    assert recipe("cifar10.resnet20", "--data.folder=photos").data == data
    assert recipe("cifar10.resnet20", "--data.folder", "None").data.name == "cifar10"


def test_what_is_not_the_recipe_is_asked_for_too():
    asked = flags.train(["digits", "--to", "there", "--quiet"])[1]
    assert (asked.to, asked.quiet, asked.json) == (Path("there"), True, False)


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_every_over_has_a_short_name(over):
    assert flags.over(flags.short(over)) == over
    assert recipe("digits", "--exchange.over", flags.short(over)).exchange.over == over


def test_over_is_spelt_as_the_design_says():
    assert flags.over("pono") == PONO()
    assert flags.over("PONO2-mean") == PONO(groups=2, only="mean")


@pytest.mark.parametrize("text", ["gn", "in2", "pono-", "pono-var", "", "ponon", "4", "lrn-mean", "gn0"])
def test_no_other_name_is_an_over(text):
    with pytest.raises(ValueError, match=r"^(exchange\.over is|LRN\(only='mean'\)|groups is 0)"):
        flags.over(text)


def test_a_recipe_of_ones_own_is_named_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from momentex.train.recipe import Recipe\ndef recipe(): return Recipe(epochs=9)")
    assert recipe("mine.py:recipe", "--seed", "3") == Recipe(epochs=9, seed=3)
    assert recipe(f"{tmp_path}/mine.py:recipe").epochs == 9


def test_a_plateau_is_found_out_by_the_recipe_itself():
    with pytest.raises(RecipeError, match=r"set data\.validation"):
        recipe("digits", "--schedule", "plateau", "--data.validation", "none")


def test_a_comparison_has_the_seeds_that_are_usual_for_its_recipe_unless_others_are_asked_for():
    assert compare.parsed(["digits"])[1].seeds == ("20",)
    assert compare.parsed(["digits", "--seeds", "3"])[1].seeds == ("3",)
    assert compare.parsed(["cifar10.resnet20"])[1].seeds == ("5",)


@pytest.mark.parametrize("part", flags.PARTS)
def test_a_part_that_a_recipe_may_lack_is_taken_away_or_touched(part):
    flag, field = f"--{part.replace('_', '-')}", flags.EXAMPLES[part]
    added = recipe("cifar10.resnet20", *f"{flag}.{field}".split())
    assert getattr(recipe("cifar10.resnet20"), part) is None
    assert isinstance(getattr(added, part), flags.PARTS[part])
    with pytest.raises(
        RecipeError, match=rf"^{flag} is 'on'; it is None .* Its fields are flags: {flag}\.{field} adds"
    ):
        recipe("cifar10.resnet20", flag, "on")
    with pytest.raises(RecipeError, match=rf"^{flag} None takes away what {flag}\.p changes: leave one of them out\.$"):
        recipe("cifar10.resnet20", flag, "None", f"{flag}.p", "0.5")


@pytest.mark.parametrize("arguments", ["--mixup.alpha 0", "--cutmix.p 0", "--cutout.size 1"])
def test_what_a_part_refuses_is_said_in_its_words(arguments):
    with pytest.raises(ValueError, match=rf"^{arguments.split()[0][2:]} is "):
        recipe("cifar10.resnet20", *arguments.split())
