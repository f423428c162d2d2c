"""mixup, CutMix and Cutout on images: by hand, per batch and per sample, and what leaves an image alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from momentex import Beta, Box, CutMix, Cutout, Mixup, Policy, Targets, cutmix, cutout, mixup, pair, stream
from momentex.augment import drawing
from momentex.errors import FeatureError, PairingError, ShapeError
from tests import reference
from tests.compare import DTYPES, assert_close, assert_same_bits

SIZE, CLASSES = 7, 5
INDEX = torch.tensor([3, 1, 0, 6, 2, 2, 5])  # a fixed point, and two with one partner
Y = torch.tensor([0, 1, 2, 3, 4, 0, 1])
PER_SAMPLE = torch.tensor([0.0, 0.1, 0.5, 1.0, 0.9, 0.3, 0.7])


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, *(shape or (3, 8, 6)), generator=generator, dtype=torch.float64).to(dtype)


def rows(y: Tensor, index: Tensor, lam: Tensor) -> Tensor:
    one_hot = torch.nn.functional.one_hot(y, CLASSES).double()
    return lam[:, None] * one_hot + (1 - lam[:, None]) * one_hot[index]


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0, PER_SAMPLE], ids=["0", "0.3", "1", "per sample"])
def test_mixup_is_the_average_written_by_hand(lam: float | Tensor, dtype: torch.dtype) -> None:
    x = images(dtype=dtype)
    mixed, targets = mixup(x, Y, index=INDEX, lam=lam)
    each = lam if isinstance(lam, Tensor) else torch.full((SIZE,), lam, dtype=torch.float64)
    assert mixed.dtype == dtype
    assert_close(mixed, reference.mixup(x.double(), INDEX, each.double()), dtype)
    assert_close(targets.probabilities(CLASSES), rows(Y, INDEX, each.double()), torch.float32)


BOXES = torch.tensor([[0, 8, 0, 6], [1, 3, 2, 5], [0, 0, 0, 0], [7, 8, 5, 6], [2, 6, 0, 6], [0, 8, 3, 4], [3, 3, 0, 6]])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
@pytest.mark.parametrize("box", [Box(1, 5, 2, 6), Box(0, 8, 0, 6), Box(4, 4, 0, 6), BOXES])
@pytest.mark.parametrize("shape", [(3, 8, 6), (8, 6), (2, 3, 8, 6)], ids=["images", "no channels", "video"])
def test_cutmix_is_pasting_pixel_by_pixel(box: drawing.Boxes, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (images(*shape) * 10).to(dtype)
    each = box.tolist() if isinstance(box, Tensor) else [box] * SIZE
    wanted, lam = reference.cutmix(x, INDEX, each)
    pasted, targets = cutmix(x, Y, index=INDEX, box=box)
    assert torch.equal(pasted, wanted)
    assert_close(targets.probabilities(CLASSES), rows(Y, INDEX, lam), torch.float32)


@pytest.mark.parametrize("box", [Box(1, 5, 2, 6), BOXES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_cutout_is_setting_pixels_to_zero(box: drawing.Boxes, dtype: torch.dtype) -> None:
    x = (images() * 10).to(dtype)
    each = box.tolist() if isinstance(box, Tensor) else [box] * SIZE
    cut, targets = cutout(x, Y, box=box)
    assert torch.equal(cut, reference.cutout(x, each))
    assert targets.terms[0].labels is Y
    assert len(targets.terms) == 1


@pytest.mark.parametrize("lam", [0.0, 0.02, 0.3, 0.5, 0.9, 0.999, 1.0])
def test_the_box_is_the_published_one(lam: float) -> None:
    from momentex.augment.cutmix import sides

    for height, width in ((8, 6), (32, 32), (7, 5), (1, 9)):
        centre = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        boxes = drawing.around(centre, sides(torch.tensor([lam]).double(), height, width), height, width)
        ratio = (1 - lam) ** 0.5
        one = drawing.around_one((height - 1, width - 1), (int(height * ratio), int(width * ratio)), height, width)
        assert tuple(one) == tuple(boxes[-1].tolist())
        for (row, column), box in zip(centre.tolist(), boxes.tolist(), strict=True):
            assert tuple(box) == reference.cutmix_box(lam, height, width, row, column)


def test_the_square_of_cutout_is_cut_at_the_border() -> None:
    boxes = drawing.around(torch.tensor([[0, 0], [4, 4], [7, 7]]), torch.tensor([[4, 4]]), 8, 8)
    assert boxes.tolist() == [[0, 2, 0, 2], [2, 6, 2, 6], [5, 8, 5, 8]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_images_that_are_taken_one_by_one_are_what_small_ones_are(dtype: torch.dtype) -> None:
    x = images(3, 128, 96, dtype=dtype).to(memory_format=torch.channels_last)
    boxes = BOXES * 16
    assert drawing.one_by_one(x)
    assert not drawing.one_by_one(x.clone().requires_grad_())
    assert_close(
        mixup(x, Y, index=INDEX, lam=0.3)[0], reference.mixup(x.double(), INDEX, torch.full((SIZE,), 0.3)), dtype
    )
    assert_close(mixup(x, Y, index=INDEX, lam=PER_SAMPLE)[0], reference.mixup(x.double(), INDEX, PER_SAMPLE), dtype)
    assert torch.equal(cutmix(x, Y, index=INDEX, box=boxes)[0], reference.cutmix(x, INDEX, boxes.tolist())[0])
    own = x.clone(memory_format=torch.preserve_format)
    assert cutmix(own, Y, index=INDEX, box=boxes, inplace=True)[0] is own
    assert torch.equal(own, reference.cutmix(x, INDEX, boxes.tolist())[0])
    assert torch.equal(cutout(x, Y, box=boxes)[0], reference.cutout(x, boxes.tolist()))
    for method in METHODS.values():
        assert method(x, Y, step=1)[0].is_contiguous(memory_format=torch.channels_last)
        wanted = method(x.clone().requires_grad_(), Y, step=1)[0]
        assert_close(method(x, Y, step=1)[0], wanted.detach(), dtype)


# --- laws ------------------------------------------------------------------------------------------------------------

METHODS = {
    "mixup": Mixup(),
    "mixup per sample": Mixup(per="sample"),
    "cutmix": CutMix(),
    "cutmix per sample": CutMix(per="sample"),
    "cutout": Cutout(),
    "cutout per batch": Cutout(per="batch"),
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@each_method
def test_the_batch_that_is_given_is_not_written_to(method: Mixup | CutMix | Cutout) -> None:
    x = images()
    before = x.clone()
    changed = [not torch.equal(method(x, Y, step=step)[0], before) for step in range(6)]
    assert any(changed)
    assert_same_bits(x, before)


@each_method
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_of_any_size_are_taken_and_one_image_has_no_partner(method, size: int) -> None:
    x, y = images()[:size], Y[:size]
    for step in range(5):
        mixed, targets = method(x, y, step=step)
        assert mixed.shape == x.shape
        if size == 1 and not isinstance(method, Cutout):
            assert mixed is x
            assert len(targets.terms) == 1


@each_method
def test_memory_format_and_dtype_are_kept(method) -> None:
    x = images(dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    for step in range(4):
        mixed, _ = method(x, Y, step=step)
        assert mixed.dtype == x.dtype
        assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("lam", [0.0, 0.37, 1.0, PER_SAMPLE])
def test_who_is_its_own_partner_comes_out_bit_by_bit(lam: float | Tensor) -> None:
    x = images(dtype=torch.float32)
    me = torch.arange(SIZE)
    assert_same_bits(mixup(x, Y, index=me, lam=lam)[0], x)
    assert_same_bits(cutmix(x, Y, index=me, box=BOXES)[0], x)
    assert_same_bits(cutmix(x, Y, index=me, box=Box(1, 5, 2, 6))[0], x)


def test_gradients_reach_both_images() -> None:
    x = images().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mixup(x, Y, index=INDEX, lam=0.3)[0], x)
    assert torch.autograd.gradcheck(lambda x: mixup(x, Y, index=INDEX, lam=PER_SAMPLE.double())[0], x)
    assert torch.autograd.gradcheck(lambda x: cutmix(x, Y, index=INDEX, box=Box(1, 5, 2, 6))[0], x)
    assert torch.autograd.gradcheck(lambda x: cutmix(x, Y, index=INDEX, box=BOXES)[0], x)


@pytest.mark.parametrize("method", [CutMix(), CutMix(per="sample"), Cutout(), Cutout(per="batch")])
def test_in_place_the_same_images_come_out_in_the_batch_that_was_given(method) -> None:
    for step in range(3):
        x = images()
        wanted, targets = method(x, Y, step=step)
        found, same = method(x, Y, step=step, inplace=True)
        assert_same_bits(found, wanted)
        assert torch.equal(same.probabilities(CLASSES), targets.probabilities(CLASSES))
        assert found is x


# --- draws -----------------------------------------------------------------------------------------------------------


@each_method
def test_a_step_can_be_drawn_again_and_depends_on_seed_step_and_stream(method) -> None:
    x = images()
    one = method(x, Y, step=3, seed=2)[0]
    assert_same_bits(method(x, Y, step=3, seed=2)[0], one)
    others = ({"step": 4, "seed": 2}, {"step": 3, "seed": 1}, {"step": 3, "seed": 2, "stream": "again"})
    assert not any(torch.equal(method(x, Y, **other)[0], one) for other in others)


@each_method
def test_a_default_device_of_the_user_changes_no_draw(method) -> None:
    x = images()
    wanted = method(x, Y, step=1)[0]
    with torch.device("meta"):
        found = method(x, Y, step=1)[0]
    assert_same_bits(found, wanted)


@pytest.mark.parametrize("method", [Mixup(p=0.5), CutMix(p=0.5), Cutout(p=0.5, per="batch")])
def test_the_coin_of_a_batch_is_common_to_all_ranks(method) -> None:
    x = images()
    on = [[method(x, Y, step=step, rank=rank)[0] is not x for step in range(40)] for rank in (0, 1)]
    assert on[0] == on[1]
    assert 10 <= sum(on[0]) <= 30


def test_the_box_and_lambda_of_a_batch_are_common_to_all_ranks_and_partners_are_not() -> None:
    weights = [[CutMix()(images(), Y, step=s, rank=r)[1].terms[0].weight for s in range(9)] for r in (0, 1)]
    assert weights[0] == weights[1]
    pairs = [CutMix()(images(), Y, step=1, rank=rank)[1].terms[-1].labels for rank in (0, 1)]
    assert not torch.equal(*pairs)


def test_cutmix_draws_lambda_from_beta_and_corrects_it_to_the_area() -> None:
    x = torch.zeros(2, 1, 32, 32)
    for step in range(20):
        found = CutMix(alpha=0.4)(x, Y[:2], step=step)[1].terms[0].weight
        lam = Policy(lam=Beta(0.4), p=1.0, stream="cutmix").draw(0, step, 2).lam
        row, column = drawing.centre(32, 32, (0, step, "cutmix", 0))
        top, bottom, left, right = reference.cutmix_box(lam, 32, 32, row, column)
        assert found == pytest.approx(1 - (bottom - top) * (right - left) / 1024)


@pytest.mark.parametrize("method", [Mixup, CutMix])
def test_samples_have_coins_of_their_own_when_asked(method) -> None:
    shares = [
        (method(p=0.3, per="sample")(images(), Y, step=step)[0] != images()).flatten(1).any(1).double().mean()
        for step in range(60)
    ]
    assert len(set(map(float, shares))) > 3
    assert 0.1 < torch.stack(shares).mean() < 0.35


def test_cutout_cuts_each_image_elsewhere_and_about_as_much_as_it_should() -> None:
    x = torch.ones(500, 1, 32, 32)
    cut, _ = Cutout(size=16)(x, torch.zeros(500).long(), step=0)
    holes = (cut == 0).flatten(1).sum(1)
    assert int(holes.max()) == 256
    assert int(holes.min()) >= 64
    # a side of 16 around a uniform pixel of 32 keeps 8 + (4 + … + 8 + … ) on average: 14 less the rounding
    each = torch.tensor([min(c + 8, 32) - max(c - 8, 0) for c in range(32)]).double().mean()
    assert float(holes.double().mean()) == pytest.approx(float(each**2), rel=0.05)
    assert len({tuple(hole.nonzero()[0].tolist()) for hole in (cut[:, 0] == 0)}) > 100


def test_shared_partners_are_those_of_moment_exchange_and_own_ones_are_not() -> None:
    theirs = pair("permutation", SIZE, stream(5, 2, "pairing"))
    assert torch.equal(Policy(p=1.0).draw(5, 2, SIZE).index, theirs)
    for method in (Mixup, CutMix):
        _, targets = method()(images(), torch.arange(SIZE), step=2, seed=5)
        assert torch.equal(targets.terms[-1].labels, theirs)
        _, targets = method(pairs="own")(images(), torch.arange(SIZE), step=2, seed=5)
        assert not torch.equal(targets.terms[-1].labels, theirs)


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: mixup(x.to(torch.uint8), Y, index=INDEX, lam=0.5),
            FeatureError,
            r"^x is torch\.uint8; averages need",
        ),
        (
            lambda x: mixup(x[:3], Y, index=INDEX, lam=0.5),
            ShapeError,
            r"^x is a tensor \(3, 3, 8, 6\) for 7 labels; it",
        ),
        (lambda x: mixup([x], Y, index=INDEX, lam=0.5), ShapeError, r"^x is a list for 7 labels; it must be a tensor"),
        (lambda x: mixup(x, Y, index=INDEX[:3], lam=0.5), PairingError, r"^index has entries|^index has 3 entries for"),
        (lambda x: mixup(x, Y, index=INDEX + 3, lam=0.5), PairingError, r"^index has entries from 3 to 9; for a batch"),
        (lambda x: mixup(x, Y, index=INDEX, lam=1.5), ValueError, r"^lam is 1\.5; it must be a number between 0 and 1"),
        (lambda x: cutmix(x, Y, index=INDEX, box=Box(0, 9, 0, 2)), ShapeError, r"^Box\(top=0, bottom=9.*8×6 pixels"),
        (
            lambda x: cutmix(x, Y, index=INDEX, box=BOXES[:2]),
            ShapeError,
            r"^box is torch\.int64 \(2, 4\); it is one Box",
        ),
        (lambda x: cutmix(x[:, 0, 0], Y, index=INDEX, box=BOXES), ShapeError, r"^x is \(7, 6\); boxes need images"),
        (
            lambda x: Cutout(size=16)(x, Y, step=0),
            ShapeError,
            r"^cutout\.size is 16 for images of 8×6 pixels: wherever",
        ),
        (
            lambda x: Cutout()(x[..., :2], Y, step=0),
            ShapeError,
            r"^cutout\.size is not given, and half of images of 8×2",
        ),
    ],
)
def test_what_does_not_fit_says_what_is_needed(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call(images())


def test_targets_of_another_method_are_taken_and_composed() -> None:
    _, targets = CutMix()(*Mixup()(images(), Y, step=0), step=0)
    assert isinstance(targets, Targets)
    assert len(targets.terms) == 4
