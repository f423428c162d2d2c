"""Targets: weights that sum to one, the paper's and the authors' losses, and every sort of label and criterion."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from momentex import Targets
from momentex.errors import MomentexError, OutOfRange, PairingError, ShapeError, TargetError
from tests import reference
from tests.compare import assert_close, assert_same_bits
from tests.strategies import SIZES, maps

BATCH, CLASSES = 5, 4
INDEX, OTHER = torch.tensor([1, 2, 2, 4, 0]), torch.tensor([3, 0, 2, 1, 4])
PER_SAMPLE = torch.tensor([0.0, 0.3, 0.5, 0.9, 1.0])

LOGITS = torch.randn(BATCH, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
DENSE_LOGITS = torch.randn(BATCH, CLASSES, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1, 3, 2, 1])

# output, labels and criterion of every sort of task
TASKS = {
    "classes": (LOGITS, LABELS, F.cross_entropy),
    "soft rows": (LOGITS, DENSE_LOGITS[..., 0, 0].softmax(1), F.cross_entropy),
    "multi-hot rows": (LOGITS, (DENSE_LOGITS[..., 0, 0] > 0).double(), F.binary_cross_entropy_with_logits),
    "sequences": (DENSE_LOGITS[..., 0], DENSE_LOGITS[..., 1].argmax(1), F.cross_entropy),
    "dense maps": (DENSE_LOGITS, DENSE_LOGITS.flip(0).argmax(1), F.cross_entropy),
    "real numbers": (LOGITS[:, 0], LOGITS[:, 1], F.mse_loss),
    "real vectors": (LOGITS, LOGITS.flip(0), F.l1_loss),
}


@st.composite
def chains(draw):
    """A batch size and some steps of mixing, with λ a number or one for each sample."""
    size = draw(st.sampled_from(SIZES))
    fractions = st.floats(0, 1) | st.sampled_from([0.0, 1.0])
    lam = fractions | st.lists(st.floats(0, 1), min_size=size, max_size=size).map(
        lambda numbers: torch.tensor(numbers).double()
    )
    return size, draw(st.lists(st.tuples(maps(size), lam), max_size=4))


# --- a convex combination --------------------------------------------------------------------------------------------


@given(chains())
def test_weights_sum_to_one_for_every_sample_under_any_chain(chain):
    size, steps = chain
    targets = Targets(torch.arange(size))
    for index, lam in steps:
        targets = targets.mixed_with(index, lam)
    total = sum(torch.zeros(size).double() + weight for _, weight in targets.terms)
    assert_close(total, torch.ones(size))


@given(chains())
def test_any_chain_is_the_chain_of_interpolated_rows(chain):
    size, steps = chain
    targets, rows = Targets(torch.arange(size)), torch.eye(size, dtype=torch.float64)
    for index, lam in steps:
        targets = targets.mixed_with(index, lam)
        lam = lam.unsqueeze(1) if isinstance(lam, torch.Tensor) else lam
        rows = lam * rows + (1 - lam) * rows[index]
    assert_close(targets.probabilities(size), rows, torch.float32)


def test_mixing_changes_nothing_about_what_was_mixed():
    targets = Targets(LABELS)
    targets.mixed_with(INDEX, 0.5).mixed_with(OTHER, PER_SAMPLE)
    assert len(targets.terms) == 1
    assert targets.labels is LABELS


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0, PER_SAMPLE])
def test_labels_are_those_of_the_samples_themselves(lam):
    assert Targets(LABELS).mixed_with(INDEX, lam).labels is LABELS


def test_multi_hot_rows_may_be_truth_values():
    hot = torch.tensor([[True, False, True], [False, False, True]])
    index = torch.tensor([1, 0])
    rows = Targets(hot).mixed_with(index, 0.75).probabilities(3)
    assert_close(rows, Targets(hot.float()).mixed_with(index, 0.75).probabilities(3), torch.float32)


def test_the_mean_under_soft_labels_does_not_ask_for_the_default_device():
    rows = LOGITS.softmax(1)
    expected = Targets(rows).cross_entropy(LOGITS)
    with torch.device("meta"):
        assert Targets(rows).cross_entropy(LOGITS).equal(expected)


def test_lambda_of_one_is_no_mixing():
    targets = Targets(LABELS)
    assert targets.mixed_with(INDEX, 1.0) is targets


def test_lambda_is_the_weight_of_the_sample_itself():
    rows = Targets(LABELS).mixed_with(INDEX, 0.9).probabilities(CLASSES)
    assert_close(rows, 0.9 * F.one_hot(LABELS, CLASSES) + 0.1 * F.one_hot(LABELS[INDEX], CLASSES))


def test_the_length_is_that_of_the_batch_and_the_repr_says_the_weights():
    targets = Targets(LABELS).mixed_with(INDEX, 0.9)
    assert len(targets) == BATCH
    assert repr(targets) == "Targets(0.9 · torch.int64 (5,) + 0.1 · torch.int64 (5,))"
    assert repr(Targets(LABELS).mixed_with(INDEX, PER_SAMPLE)).startswith("Targets(w(5,) · torch.int64 (5,) + w(5,)")


# --- losses: the oracle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(("output", "labels", "criterion"), TASKS.values(), ids=TASKS)
def test_the_loss_is_the_papers_listing(output, labels, criterion, lam):
    output = output.clone().requires_grad_()
    ours = Targets(labels).mixed_with(INDEX, lam).loss(criterion, output)
    theirs = reference.interpolate_loss(output, labels, labels[INDEX], criterion, lam)
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, output)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize(("output", "labels", "criterion"), TASKS.values(), ids=TASKS)
def test_cutmix_then_moex_with_one_index_is_the_authors_loss(output, labels, criterion):
    ours = Targets(labels).mixed_with(INDEX, 0.7).mixed_with(INDEX, 0.9).loss(criterion, output)
    assert_close(ours, reference.cutmix_moex_loss(output, labels, INDEX, criterion, 0.7, 0.9))


@pytest.mark.parametrize(("output", "labels", "criterion"), TASKS.values(), ids=TASKS)
def test_cutmix_then_moex_with_two_indices_asks_for_four_labels(output, labels, criterion):
    ours = Targets(labels).mixed_with(INDEX, 0.7).mixed_with(OTHER, 0.9).loss(criterion, output)
    four = [labels, labels[INDEX], labels[OTHER], labels[INDEX][OTHER]]
    weights = [0.9 * 0.7, 0.9 * 0.3, 0.1 * 0.7, 0.1 * 0.3]
    assert_close(ours, sum(w * criterion(output, t) for w, t in zip(weights, four, strict=True)))
    assert (ours - reference.cutmix_moex_loss(output, labels, INDEX, criterion, 0.7, 0.9)).abs() > 1e-4


@pytest.mark.parametrize("order", [(0.7, PER_SAMPLE), (PER_SAMPLE, 0.7), (PER_SAMPLE, PER_SAMPLE.flip(0))])
@pytest.mark.parametrize(("output", "labels", "criterion"), TASKS.values(), ids=TASKS)
def test_partners_bring_their_own_weights(output, labels, criterion, order):
    ours = Targets(labels).mixed_with(INDEX, order[0]).mixed_with(OTHER, order[1])
    first, second = (torch.as_tensor(lam).expand(BATCH).double() for lam in order)
    total = 0.0
    for i, j in itertools.product(range(2), range(2)):
        weight = (second if j == 0 else 1 - second) * (first if i == 0 else 1 - first)[
            OTHER if j else torch.arange(BATCH)
        ]
        picked = labels[INDEX] if i else labels
        value = criterion(output, picked[OTHER] if j else picked, reduction="none")
        total = total + weight.view(-1, *[1] * (value.ndim - 1)) * value
    assert_close(ours.loss(criterion, output, reduction="none"), total, torch.float32)


@pytest.mark.parametrize(("output", "labels", "criterion"), TASKS.values(), ids=TASKS)
def test_one_lambda_for_each_sample_that_is_the_same_is_one_lambda(output, labels, criterion):
    each = Targets(labels).mixed_with(INDEX, torch.full((BATCH,), 0.75)).loss(criterion, output, reduction="none")
    assert_close(each.mean(), Targets(labels).mixed_with(INDEX, 0.75).loss(criterion, output))


# --- cross_entropy ---------------------------------------------------------------------------------------------------

WEIGHT = torch.tensor([1.0, 0.2, 3.0, 0.7], dtype=torch.float64)
IGNORED = {
    -100: torch.tensor([0, 1, -100, 2, 1]),
    255: torch.tensor([0, 1, 255, 2, 1]),
    2: LABELS,
}


def _assert_is_torchs(targets, logits, reduce=lambda loss: loss, **options):
    logits = logits.clone().requires_grad_()
    ours, theirs = targets.cross_entropy(logits, **options), targets.loss(F.cross_entropy, logits, **options)
    assert_close(ours, theirs, logits.dtype)
    assert_close(*(torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("task", ["classes", "soft rows", "sequences", "dense maps"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "class weights"])
def test_cross_entropy_is_the_loss_of_torchs_cross_entropy(task, reduction, label_smoothing, weight):
    logits, labels, _ = TASKS[task]
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "weight": weight}
    for targets in (Targets(labels), Targets(labels).mixed_with(INDEX, 0.7).mixed_with(OTHER, 0.9)):
        _assert_is_torchs(targets, logits, **options)


def test_without_mixing_it_is_torchs_cross_entropy_to_the_bit():
    for logits, options in itertools.product((LOGITS, LOGITS.float()), ({}, {"reduction": "sum"}, {"ignore_index": 2})):
        logits = logits.clone().requires_grad_()
        losses = Targets(LABELS).cross_entropy(logits, **options), F.cross_entropy(logits, LABELS, **options)
        assert_same_bits(*losses)
        assert_same_bits(*(torch.autograd.grad(loss, logits)[0] for loss in losses))


@pytest.mark.parametrize("ignore_index", IGNORED)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "class weights"])
def test_ignored_labels_are_ignored_as_torch_ignores_them(ignore_index, reduction, label_smoothing, weight):
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "weight": weight}
    targets = Targets(IGNORED[ignore_index]).mixed_with(INDEX, 0.7)
    _assert_is_torchs(targets, LOGITS, ignore_index=ignore_index, **options)
    dense = Targets(IGNORED[ignore_index].view(BATCH, 1, 1).expand(BATCH, 3, 2)).mixed_with(INDEX, 0.7)
    _assert_is_torchs(dense, DENSE_LOGITS, ignore_index=ignore_index, **options)


@pytest.mark.parametrize("labels", [LABELS.byte(), LABELS])
def test_labels_that_are_bytes_serve_as_torch_lets_them(labels):
    for weight in (None, WEIGHT):
        _assert_is_torchs(Targets(labels).mixed_with(INDEX, 0.7), LOGITS, weight=weight)


def test_a_batch_in_which_everything_is_ignored_is_what_torch_makes_of_it():
    nothing = Targets(torch.full((BATCH,), -100)).mixed_with(INDEX, 0.5)
    assert nothing.cross_entropy(LOGITS).isnan()
    assert nothing.cross_entropy(LOGITS, reduction="sum") == 0


@pytest.mark.parametrize("labels", [LABELS[:0], LOGITS[:0].softmax(1)], ids=["classes", "soft rows"])
def test_an_empty_batch_is_what_torch_makes_of_it(labels):
    targets = Targets(labels)
    assert targets.cross_entropy(LOGITS[:0], reduction="none").shape == (0,)
    assert targets.cross_entropy(LOGITS[:0], reduction="sum") == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "class weights"])
@pytest.mark.parametrize("task", ["classes", "soft rows", "dense maps"])
def test_half_logits_are_summed_in_float32(task, dtype, weight):
    logits, labels, _ = TASKS[task]
    labels = labels.to(dtype) if labels.is_floating_point() else labels
    targets = Targets(labels).mixed_with(INDEX, 0.7)
    loss = targets.cross_entropy(logits.to(dtype), weight=None if weight is None else weight.to(dtype))
    exact = (
        targets.loss(F.cross_entropy, logits.to(dtype).double(), weight=weight)
        if labels.dtype == LABELS.dtype
        else None
    )
    assert loss.dtype == torch.float32
    if exact is not None:
        assert_close(loss, exact, dtype)


@pytest.mark.parametrize("task", ["classes", "soft rows", "dense maps"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "class weights"])
def test_cross_entropy_takes_one_lambda_for_each_sample(task, reduction, weight):
    logits, labels, _ = TASKS[task]
    options = {"reduction": reduction, "weight": weight, "label_smoothing": 0.1}
    uniform = Targets(labels).mixed_with(INDEX, torch.full((BATCH,), 0.75, dtype=torch.float64))
    assert_close(
        uniform.cross_entropy(logits, **options),
        Targets(labels).mixed_with(INDEX, 0.75).cross_entropy(logits, **options),
    )


def test_a_mean_under_one_lambda_for_each_sample_is_the_mean_of_the_weighted_losses():
    targets = Targets(LABELS).mixed_with(INDEX, PER_SAMPLE)
    own, partner = (F.cross_entropy(LOGITS, t, reduction="none") for t in (LABELS, LABELS[INDEX]))
    assert_close(targets.cross_entropy(LOGITS), (PER_SAMPLE * own + (1 - PER_SAMPLE) * partner).mean(), torch.float32)


def test_classes_beyond_reach_do_not_spoil_the_loss():
    logits = LOGITS.clone()
    logits[:, 3] = -float("inf")
    _assert_is_torchs(Targets(LABELS.clamp(max=2)).mixed_with(INDEX, 0.7), logits)


# --- the soft form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.7, PER_SAMPLE])
@pytest.mark.parametrize("task", ["classes", "soft rows", "sequences", "dense maps"])
def test_without_class_weights_the_soft_form_is_the_two_target_form(task, lam):
    logits, labels, _ = TASKS[task]
    targets = Targets(labels).mixed_with(INDEX, lam).mixed_with(OTHER, 0.9)
    soft = targets.probabilities(CLASSES)
    assert soft.shape == logits.shape
    assert_close(F.cross_entropy(logits, soft.double()), targets.cross_entropy(logits), torch.float32)


def test_with_class_weights_the_soft_form_differs():
    targets = Targets(LABELS).mixed_with(INDEX, 0.7)
    soft = F.cross_entropy(LOGITS, targets.probabilities(CLASSES).double(), weight=WEIGHT)
    assert (soft - targets.cross_entropy(LOGITS, weight=WEIGHT)).abs() > 1e-2


def _focal(logits, rows):
    """Not linear in its target: the target is in the exponent's base too."""
    p = logits.softmax(1)
    return ((rows - p).abs() ** 2 * F.binary_cross_entropy_with_logits(logits, rows, reduction="none")).sum(1).mean()


