"""What is measured, against numpy and scikit-learn; which images are trained on, and which are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor, nn

from momentex.data import digits
from momentex.errors import DataError, RecipeError
from momentex.evaluate.calibration import calibration_error
from momentex.train.engine import evaluate_run, evaluated
from momentex.train.images import IMAGENET, chosen, classification, classification_metrics, data_root, normalization
from momentex.train.place import Place
from momentex.train.recipe import Augment, Data, Evaluation
from tests.train_runs import MODELS, fitted, metrics, tiny, trained

HERE = Place(torch.device("cpu"))


# --- metrics ---------------------------------------------------------------------------------------------------------


def some(classes: int, count: int = 103) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    return torch.randn(count, classes, generator=generator) * 3, torch.arange(count) % classes


@pytest.mark.parametrize("batch_size", [1, 10, 25, 103, 500])
def test_errors_and_likelihood_are_those_of_scikit_learn(batch_size: int) -> None:
    logits, labels = some(classes=12)
    found = classification_metrics(nn.Identity(), zip(logits.split(batch_size), labels.split(batch_size), strict=True))
    probabilities = logits.double().softmax(1).numpy()
    assert found.keys() == {"error", "nll", "error_top5", "calibration"}
    assert found["error"] == pytest.approx(100 * (1 - np.mean(logits.argmax(1).numpy() == labels.numpy())))
    assert found["error_top5"] == pytest.approx(100 * (1 - top_k_accuracy_score(labels.numpy(), probabilities, k=5)))
    assert found["nll"] == pytest.approx(log_loss(labels.numpy(), probabilities), rel=1e-6)
    assert found["calibration"] == pytest.approx(calibration_error(logits.softmax(1), labels), rel=1e-6)


@pytest.mark.parametrize(("classes", "has_top5"), [(2, False), (5, False), (6, True)])
def test_of_five_classes_or_fewer_the_top_five_say_nothing(classes: int, has_top5: bool) -> None:
    found = classification_metrics(nn.Identity(), [some(classes)])
    assert ("error_top5" in found) == has_top5


def test_a_short_last_batch_counts_by_its_images() -> None:
    logits = torch.tensor([[5.0, 0.0]] * 3 + [[0.0, 5.0]])
    found = classification_metrics(
        nn.Identity(), [(logits[:3], torch.zeros(3).long()), (logits[3:], torch.tensor([0]))]
    )
    assert found["error"] == pytest.approx(25.0)


def test_processes_add_what_they_have_counted() -> None:
    """Two halves, one after the other, as two processes see them; one of them may have nothing."""
    logits, labels = some(classes=7)
    parts: list[list[float]] = []
    halves = [(logits[:40], labels[:40]), (logits[40:], labels[40:])]
    for half in [[halves[0]], [halves[1]], []]:
        with np.errstate(all="ignore"):
            classification_metrics(nn.Identity(), half, lambda sums: (parts.append(sums), [1.0] * len(sums))[1])
    total = [sum(column) for column in zip(*parts, strict=True)]
    found = classification_metrics(nn.Identity(), [halves[0]], lambda sums: total)
    assert found == pytest.approx(classification_metrics(nn.Identity(), [(logits, labels)]))


def test_half_precision_logits_are_measured_in_float32() -> None:
    logits, labels = some(classes=6)
    halves = logits.bfloat16()
    assert classification_metrics(nn.Identity(), [(halves, labels)]) == pytest.approx(
        classification_metrics(nn.Identity(), [(halves.float(), labels)])
    )


def test_what_a_run_writes_is_what_its_weights_give_by_hand(tmp_path: Path) -> None:
    recipe = tiny(evaluation=Evaluation(batch_size=100, clean_train=True), epochs=1)
    row = metrics(trained(recipe, tmp_path / "run"))[0]
    torch.manual_seed(0)
    task = classification(recipe, HERE)
    model = task.model
    from momentex.train import checkpoint
    from momentex.train.savepoint import load

    load(model, checkpoint.read(tmp_path / "run" / "best.safetensors"), "model")
    train, test, split = chosen(recipe.data, recipe.seed)
    assert (split, row["split"]) == ("test", "test")
    for name, arrays in (("error", test), ("train_error", train)):
        x = (arrays.images.double() / 255 - 0.3056) / 0.3762
        with torch.no_grad():
            wrong = model.eval()(x.float()).argmax(1) != arrays.labels
        assert row[name] == pytest.approx(100 * wrong.double().mean().item())
    measured = ("error", "nll", "error_top5", "calibration", "train_error")
    assert evaluate_run(tmp_path / "run") == {k: row[k] for k in measured}


def test_clean_training_images_are_measured_only_when_asked_for(tmp_path: Path) -> None:
    assert "train_error" not in metrics(trained(tiny(epochs=1), tmp_path / "run"))[0]


def test_measuring_leaves_every_module_in_the_mode_in_which_it_was() -> None:
    task = classification(tiny(model=f"{MODELS}:dropping"), HERE)
    model = task.model.train()
    model.resnet.bn1.eval()
    before = {name: module.training for name, module in model.named_modules()}
    evaluated(model, task)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert len(set(before.values())) == 2


# --- images ----------------------------------------------------------------------------------------------------------


def rows(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_images_that_are_held_out_are_not_trained_on_and_are_what_is_measured() -> None:
    recipe = tiny(data=Data(name="digits", train_size=300, validation=200))
    train, held, split = chosen(recipe.data, 0)
    all_training = rows(digits.load().train.images)
    assert split == "validation"
    assert (len(train.images), len(held.images)) == (300, 200)
    assert not rows(train.images) & rows(held.images)
    assert rows(train.images) | rows(held.images) <= all_training
    task = classification(recipe, HERE)
    seen = torch.cat([batch.labels for batch in task.batches.epoch(0)])
    assert sorted(seen.tolist()) == sorted(train.labels.tolist())
    assert task.split == "validation"
    assert task.facts["validation"].startswith("200 images, ")


def test_all_seeds_hold_the_same_images_out_and_train_on_subsets_of_their_own() -> None:
    one, other = (chosen(Data(name="digits", train_size=300, validation=200), seed) for seed in (0, 1))
    assert torch.equal(one[1].images, other[1].images)
    assert not torch.equal(one[0].images, other[0].images)


def test_subset_and_validation_have_as_many_of_every_class() -> None:
    train, held, _ = chosen(Data(name="digits", train_size=305, validation=200), 3)
    assert held.labels.bincount().tolist() == [20] * 10
    assert sorted(train.labels.bincount().tolist()) == [30] * 5 + [31] * 5


def test_the_split_that_was_measured_is_written(tmp_path: Path) -> None:
    recipe = tiny(data=Data(name="digits", train_size=40, validation=30), epochs=1)
    assert metrics(trained(recipe, tmp_path / "run"))[0]["split"] == "validation"


def test_the_sizes_of_batches_are_those_of_the_batches() -> None:
    batches = classification(tiny(batch_size=7), HERE).batches
    assert batches.sizes == [7, 7, 7, 7, 7, 5]
    assert [len(batch.labels) for batch in batches.epoch(0)] == batches.sizes
    assert [batch.labels.tolist() for batch in batches.epoch(3, 4)] == [
        batch.labels.tolist() for batch in list(batches.epoch(3))[4:]
    ]


def test_a_recipe_may_say_how_to_normalize() -> None:
    assert normalization(Augment(mean=(0.5,), std=(0.25,)), Data(name="digits")).std == (0.25,)
    assert normalization(Augment(), Data(name="folder", folder=Path("x"))) == IMAGENET


def test_what_says_where_data_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMENTEX_DATA", "/there")
    assert data_root(Data()) == Path("/there")
    assert data_root(Data(root=Path("~/here"))) == Path.home() / "here"
    monkeypatch.delenv("MOMENTEX_DATA")
    with pytest.raises(
        DataError, match=r"where cifar10 lies was not said: give --data\.root DIR, or set MOMENTEX_DATA"
    ):
        data_root(Data())


# --- what cannot be, before training ---------------------------------------------------------------------------------


def folder(root: Path, size: tuple[int, int] = (12, 10), each: int = 6) -> Path:
    from PIL import Image

    draw = np.random.default_rng(0)
    for name in ("cat", "dog", "ü fox"):
        (root / name).mkdir(parents=True)
        for i in range(each):
            Image.fromarray(draw.integers(0, 255, (*size, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_an_image_folder_is_trained_on(tmp_path: Path) -> None:
    recipe = tiny(
        data=Data(name="folder", folder=folder(tmp_path / "with spaces"), size=8),
        model_options={"channels": 3},
        batch_size=5,
    )
    rows = metrics(trained(recipe, tmp_path / "run"))
    assert len(rows) == 2
    assert "error_top5" not in rows[0]
    assert classification(recipe, HERE).facts["classes"] == ["cat", "dog", "ü fox"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": Data(name="digits", train_size=5)}, "balanced subset of 5 was asked for"),
    ({"data": Data(name="digits", train_size=900)}, "balanced subset of 900 was asked for; there are 899 samples"),
    ({"data": Data(name="digits", validation=899)}, "of 899 needs of each of 10 classes 89, and 9 of them 90"),
    ({"data": Data(name="folder", folder=Path("/nowhere"))}, "/nowhere is no folder"),
    ({"data": Data(name="cifar10", root=Path("/nowhere"))}, "/nowhere"),
    ({"batch_size": 41}, "batch_size is 41, and there are 40 images; it must be 40 or less"),
    ({"augment": Augment(mean=(0.1,) * 3, std=(1.0,) * 3)}, "mean and std have 3 numbers, and the images have 1 chan"),
    ({"model": "cifar:resnet21"}, "cifar has no classifier 'resnet21'. Did you mean 'resnet20'"),
    ({"model": f"{MODELS}:smal"}, "has no function 'smal'. Did you mean 'small'"),
    ({"model_options": {"chanels": 1}}, "takes no argument 'chanels'. Did you mean 'channels'"),
    ({"model_options": {"num_classes": 10}}, "model_options has num_classes, which the recipe decides"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_wrong_with_data_or_model_is_an_error_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        fitted(tiny(**changes), tmp_path / "run")
    assert type(caught.value).__module__ == "momentex.errors"
    assert not (tmp_path / "run").exists()


def test_a_folder_that_was_not_named_is_an_error() -> None:
    with pytest.raises(RecipeError, match="a folder of images needs both"):
        Data(name="folder")
