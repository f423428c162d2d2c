"""The loop against what it does written by hand; numbers that are not finite; and nothing is changed outside."""

from __future__ import annotations

import math
import random
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentex import MomentExchange, Policy
from momentex.errors import RunError
from momentex.train import checkpoint
from momentex.train.engine import evaluate_run, fit
from momentex.train.images import classification
from momentex.train.place import Place
from momentex.train.recipe import SGD, Adam, Cosine, Exchange, Recipe
from momentex.train.run import Run, prepare, train_step
from tests.compare import assert_same_bits
from tests.train_runs import (
    MODELS,
    Told,
    assert_same_run,
    checkpoints,
    everything,
    fitted,
    last,
    metrics,
    tiny,
    trained,
    weights,
)

HERE = Place(torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def begun(recipe: Recipe) -> Run:
    """A run at its beginning, as `fit` makes it."""
    torch.manual_seed(recipe.seed)
    run = prepare(recipe, classification(recipe, HERE), HERE)
    torch.manual_seed(recipe.seed)
    run.task.model.train()
    return run


def batches(recipe: Recipe, steps: int) -> list[tuple[Tensor, Tensor]]:
    task = classification(recipe, HERE)
    found = [batch for epoch in range(recipe.epochs) for batch in task.batches.epoch(epoch)]
    return [(batch.inputs[0], batch.labels) for batch in found[:steps]]


def stepped(run: Run, steps: int) -> list[float]:
    """The losses of so many steps from the beginning."""
    found = []
    for epoch in range(run.recipe.epochs):
        run.at.epoch = epoch
        for step, batch in enumerate(run.task.batches.epoch(epoch)):
            if len(found) < steps:
                run.at.step = step
                found.append(float(train_step(run, batch)))
    return found


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


# --- a step, by hand -------------------------------------------------------------------------------------------------


def model_of(recipe: Recipe) -> nn.Module:
    torch.manual_seed(recipe.seed)
    return classification(recipe, HERE).model.train()


def test_a_plain_step_is_what_it_is_by_hand() -> None:
    recipe = tiny(optimizer=SGD(lr=0.3, momentum=0.5, weight_decay=0.01))
    run, twin = begun(recipe), model_of(recipe)
    optimizer = torch.optim.SGD(twin.parameters(), 0.3, momentum=0.5, weight_decay=0.01)
    losses = []
    for x, y in batches(recipe, 4):
        optimizer.zero_grad()
        loss = F.cross_entropy(twin(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert stepped(run, 4) == pytest.approx(losses, rel=1e-6)
    assert_same_weights(run.task.model, twin)


def test_a_step_with_exchange_is_what_a_user_writes() -> None:
    recipe = tiny(exchange=Exchange(layer="stage", lam=0.7, p=0.6), label_smoothing=0.2)
    run, twin = begun(recipe), model_of(recipe)
    optimizer = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    moex, losses, on = MomentExchange(twin, "stage", lam=0.7, p=0.6), [], []
    for x, y in batches(recipe, 8):
        with moex(y) as targets:
            loss = targets.loss(F.cross_entropy, twin(x), label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        on.append(moex.plan.on)
    assert len(set(on)) == 2
    assert stepped(run, 8) == pytest.approx(losses, rel=1e-5)
    assert_same_weights(run.task.model, twin)


def test_the_loss_of_labels_alone_is_the_blended_one() -> None:
    recipe = tiny(exchange=Exchange(layer="stage", lam=0.7, p=1.0, features=False), label_smoothing=0.1)
    run, twin = begun(recipe), model_of(recipe)
    x, y = batches(recipe, 1)[0]
    index = Policy(0.7, 1.0).draw(0, 0, len(y)).index
    logits = twin(x)
    log_p = logits.log_softmax(1)
    hard = 0.7 * F.one_hot(y, 10) + 0.3 * F.one_hot(y[index], 10)
    wanted = -((0.9 * hard + 0.1 / 10) * log_p).sum(1).mean()
    assert stepped(run, 1)[0] == pytest.approx(wanted.item(), rel=1e-6)


def test_clipping_is_that_of_torch() -> None:
    recipe = tiny(clip=0.05)
    run, twin = begun(recipe), model_of(recipe)
    optimizer, norms = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), []
    for x, y in batches(recipe, 3):
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(twin.parameters(), 0.05)))
        optimizer.step()
    assert min(norms) > 0.05
    stepped(run, 3)
    assert_same_weights(run.task.model, twin)


@pytest.mark.parametrize("parts", [2, 3, 5, 12])
def test_a_batch_in_parts_is_the_whole_batch(parts: int) -> None:
    whole, cut = begun(tiny()), begun(tiny(accumulate=parts))
    assert stepped(whole, 5) == pytest.approx(stepped(cut, 5), rel=1e-5)  # the last batch has 4 images, fewer than 5
    assert_same_weights(whole.task.model, cut.task.model)


def test_every_part_of_a_batch_draws_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = Policy.draw

    def remember(self: Policy, seed: int, step: int, size: int, **others: Any) -> Any:
        plan = draw(self, seed, step, size, **others)
        drawn.append((step, size, plan.on, plan.index.tolist()))
        return plan

    monkeypatch.setattr(Policy, "draw", remember)
    run = begun(tiny(accumulate=3, exchange=Exchange(layer="stage", p=0.5)))
    drawn.clear()  # of the rehearsal
    stepped(run, 4)
    assert [step for step, *_ in drawn] == list(range(12))
    assert [size for _, size, *_ in drawn] == [4] * 9 + [1, 1, 2]
    assert len({on for _, _, on, _ in drawn}) == 2
    assert len({tuple(index) for _, size, on, index in drawn if on and size == 4}) > 1


# --- average ---------------------------------------------------------------------------------------------------------


def test_the_average_is_the_recursion_written_by_hand() -> None:
    recipe = tiny(model=f"{MODELS}:dropping", exchange=None, ema=0.7)
    run = begun(recipe)
    state, average = run.task.model.state_dict(), {}
    for step, batch in enumerate(run.task.batches.epoch(0)):
        run.at.step = step
        train_step(run, batch)
        for name, value in state.items():
            if value.is_floating_point():
                average[name] = value.clone() if step == 0 else 0.7 * average[name] + (1 - 0.7) * value
    found = run.measured.state_dict()
    assert step == 3
    for name, value in average.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(value, state[name], rtol=1e-4, atol=1e-6), name


def test_the_average_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    recipe = tiny(ema=0.9)
    to = tmp_path / "run"
    best = fitted(recipe, to)["best"]
    plain = trained(tiny(), tmp_path / "plain")
    for name, tensor in weights(plain).items():
        assert_same_bits(weights(to)[name], tensor)
    assert metrics(to)[0]["loss"] == metrics(plain)[0]["loss"]
    assert metrics(to)[0]["nll"] != metrics(plain)[0]["nll"]
    assert evaluate_run(to)["nll"] == metrics(to)[-1]["nll"]
    assert evaluate_run(to, which="best")["nll"] == best["nll"]
    average = {name.removeprefix("average.module."): x for name, x in weights(to, "average").items()}
    kept = checkpoint.read(to / "best.safetensors")
    assert kept.facts["metrics"] == best
    same = [torch.equal(tensor, average[name.removeprefix("model.")]) for name, tensor in kept.tensors.items()]
    assert all(same) == (best["epoch"] == 2)


# --- the last epochs -------------------------------------------------------------------------------------------------


def test_the_last_epochs_are_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny(epochs=3, exchange=Exchange(layer="stage", p=1.0, off_epochs=2))
    told = Told()
    fitted(recipe, tmp_path / "run", told)
    assert [row["exchanged_steps"] for row in _times(tmp_path / "run")] == [1.0, 0.0, 0.0]
    # By hand: the first epoch with exchange, and two without.
    run = begun(recipe)
    stepped(run, 4)
    plain = replace(recipe, exchange=None)
    optimizer = run.optimizer
    for x, y in batches(plain, 12)[4:]:
        optimizer.zero_grad()
        F.cross_entropy(run.task.model(x), y).backward()
        optimizer.step()
    assert torch.equal(run.task.model.stem.weight, last(tmp_path / "run").tensors["model.stem.weight"])


def test_labels_too_are_plain_in_the_last_epochs(tmp_path: Path) -> None:
    recipe = tiny(exchange=Exchange(layer="stage", p=1.0, lam=0.5, off_epochs=1, features=False))
    after = begun(recipe)
    stepped(after, 4)
    x, y = batches(recipe, 5)[4]
    assert stepped(begun(recipe), 5)[4] == pytest.approx(F.cross_entropy(after.task.model(x), y).item(), rel=1e-6)


def _times(run: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (run / "times.jsonl").read_text().splitlines()]


# --- numbers that are not finite -------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    recipe = tiny(optimizer=SGD(lr=1e20, momentum=0.0), checkpoint_steps=1, exchange=Exchange(layer="stage", p=1.0))
    told = Told()
    with pytest.raises(RunError) as caught:
        fitted(recipe, tmp_path / "run", told)
    text = str(caught.value)
    step = len(told.losses) + 1
    assert re.match(rf"the (losses from step {step}|weights \S+ after step {step}) of epoch 1 ", text)
    assert "at a learning rate of 1e+20 (steps 2, exchanged_steps 1" in text
    assert "The last checkpoint is of before. Lower optimizer.lr, set clip, or train in float32." in text
    newest = last(tmp_path / "run")
    assert newest.facts["at"]["step"] == step - 1
    assert all(x.isfinite().all() for name, x in newest.tensors.items() if name.startswith("model."))
    assert told.closed == 1
    with pytest.raises(RunError, match="are not finite"):
        fitted(recipe, tmp_path / "run")


def test_the_step_of_a_loss_that_is_not_finite_is_named_although_losses_are_looked_at_in_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from momentex.train import engine

    run = begun(tiny())
    losses = engine.Losses(run)
    losses._every = 3
    assert losses.add(torch.tensor(1.0), 2) is None
    assert losses.add(torch.tensor(2.0), 3) is None
    assert losses.add(torch.tensor(4.0), 1) == 4.0
    assert (run.at.loss, run.at.images, run.at.step) == (12.0, 6, 3)
    losses.add(torch.tensor(1.0), 1)
    losses.add(torch.tensor(math.nan), 1)
    with pytest.raises(RunError, match=r"the losses from step 5 of epoch 1 on \(nan\) are not finite"):
        losses.look()


def test_weights_that_are_not_finite_get_no_checkpoint(tmp_path: Path) -> None:
    recipe = tiny(model=f"{MODELS}:overflowing", epochs=1, batch_size=40)
    told = Told()
    with pytest.raises(RunError, match=r"the outputs after epoch 1 \(NLL nan\) are not finite"):
        fitted(recipe, tmp_path / "run", told)
    assert told.losses[0] == pytest.approx(2.3, abs=0.3)
    with pytest.raises(RunError, match=r"the weights head\.weight after step 1 of epoch 1 are not finite"):
        fitted(replace(recipe, epochs=2, batch_size=20, checkpoint_steps=1), tmp_path / "other")
    for run in ("run", "other"):
        assert [int(path.stem) for path in checkpoints(tmp_path / run)] == [0]


def test_steps_that_the_scaler_of_float16_leaves_out_are_no_reason_to_stop(tmp_path: Path) -> None:
    recipe = tiny(precision="float16", epochs=3)
    to = trained(recipe, tmp_path / "run")
    assert metrics(to)[-1]["loss"] < metrics(to)[0]["loss"] < 3
    # A scale at which gradients overflow: steps are left out until it has come down.
    run = begun(recipe)
    run.scaler._init_scale = 2.0**40
    before = run.task.model.head.weight.clone()
    losses = stepped(run, 1)
    assert math.isfinite(losses[0])
    assert torch.equal(run.task.model.head.weight, before)
    assert run.scaler.get_scale() == 2.0**39
    stepped(run, 12)


def test_float16_whose_gradients_are_never_finite_ends_with_an_error(tmp_path: Path) -> None:
    recipe = tiny(model=f"{MODELS}:overflowing", precision="float16", epochs=40)
    with pytest.raises(RunError, match=r"the gradients up to step \d+ of epoch \d+ are not finite"):
        fitted(recipe, tmp_path / "run")


def test_float16_goes_on_with_its_scale(tmp_path: Path) -> None:
    recipe = tiny(precision="float16", checkpoint_steps=1)
    whole = trained(recipe, tmp_path / "whole")

    def at(step: int) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, tmp_path / "run", Told(at))
    assert last(tmp_path / "run").facts["scaler"]["dict"][0][0] == "scale"
    fitted(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


# --- kinds of models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model": f"{MODELS}:tied"},
        {"model": f"{MODELS}:remembering"},
        {"model": f"{MODELS}:frozen"},
        {"model": f"{MODELS}:dropping", "precision": "bfloat16", "channels_last": True},
        {"optimizer": Adam(lr=0.01, decoupled=True), "ema": 0.5},
    ],
    ids=str,
)
def test_every_kind_of_model_goes_on_from_a_checkpoint(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = tiny(**changes)
    whole = trained(recipe, tmp_path / "whole")

    def at(step: int) -> None:
        if step == 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, tmp_path / "run", Told(at))
    fitted(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert evaluate_run(whole)["nll"] == metrics(whole)[-1]["nll"]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    kept = weights(trained(tiny(model=f"{MODELS}:tied"), tmp_path / "run"))
    assert_same_bits(kept["model.head.weight"], kept["model.again.weight"])


def test_extra_state_that_a_checkpoint_cannot_hold_is_found_before_training(tmp_path: Path) -> None:
    recipe = tiny(model=f"{MODELS}:remembering", model_options={"kind": "bytes"})
    told = Told()
    with pytest.raises(RunError, match=r"model\._extra_state is a bytes, which a checkpoint cannot hold"):
        fitted(recipe, tmp_path / "run", told)
    assert told.losses == []


def test_frozen_statistics_stay_frozen(tmp_path: Path) -> None:
    kept = weights(trained(tiny(model=f"{MODELS}:frozen"), tmp_path / "run"))
    assert all(int(x) == 0 for name, x in kept.items() if "num_batches" in name)


# --- outside ---------------------------------------------------------------------------------------------------------


def test_nothing_is_changed_outside(tmp_path: Path) -> None:
    torch.manual_seed(123)
    random.seed(1)
    np.random.seed(2)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.is_grad_enabled())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    fitted(everything(epochs=2), tmp_path / "run")
    evaluate_run(tmp_path / "run")
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.is_grad_enabled())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_what_happens_outside_changes_nothing(tmp_path: Path) -> None:
    one = trained(everything(), tmp_path / "one")
    torch.manual_seed(99)
    torch.rand(7)
    assert_same_run(trained(everything(), tmp_path / "two"), one)