def test_a_loss_that_is_not_linear_in_its_target_differs_between_the_forms():
    rows = F.one_hot(LABELS, CLASSES).double()
    targets = Targets(rows).mixed_with(INDEX, 0.7)
    two_target = targets.loss(_focal, LOGITS)
    assert_close(two_target, 0.7 * _focal(LOGITS, rows) + 0.3 * _focal(LOGITS, rows[INDEX]))
    assert (two_target - _focal(LOGITS, targets.probabilities(CLASSES))).abs() > 1e-2


def test_squares_are_not_linear_in_their_target_either():
    targets = Targets(torch.tensor([0.0, 10.0])).mixed_with(torch.tensor([1, 0]), 0.9)
    assert targets.loss(F.mse_loss, torch.zeros(2)).item() == pytest.approx(50)
    assert F.mse_loss(torch.zeros(2), torch.tensor([1.0, 9.0])).item() == pytest.approx(41)


# --- accuracy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("lam", [0.7, PER_SAMPLE])
@pytest.mark.parametrize("task", ["classes", "soft rows", "sequences", "dense maps"])
def test_accuracy_is_weighted_as_the_loss_is(task, lam, top):
    logits, labels, _ = TASKS[task]
    classes = labels.argmax(1) if labels.is_floating_point() else labels
    hit = [
        (logits.topk(top, 1).indices == t.unsqueeze(1)).any(1).float().view(BATCH, -1).mean(1)
        for t in (classes, classes[INDEX])
    ]
    wanted = (lam * hit[0] + (1 - lam) * hit[1]).mean()
    assert_close(Targets(labels).mixed_with(INDEX, lam).accuracy(logits, top=top), wanted)


