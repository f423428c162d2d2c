"""Learning rates against closed formulas, at every step and wherever they are saved; optimizers against torch's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momentex.train.checkpoint import Snapshot, join, split
from momentex.train.optimization import LearningRate, make_optimizer
from momentex.train.recipe import SGD, Adam, Constant, Cosine, InverseSqrt, Plateau, Schedule, Steps
from tests.train_models import small

LR = 0.4
EPOCHS, STEPS = 6, 5
TOTAL = EPOCHS * STEPS

Formula = Callable[[int], float]


def rising(warmup: int, then: Formula) -> Formula:
    """(i + 1) / warmup of the rate in the first `warmup` steps."""
    return lambda i: LR * (i + 1) / warmup if i < warmup else then(i)


def falling(warmup: int = 0, final: float = 0.0) -> Formula:
    """Half a cosine from the first step after the warm-up to the last step of all."""
    return lambda i: final + (LR - final) * (1 + math.cos(math.pi * (i - warmup) / (TOTAL - warmup - 1))) / 2


def stairs(*milestones: int, gamma: float = 0.1) -> Formula:
    return lambda i: LR * gamma ** sum(i >= m * STEPS for m in milestones)


SCHEDULES: list[tuple[Schedule, Formula]] = [
    (Constant(), lambda i: LR),
    (Constant(warmup_epochs=2), rising(10, lambda i: LR)),
    (Constant(warmup_epochs=0.6), rising(3, lambda i: LR)),
    (Constant(warmup_epochs=0.2), lambda i: LR),  # one step: nothing to rise over
    (Steps(), lambda i: LR),
    (Steps(milestones=(2, 3, 5)), stairs(2, 3, 5)),
    (Steps(milestones=(1, 4), gamma=0.5), stairs(1, 4, gamma=0.5)),
    (Steps(milestones=(3,), warmup_epochs=2), rising(10, stairs(3))),
    (Steps(milestones=(2, 4), warmup_epochs=2), rising(10, stairs(2, 4))),
    (Steps(milestones=(2,), warmup_epochs=0.2), stairs(2)),
    (Cosine(), falling()),
    (Cosine(final_lr=0.01), falling(final=0.01)),
    (Cosine(warmup_epochs=1), rising(5, falling(5))),
    (Cosine(warmup_epochs=2.5, final_lr=0.1), rising(12, falling(12, 0.1))),
    (Cosine(warmup_epochs=0.2), falling()),
    (InverseSqrt(warmup_steps=7), lambda i: LR * min((i + 1) / 7, math.sqrt(7 / (i + 1)))),
    (InverseSqrt(warmup_steps=1), lambda i: LR / math.sqrt(i + 1)),
    (InverseSqrt(warmup_steps=100), lambda i: LR * (i + 1) / 100),
]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)


def rates(schedule: Schedule, nll: Callable[[int], float] = lambda epoch: 1.0, saved_at: set[int] = frozenset()):
    """The rate of every step; at some, everything is saved, and goes on in new objects."""
    made = optimizer()
    rate = LearningRate(made, schedule, epochs=EPOCHS, steps=STEPS)
    found = []
    for i in range(TOTAL):
        if i in saved_at:
            made, rate = renewed(made, rate, schedule)
        found.append(rate.now)
        made.step()
        assert rate.after_step() == rate.now
        if (i + 1) % STEPS == 0:
            rate.after_evaluation(nll(i // STEPS))
    return found


def renewed(made: torch.optim.Optimizer, rate: LearningRate, schedule: Schedule):
    """What a run does that goes on, with everything on the way through JSON."""
    states = [split(made.state_dict(), "it"), split(rate.state_dict(), "it")]
    states = [Snapshot(state.tensors, json.loads(json.dumps(state.facts))) for state in states]
    new = optimizer()
    new_rate = LearningRate(new, schedule, epochs=EPOCHS, steps=STEPS)
    new.load_state_dict(join(states[0], "it"))
    new_rate.load_state_dict(join(states[1], "it"))
    return new, new_rate


@pytest.mark.parametrize(("schedule", "formula"), SCHEDULES, ids=[str(schedule) for schedule, _ in SCHEDULES])
def test_every_rate_is_that_of_the_formula(schedule: Schedule, formula: Formula) -> None:
    assert rates(schedule) == pytest.approx([formula(i) for i in range(TOTAL)], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in SCHEDULES], ids=str)
def test_saving_at_every_step_changes_no_bit(schedule: Schedule) -> None:
    assert rates(schedule, saved_at=set(range(TOTAL))) == rates(schedule)


@given(st.sampled_from([schedule for schedule, _ in SCHEDULES]), st.sets(st.integers(0, TOTAL - 1), max_size=3))
def test_saving_at_any_steps_changes_no_bit(schedule: Schedule, saved_at: set[int]) -> None:
    assert rates(schedule, saved_at=saved_at) == rates(schedule)


def test_the_last_step_of_a_cosine_is_taken_at_the_final_rate() -> None:
    assert rates(Cosine(final_lr=0.01))[-1] == pytest.approx(0.01, rel=1e-12)
    assert rates(Cosine())[-1] == pytest.approx(0.0, abs=1e-15)


def plateaus(nll: Callable[[int], float], patience: int, gamma: float, judged_from: int = 0) -> list[float]:
    """By hand: after more than `patience` epochs in a row without a new minimum (by 0.01 %), the rate falls."""
    rate, best, bad, found = 1.0, math.inf, 0, []
    for epoch in range(EPOCHS):
        found += [rate] * STEPS
        if epoch < judged_from:
            continue
        bad = 0 if nll(epoch) < best * (1 - 1e-4) else bad + 1
        best = min(best, nll(epoch)) if bad == 0 else best
        if bad > patience:
            rate, bad = rate * gamma, 0
    return found


@pytest.mark.parametrize("patience", [0, 1, 2])
@pytest.mark.parametrize(
    "nll", [lambda e: 1.0, lambda e: 1 / (e + 1), lambda e: float(e), lambda e: [3, 2, 2, 2, 1, 1][e]]
)
def test_a_plateau_lowers_the_rate_and_saving_changes_no_bit(nll: Callable[[int], float], patience: int) -> None:
    schedule = Plateau(patience=patience, gamma=0.5)
    assert rates(schedule, nll) == pytest.approx([LR * r for r in plateaus(nll, patience, 0.5)])
    assert rates(schedule, nll, saved_at=set(range(TOTAL))) == rates(schedule, nll)


def test_a_plateau_is_not_looked_for_while_the_rate_rises() -> None:
    schedule = Plateau(patience=0, gamma=0.5, warmup_epochs=2)
    by_hand = plateaus(lambda e: float(e), 0, 0.5, judged_from=1)  # the evaluation at whose end the rate has risen
    wanted = [LR * min(1, (i + 1) / 10) * r for i, r in enumerate(by_hand)]
    assert rates(schedule, lambda e: float(e)) == pytest.approx(wanted)
    assert rates(schedule, lambda e: float(e), saved_at=set(range(TOTAL))) == rates(schedule, lambda e: float(e))
    assert wanted[-1] == pytest.approx(LR * 0.5**3)


def test_first_steps_that_a_scaler_leaves_out_raise_no_warning() -> None:
    made = optimizer()
    rate = LearningRate(made, Cosine(), epochs=1, steps=3)
    rate.after_step()  # warnings are errors
    rate.after_step()
    assert rate.now == pytest.approx(0.0)


# --- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "twin"),
    [
        (SGD(lr=0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4)),
        (
            SGD(lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
        ),
        (SGD(momentum=0.0), lambda p: torch.optim.SGD(p, 0.1, weight_decay=1e-4)),
        (Adam(lr=0.01), lambda p: torch.optim.Adam(p, 0.01)),
        (
            Adam(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
        ),
        (
            Adam(lr=0.01, weight_decay=0.1, decoupled=True),
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        ),
    ],
    ids=str,
)
def test_an_optimizer_takes_the_steps_of_torchs(asked, twin) -> None:
    models = []
    for make in (lambda m: make_optimizer(m, asked), lambda m: twin(m.parameters())):
        torch.manual_seed(0)
        model = small(10)
        made = make(model)
        for _ in range(3):
            made.zero_grad()
            model(torch.ones(2, 1, 8, 8)).square().sum().backward()
            made.step()
        models.append(model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_parameters_that_do_not_learn_are_left_out() -> None:
    model = small(10)
    model.stem.requires_grad_(False)
    made = make_optimizer(model, SGD())
    assert len(made.param_groups[0]["params"]) == len(list(model.parameters())) - 2