def test_an_error_inside_leaves_torchs_random_state_as_it_was(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    with pytest.raises(RunError):
        fitted(tiny(optimizer=SGD(lr=1e20)), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(fit, tiny(), tmp_path / "run", reporter=Told()).result()
    assert found["last"]["epoch"] == 2


# --- what is returned and written ------------------------------------------------------------------------------------


def test_the_metrics_of_the_last_and_of_the_best_epoch_are_returned(tmp_path: Path) -> None:
    recipe = tiny(epochs=6, optimizer=SGD(lr=0.4), evaluation=replace(tiny().evaluation, every=2))
    told = Told()
    found = fitted(recipe, tmp_path / "run", told)
    rows = metrics(tmp_path / "run")
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert ["error" in row for row in rows] == [False, True, False, True, False, True]
    assert found["last"] == rows[-1]
    assert found["best"] == min((row for row in rows if "error" in row), key=lambda row: (row["error"], row["epoch"]))
    assert [{k: v for k, v in row.items() if k in rows[0]} for row in told.rows] == [
        {k: v for k, v in row.items() if k in rows[0]} for row in rows
    ]


def test_the_rate_of_an_epoch_is_that_of_its_last_step(tmp_path: Path) -> None:
    rows = metrics(trained(tiny(epochs=4, schedule=Cosine(warmup_epochs=1, final_lr=0.01)), tmp_path / "run"))
    assert rows[0]["lr"] == pytest.approx(0.05)
    assert rows[-1]["lr"] == pytest.approx(0.01)


def test_the_loss_of_an_epoch_is_the_mean_over_its_images(tmp_path: Path) -> None:
    told = Told()
    fitted(tiny(), tmp_path / "run", told)
    sizes = [12, 12, 12, 4]
    wanted = sum(n * loss for n, loss in zip(sizes, told.losses[:4], strict=True)) / 40
    assert metrics(tmp_path / "run")[0]["loss"] == pytest.approx(wanted, rel=1e-12)


def test_best_weights_that_were_lost_with_the_crash_are_written_again(tmp_path: Path) -> None:
    whole = trained(tiny(), tmp_path / "whole")
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("best.safetensors", "metrics.jsonl"):
        (run / name).unlink()
    fitted(tiny(), run)
    assert_same_run(run, whole)


def test_evaluating_what_is_no_run_or_has_nothing_yet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is no run directory: it has no recipe\.json"):
        evaluate_run(tmp_path / "nothing")
    run = trained(tiny(), tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        evaluate_run(run)
    (run / "best.safetensors").unlink()
    with pytest.raises(RunError, match=r"best\.safetensors cannot be read: FileNotFoundError"):
        evaluate_run(run, which="best")