def test_accuracy_without_mixing_is_accuracy():
    assert Targets(LABELS).accuracy(F.one_hot(LABELS, CLASSES).float()) == 1
    assert Targets(LABELS).accuracy(-F.one_hot(LABELS, CLASSES).float()) == 0


# --- inside a compiled step ------------------------------------------------------------------------------------------

IN_A_GRAPH = {
    "cross_entropy": lambda logits, lam: Targets(LABELS).mixed_with(INDEX, lam).cross_entropy(logits),
    "loss": lambda logits, lam: Targets(LABELS).mixed_with(INDEX, lam).loss(F.cross_entropy, logits, reduction="none"),
    "probabilities": lambda logits, lam: (Targets(LABELS).mixed_with(INDEX, lam).probabilities(CLASSES) * logits).sum(),
    "accuracy": lambda logits, lam: Targets(LABELS).mixed_with(INDEX, lam).accuracy(logits),
}


@pytest.mark.parametrize("lam", [0.7, PER_SAMPLE], ids=["one", "each"])
@pytest.mark.parametrize("function", IN_A_GRAPH.values(), ids=IN_A_GRAPH)
def test_targets_break_no_graph(function, lam):
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_close(compiled(LOGITS, lam), function(LOGITS, lam))


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_who_asked_is_called_with_every_output_of_a_graph_whose_loss_is_asked_for():
    called, weight = [], LOGITS.clone().requires_grad_()
    watched = Targets(LABELS).when_used(lambda t: called.append(("first", t)))
    watched = watched.mixed_with(INDEX, 0.7).when_used(lambda t: called.append(("second", t)))
    a, b = weight * 2, weight * 3
    watched.loss(F.cross_entropy, a)
    watched.cross_entropy(b)
    Targets(LABELS).cross_entropy(b)
    assert [(name, t is a, t is b) for name, t in called] == [
        *(("first", True, False), ("second", True, False)),
        *(("first", False, True), ("second", False, True)),
    ]


