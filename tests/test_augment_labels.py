"""Targets through input space and Moment Exchange: smoothing in both forms, compositions against the authors' loss."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentex import CutMix, LabelInterpolation, Mixup, MomentExchange, Policy, Targets, smooth_labels
from momentex.errors import OutOfRange, TargetError
from tests import reference
from tests.compare import assert_close

SIZE, CLASSES = 6, 4
GENERATOR = torch.Generator().manual_seed(0)
Y = torch.tensor([0, 1, 2, 3, 1, 0])
LOGITS = torch.randn(SIZE, CLASSES, generator=GENERATOR, dtype=torch.float64)
OF_CLASSES = -LOGITS.log_softmax(1)  # ℓ of every class
SOFT = torch.rand(SIZE, CLASSES, generator=GENERATOR).softmax(1)
PER_SAMPLE = torch.tensor([0.0, 0.1, 0.5, 0.75, 0.2, 0.3])


# --- smoothing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.95, 0.9, 0.5])
def test_smoothing_over_the_others_is_the_formula_of_the_ablation(lam: float) -> None:
    targets = smooth_labels(Y, 1 - lam, num_classes=CLASSES, over="others")
    wanted = reference.smoothed_over_others(OF_CLASSES, Y, lam)
    assert_close(targets.cross_entropy(LOGITS, reduction="none"), wanted, torch.float32)
    assert_close(targets.loss(partial(F.cross_entropy, reduction="none"), LOGITS), wanted, torch.float32)


@pytest.mark.parametrize("smoothing", [0.1, 0.5, 1.0])
def test_smoothing_over_all_is_torchs(smoothing: float) -> None:
    targets = smooth_labels(Y, smoothing, num_classes=CLASSES)
    wanted = F.cross_entropy(LOGITS, Y, label_smoothing=smoothing, reduction="none")
    assert_close(targets.cross_entropy(LOGITS, reduction="none"), wanted, torch.float32)


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("labels", [Y, SOFT], ids=["indices", "soft rows"])
def test_smoothing_and_mixing_can_be_done_in_either_order(over, labels) -> None:
    index = torch.tensor([1, 0, 3, 2, 5, 5])
    smooth = partial(smooth_labels, smoothing=0.2, num_classes=CLASSES, over=over)
    one = smooth(Targets(labels).mixed_with(index, 0.7))
    other = smooth(labels).mixed_with(index, 0.7)
    assert_close(one.probabilities(CLASSES), other.probabilities(CLASSES))
    assert_close(one.probabilities(CLASSES).sum(1), torch.ones(SIZE))


def test_smoothing_may_differ_from_sample_to_sample() -> None:
    rows = smooth_labels(Y, PER_SAMPLE, num_classes=CLASSES, over="others").probabilities(CLASSES)
    for i, own in enumerate(Y.tolist()):
        wanted = torch.full((CLASSES,), float(PER_SAMPLE[i]) / (CLASSES - 1))
        wanted[own] = 1 - PER_SAMPLE[i]
        assert_close(rows[i], wanted)


def test_a_smoothed_label_counts_as_chance_in_the_accuracy() -> None:
    targets = smooth_labels(Y, 0.5, num_classes=CLASSES)
    right = F.one_hot(Y, CLASSES).double()
    assert float(targets.accuracy(right)) == pytest.approx(0.5 + 0.5 / CLASSES)
    assert float(targets.accuracy(-right)) == pytest.approx(0.5 / CLASSES)
    assert float(targets.accuracy(right, top=2)) == pytest.approx(0.5 + 0.5 * 2 / CLASSES)


def test_dense_maps_of_labels_are_smoothed() -> None:
    maps = torch.randint(CLASSES, (2, 3, 5), generator=GENERATOR)
    logits = torch.randn(2, CLASSES, 3, 5, generator=GENERATOR)
    targets = smooth_labels(maps, 0.1, num_classes=CLASSES)
    assert_close(targets.cross_entropy(logits), F.cross_entropy(logits, maps, label_smoothing=0.1))


@pytest.mark.parametrize(
    ("labels", "smoothing", "over", "error", "message"),
    [
        (Y, 0, "all", OutOfRange, r"^smoothing is 0: nothing would be smoothed\."),
        (Y, 1.2, "all", OutOfRange, r"^smoothing is 1\.2; it must be a number between 0 and 1\."),
        (Y, 0.8, "others", OutOfRange, r"^smoothing is 0\.8 over the others of 4 classes: above 0\.75, the own class"),
        (
            Y,
            PER_SAMPLE[:2],
            "all",
            ValueError,
            r"^smoothing is torch\.float32 \(2,\); it must be a number or floats of",
        ),
        (Y, 0.1, "other", TargetError, r"^over is 'other'; it is 'all' .* Did you mean 'others'\?$"),
        (
            Y.double(),
            0.1,
            "all",
            TargetError,
            r"^labels are torch\.float64 \(6,\): smoothing over 4 classes needs class i",
        ),
        (SOFT[:, :3], 0.1, "all", TargetError, r"^labels are torch\.float32 \(6, 3\): smoothing over 4 classes needs"),
    ],
)
def test_smoothing_that_cannot_be_says_why(labels, smoothing, over, error, message: str) -> None:
    with pytest.raises(error, match=message):
        smooth_labels(labels, smoothing, num_classes=CLASSES, over=over)


def test_one_class_cannot_be_smoothed() -> None:
    with pytest.raises(TargetError, match=r"^num_classes is 1; labels are smoothed over two classes or more\.$"):
        smooth_labels(Y, 0.1, num_classes=1)


# --- with Moment Exchange --------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)
    ).double()


X = torch.randn(SIZE, 3, 8, 8, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("step", range(4))
def test_with_one_shared_index_cutmix_and_moex_are_the_authors_loss(step: int) -> None:
    model = network()
    moex = MomentExchange(model, "2", lam=0.9, p=1.0, seed=3)
    moex.step = step
    x, targets = CutMix()(X, Y, step=step, seed=3)
    lam = targets.terms[0].weight
    with moex(targets) as both:
        output = model(x)
        loss = both.loss(F.cross_entropy, output)
    assert moex.plan is not None
    partners = targets.terms[-1].labels
    assert torch.equal(partners, Y if lam == 1 else Y[moex.plan.index])  # the border may cut a box away
    assert_close(loss, reference.cutmix_moex_loss(output, Y, moex.plan.index, F.cross_entropy, lam, 0.9))
    # and the features are those of the pasted images, exchanged
    _, _, index = reference.moex(X, Y, "pono", moex.plan.index)
    features, _, _ = reference.moex(model[:2](x), index, "pono", moex.plan.index)
    assert_close(output, model[2:](features))


@pytest.mark.parametrize("first", [Mixup(pairs="own"), CutMix(pairs="own"), Mixup(per="sample", pairs="own")])
def test_with_partners_of_their_own_targets_are_composed_all_the_same(first) -> None:
    model = network()
    moex = MomentExchange(model, "2", lam=0.8, p=1.0)
    x, targets = first(X, Y, step=0)
    rows = targets.probabilities(CLASSES)
    with moex(targets) as both:
        output = model(x)
        loss = both.cross_entropy(output)
    assert moex.plan is not None
    wanted = 0.8 * rows + 0.2 * rows[moex.plan.index]
    assert_close(both.probabilities(CLASSES), wanted)
    assert_close(loss, F.cross_entropy(output, wanted.double()), torch.float32)


@pytest.mark.parametrize(
    "order", [(Mixup(), CutMix(), LabelInterpolation(p=1.0)), (CutMix(), LabelInterpolation(p=1.0), Mixup())]
)
def test_methods_stack_in_any_order_and_targets_follow(order) -> None:
    x, targets, rows = X, Y, F.one_hot(Y, CLASSES).double()
    names = torch.arange(SIZE)
    for method in order:
        _, alone = method(x, names, step=1)
        share = alone.probabilities(SIZE).double()
        x, targets = method(x, targets, step=1)
        rows = share @ rows
    assert_close(targets.probabilities(CLASSES), rows, torch.float32)


def test_label_interpolation_mixes_what_moment_exchange_would_mix() -> None:
    for step in range(12):
        x, targets = LabelInterpolation(lam=0.7, p=0.5)(X, Y, step=step, seed=4)
        assert x is X
        plan = Policy(0.7, 0.5).draw(4, step, SIZE)
        wanted = Targets(Y).mixed_with(plan.index, 0.7) if plan.on else Targets(Y)
        assert_close(targets.probabilities(CLASSES), wanted.probabilities(CLASSES))
