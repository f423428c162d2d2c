"""What does not fit together is found before a run begins, and the rehearsal leaves no trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from momentex.errors import GroupError, LayerDidNotFire, LayerNotFound, MomentexError, RecipeError
from momentex.over import IN
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import Data, Exchange
from momentex.train.rehearsal import rehearse
from momentex.train.run import prepare
from tests.compare import assert_same_bits
from tests.train_runs import MODELS, fitted, tiny

HERE = Place(torch.device("cpu"))


def three_classes(root: Path) -> dict[str, Any]:
    """A folder of images."""
    from PIL import Image

    for number, name in enumerate(["cat", "dog", "fox"]):
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (8, 8), (40 * i, 80 * number, 0)).save(root / name / f"{i}.png")
    return {"data": Data(name="folder", folder=root, size=8), "batch_size": 5}


REFUSED: list[tuple[dict[str, Any], type[MomentexError], str]] = [
    (
        {"model": f"{MODELS}:dictionary"},
        RecipeError,
        r"returns a dict in train mode; it must return logits, a tensor (",
    ),
    (
        {"exchange": Exchange(layer="stagee")},
        LayerNotFound,
        "'stagee'",
    ),
    ({"exchange": Exchange()}, RecipeError, "exchange.layer is not given, and nobody has recorded a first stage"),
    ({"exchange": Exchange(layer="head", over=IN())}, GroupError, "IN"),
    ({"model": f"{MODELS}:unused", "exchange": Exchange(layer="spare")}, LayerDidNotFire, "spare"),
    ({"exchange": Exchange(layer="stage"), "accumulate": 12}, RecipeError, "each of a single image: nobody would have"),
    (
        {"model": f"{MODELS}:normed", "batch_size": 13},
        RecipeError,
        "the smallest part of a batch is a single image (40 images in batches of 13), and",
    ),
    ({"model_options": {"channels": 3}}, RecipeError, "could not take a batch of the data, (2, 1, 8, 8): RuntimeError"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_does_not_fit_is_an_error_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], kind: type[MomentexError], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        fitted(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_number_of_classes_than_the_data_have_is_refused_with_both(tmp_path: Path) -> None:
    changes = three_classes(tmp_path / "images")
    recipe = tiny(model=f"{MODELS}:always_ten", model_options={"channels": 3}, **changes)
    with pytest.raises(RecipeError, match="returns 10 logits for an image, and the data has 3 classes"):
        fitted(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("exchange", [None, Exchange(layer="resnet.bn1", p=1.0)], ids=["plain", "moex"])
def test_a_rehearsal_leaves_no_trace(exchange: Exchange | None) -> None:
    recipe = tiny(model=f"{MODELS}:dropping", exchange=exchange)
    task = classification(recipe, HERE)
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in task.model.modules()]
    state = torch.get_rng_state()
    rehearse(recipe, task, HERE)
    for name, tensor in task.model.state_dict().items():
        assert_same_bits(tensor, before[name])
    assert all(p.grad is None for p in task.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in task.model.modules()]


def test_an_error_in_a_rehearsal_leaves_the_model_as_it_was() -> None:
    recipe = tiny(model=f"{MODELS}:dropping", exchange=Exchange(layer="resnet.bn11"))
    task = classification(recipe, HERE)
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    with pytest.raises(LayerNotFound):
        prepare(recipe, task, HERE)
    for name, tensor in task.model.state_dict().items():
        assert_same_bits(tensor, before[name])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.model.modules())