def test_an_output_of_several_tensors_is_used_whole_and_parameters_among_them_are_left_alone():
    called, weight = [], LOGITS.clone().requires_grad_()
    watched = Targets(LABELS).when_used(called.append)
    output = {"logits": weight * 2, "others": [weight * 3], "prototypes": weight}
    watched.loss(lambda found, labels: F.cross_entropy(found["others"][0], labels), output)
    assert [t is weight for t in called] == [False, False]


def test_a_loss_that_wants_no_gradient_calls_nobody():
    watched = Targets(LABELS).when_used(lambda _: pytest.fail("called"))
    watched.cross_entropy(LOGITS)
    with torch.no_grad():
        watched.loss(F.cross_entropy, LOGITS.clone().requires_grad_() * 2)


def test_a_watched_loss_is_the_same_loss():
    logits = LOGITS.clone().requires_grad_()
    plain, watched = Targets(LABELS), Targets(LABELS).when_used(lambda _: None)
    assert_same_bits(watched.cross_entropy(logits), plain.cross_entropy(logits))
    gradients = [torch.autograd.grad(t.cross_entropy(logits), logits)[0] for t in (plain, watched)]
    assert_same_bits(*gradients)


# --- bad input -------------------------------------------------------------------------------------------------------

MIXED = Targets(LABELS).mixed_with(INDEX, PER_SAMPLE)
REFUSED = {
    "labels that are a list": (
        TargetError,
        lambda: Targets([0, 1]),
        r"^labels are a list; they must be a tensor whose first axis is the batch\.$",
    ),
    "labels that are a number": (
        TargetError,
        lambda: Targets(torch.tensor(1)),
        r"^labels are a number; they must be a",
    ),
    "an index of another batch": (
        PairingError,
        lambda: Targets(LABELS).mixed_with(torch.tensor([1, 0]), 0.5),
        r"index has (shape \(2,\)|2 entries).* 5",
    ),
    "an index of two axes": (
        PairingError,
        lambda: Targets(LABELS).mixed_with(INDEX[:, None], 0.5),
        r"index .*\(5, 1\)",
    ),
    "a negative index": (
        PairingError,
        lambda: Targets(LABELS).mixed_with(torch.tensor([0, 1, 2, 3, -1]), 0.5),
        r"index has entries from -1 to 3; for a batch of 5 they must be 0 to 4",
    ),
    "an index out of reach": (
        PairingError,
        lambda: Targets(LABELS).mixed_with(torch.tensor([0, 1, 2, 3, 5]), 0.5),
        r"index has entries from 0 to 5; for a batch of 5 they must be 0 to 4",
    ),
    "an index of floats": (
        PairingError,
        lambda: Targets(LABELS).mixed_with(INDEX.float(), 0.5),
        r"index is torch\.float32",
    ),
    "an index that is a list": (PairingError, lambda: Targets(LABELS).mixed_with([1, 0], 0.5), r"index is a list"),
    "lam below zero": (
        OutOfRange,
        lambda: Targets(LABELS).mixed_with(INDEX, -0.1),
        r"^lam is -0\.1; it must be a number between 0 and 1\.$",
    ),
    "lam beyond one": (
        OutOfRange,
        lambda: Targets(LABELS).mixed_with(INDEX, 1.1),
        r"^lam is 1\.1; it must be a number",
    ),
    "lam nan": (
        OutOfRange,
        lambda: Targets(LABELS).mixed_with(INDEX, float("nan")),
        r"^lam is nan; it must be a number",
    ),
    "lam for another batch": (
        ShapeError,
        lambda: Targets(LABELS).mixed_with(INDEX, torch.rand(4)),
        r"^lam is torch\.float32 \(4,\); it must be a number or floats of shape \(5,\)\.$",
    ),
    "lam of whole numbers": (
        ShapeError,
        lambda: Targets(LABELS).mixed_with(INDEX, torch.ones(5, dtype=torch.int64)),
        r"^lam is torch\.int64 \(5,\); it must be a number or floats of shape \(5,\)\.$",
    ),
    "lam without axis": (
        ShapeError,
        lambda: Targets(LABELS).mixed_with(INDEX, torch.tensor(0.5)),
        r"^lam is .* \(\); it",
    ),
    "lam of each beyond one": (
        OutOfRange,
        lambda: Targets(LABELS).mixed_with(INDEX, torch.tensor([0.5, 0.5, 1.5, 0.5, 0.5])),
        r"^lam (is|has) .*1\.5.* between 0 and 1",
    ),
    "lam of each nan": (
        OutOfRange,
        lambda: Targets(LABELS).mixed_with(INDEX, torch.full((5,), float("nan"))),
        r"^lam (is|has) .*nan.* between 0 and 1",
    ),
    "a mean under one lambda for each sample": (
        TargetError,
        lambda: MIXED.loss(F.cross_entropy, LOGITS),
        r"^λ differs from sample to sample, and the criterion returned \(\) for 5 samples: a reduced loss cannot be "
        r'weighted any more\. Use reduction="none" \(and take the mean yourself\), or Targets\.cross_entropy\.$',
    ),
    "a vector of another length": (
        TargetError,
        lambda: MIXED.loss(lambda o, t: F.cross_entropy(o, t, reduction="none")[:3], LOGITS),
        r"^λ differs from sample to sample, and the criterion returned \(3,\) for 5 samples",
    ),
    "reduction": (
        TargetError,
        lambda: Targets(LABELS).cross_entropy(LOGITS, reduction="avg"),
        r"^reduction is 'avg'; it is 'mean', 'sum' or 'none'\.$",
    ),
    "label_smoothing": (
        OutOfRange,
        lambda: Targets(LABELS).cross_entropy(LOGITS, label_smoothing=1.5),
        r"^label_smoothing is 1\.5; it must be a number between 0 and 1\.$",
    ),
    "soft labels of other classes": (
        ShapeError,
        lambda: Targets(LOGITS[:, :3]).cross_entropy(LOGITS),
        r"^labels are torch\.float64 \(5, 3\) for logits \(5, 4\): soft labels must have the shape of the logits",
    ),
    "probabilities of real numbers": (
        TargetError,
        lambda: Targets(LOGITS[:, 0]).probabilities(CLASSES),
        r"^labels torch\.float64 \(5,\) are no probabilities over 4 classes; use loss\(criterion, output\), which",
    ),
    "probabilities of other classes": (
        TargetError,
        lambda: Targets(LOGITS).probabilities(7),
        r"^labels torch\.float64 \(5, 4\) are no probabilities over 7 classes",
    ),
    "probabilities of ignored labels": (
        TargetError,
        lambda: Targets(IGNORED[-100]).probabilities(CLASSES),
        r"labels .*-100.* 4 classes",
    ),
    "accuracy of real numbers": (
        TargetError,
        lambda: Targets(LOGITS[:, 0]).accuracy(LOGITS),
        r"^accuracy needs class indices or soft rows; labels are torch\.float64 \(5,\) for output \(5, 4\)\.$",
    ),
    "accuracy of sequences": (
        TargetError,
        lambda: Targets(LABELS[:, None]).accuracy(LOGITS),
        r"^accuracy needs class indices or soft rows; labels are torch\.int64 \(5, 1\) for output \(5, 4\)\.$",
    ),
}


@pytest.mark.parametrize(("kind", "call", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_combined_is_refused_with_a_text_that_helps(kind, call, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MomentexError)
