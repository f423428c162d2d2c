"""Batches out of memory: torchvision's pixels and distribution; the same from any step, on any rank and device."""

import itertools

import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from momentex import stream
from momentex.data import Arrays, Augment, Form, Normalize, Part, Resident, evaluation_batches
from momentex.errors import DataError, OutOfRange, ShapeError

FORMATS = [torch.contiguous_format, torch.channels_last]
formats = pytest.mark.parametrize("memory_format", FORMATS, ids=str)


def draw(step, name):
    return stream(5, step, name)


def bytes_of(channels):
    """Normalization that leaves bytes as they are: 1/255 · 255 is exactly one."""
    return Normalize((0.0,) * channels, (1 / 255,) * channels)


def random_images(count, channels=3, height=6, width=5):
    numbers = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=numbers)


def numbered(count, channels=3, **size):
    """Images of which each has its number as label."""
    return Arrays(random_images(count, channels, **size), torch.arange(count), tuple(map(str, range(count))))


def alike(count, channels=3, **size):
    """One image, many times."""
    return Arrays(random_images(1, channels, **size).expand(count, -1, -1, -1), torch.zeros(count).long(), ("a",))


def resident(arrays, batch_size, draw=draw, **options):
    return Resident(arrays, batch_size, bytes_of(arrays.images.shape[1]), draw, **options)


def same(left, right):
    return all(x.equal(a) and y.equal(b) for (x, y), (a, b) in zip(left, right, strict=True))


def torchvisions(image, padding, top, left, mirrored):
    """One outcome of RandomCrop(size, padding) and RandomHorizontalFlip()."""
    height, width = image.shape[-2:]
    crop = F.crop(F.pad(image, [padding] * 4, fill=0), top, left, height, width)
    return F.hflip(crop) if mirrored else crop


def outcomes(image, padding, flip=True):
    offsets = range(2 * padding + 1)
    return [torchvisions(image, padding, *at) for at in itertools.product(offsets, offsets, [False, True][: 1 + flip])]


def matches(arrays, padding, flip, epochs=1, **options):
    """(images that came, outcomes of torchvision): which of them each image of `alike` is."""
    known = torch.stack(outcomes(arrays.images[0], padding, flip)).flatten(1)
    images = resident(arrays, 64, augment=Augment(padding, flip), **options)
    x = torch.cat([x for epoch in range(epochs) for x, _ in images.epoch(epoch)])
    return (x.flatten(1)[:, None] == known[None]).all(2)


def drawn(*arguments, **options):
    """Which outcome each image is, in the order in which they came."""
    found = matches(*arguments, **options)
    assert (found.sum(1) == 1).all()
    return found.float().argmax(1)


# --- torchvision's pixels --------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("padding", "flip"), [(2, True), (2, False), (1, True), (0, True), (0, False)])
def test_every_crop_and_mirror_image_of_torchvision_comes_bit_for_bit_and_nothing_else(
    memory_format, channels, padding, flip
):
    arrays = alike(1200, channels)
    codes = drawn(arrays, padding, flip, form=Form(memory_format=memory_format))
    assert len(codes.unique()) == (2 * padding + 1) ** 2 * (1 + flip)


@formats
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_normalized_pixels_are_torchvisions(memory_format, padding):
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    arrays, augment, form = alike(100), Augment(padding, flip=True), Form(memory_format=memory_format)
    x = torch.cat([x for x, _ in Resident(arrays, 64, Normalize(mean, std), draw, augment=augment, form=form).epoch(0)])
    raw = torch.cat([x for x, _ in resident(arrays, 64, augment=augment, form=form).epoch(0)])
    torch.testing.assert_close(x, F.normalize(raw / 255, mean, std), atol=2e-6, rtol=0)


@formats
@pytest.mark.parametrize("height", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_images_need_not_be_square(memory_format, height, width):
    arrays = alike(600, height=height, width=width)
    found = matches(arrays, 1, flip=True, form=Form(memory_format=memory_format))
    assert found.any(1).all()  # of an image with one row some outcomes are zeros, and the same
    assert found.any(0).all()


@formats
def test_images_that_are_a_view_of_more_are_read_where_they_are(memory_format):
    whole = numbered(20)
    part = Arrays(whole.images[7:17], whole.labels[7:17], whole.classes)
    for x, y in resident(part, 4, form=Form(memory_format=memory_format)).epoch(0):
        assert x.equal(whole.images[y].float())


@formats
@pytest.mark.parametrize("padding", [0, 2])
def test_the_images_are_not_changed(memory_format, padding):
    arrays = numbered(30)
    before = arrays.images.clone()
    for x, _ in resident(arrays, 7, augment=Augment(padding, flip=True), form=Form(memory_format=memory_format)).epoch(
        0
    ):
        x.zero_()
    assert arrays.images.equal(before)


# --- torchvision's distribution --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("padding", "flip"), [(2, True), (1, True), (0, True), (2, False)])
def test_offsets_and_coins_are_uniform(padding, flip):
    codes = drawn(alike(4000), padding, flip)
    assert stats.chisquare(codes.bincount(minlength=(2 * padding + 1) ** 2 * (1 + flip))).pvalue > 0.01


@pytest.mark.parametrize("apart", [1, 2, 64])
def test_the_draws_of_two_samples_are_independent(apart):
    codes = drawn(alike(1000), 1, flip=True, epochs=8)
    table = torch.zeros(18, 18)
    table.index_put_((codes[:-apart], codes[apart:]), torch.ones(()), accumulate=True)
    assert stats.chi2_contingency(table).pvalue > 0.01


def test_top_left_and_coin_are_independent():
    codes = drawn(alike(8000), 1, flip=True)
    tops, lefts, coins = codes // 6, codes // 2 % 3, codes % 2
    for one, other in ((tops, lefts), (tops, coins), (lefts, coins)):
        table = torch.zeros(3, 3).index_put_((one, other), torch.ones(()), accumulate=True)
        assert stats.chi2_contingency(table[:, : other.max() + 1]).pvalue > 0.01


def test_crops_change_from_epoch_to_epoch_and_from_step_to_step():
    images = resident(alike(64), 16, augment=Augment(2, flip=True))
    batches = [x for epoch in range(3) for x, _ in images.epoch(epoch)]
    assert not any(one.equal(other) for one, other in itertools.combinations(batches, 2))


# --- orders ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.data())
def test_an_epoch_has_every_image_once_with_its_own_label(count, data):
    arrays = numbered(count)
    batch_size = data.draw(st.integers(1, count))
    batches = list(resident(arrays, batch_size).epoch(data.draw(st.integers(0, 9))))
    assert [len(y) for _, y in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert torch.cat([y for _, y in batches]).sort().values.equal(arrays.labels)
    for x, y in batches:
        assert x.equal(arrays.images[y].float())


@given(st.integers(1, 40), st.data())
def test_dropping_the_last_batch_drops_a_short_one_only(count, data):
    batch_size = data.draw(st.integers(1, count))
    short, whole = (resident(numbered(count), batch_size, drop_last=drop) for drop in (True, False))
    assert len(list(short.epoch(0))) == len(short) == count // batch_size
    assert len(list(whole.epoch(0))) == len(whole) == -(-count // batch_size)
    assert all(len(y) == batch_size for _, y in short.epoch(0))


def test_orders_are_uniform_and_differ_between_epochs():
    images = resident(numbered(4), 4)
    orders = torch.stack([y for epoch in range(2400) for _, y in images.epoch(epoch)])
    counts = orders.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.01


# --- the same batches ------------------------------------------------------------------------------------------------

ANY = Augment(2, flip=True)


@given(st.integers(1, 30), st.integers(0, 5), st.data())
def test_an_epoch_from_any_step_on_is_the_rest_of_the_whole_one(count, epoch, data):
    arrays = numbered(count)
    images = resident(arrays, data.draw(st.integers(1, count)), augment=ANY)
    start = data.draw(st.integers(0, len(images)))
    again = resident(arrays, images.batch_size, augment=ANY)  # as after a restart
    assert same(list(images.epoch(epoch))[start:], again.epoch(epoch, start))


@formats
@given(st.integers(1, 5), st.data())
def test_the_parts_of_all_ranks_are_the_batch_of_one(memory_format, world, data):
    count = data.draw(st.integers(world, 40))
    batch_size = data.draw(st.integers(world, count).filter(lambda size: count % size == 0 or count % size >= world))
    form, arrays = Form(memory_format=memory_format), numbered(count)
    alone = resident(arrays, batch_size, augment=ANY, form=form)
    ranks = [resident(arrays, batch_size, augment=ANY, form=form, part=Part(rank, world)) for rank in range(world)]
    assert {len(rank) for rank in ranks} == {len(alone)}
    for (x, y), *parts in zip(alone.epoch(3), *(rank.epoch(3) for rank in ranks), strict=True):
        sizes = [len(labels) for _, labels in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert torch.cat([images for images, _ in parts]).equal(x)
        assert torch.cat([labels for _, labels in parts]).equal(y)


@pytest.mark.parametrize("augment", [Augment(), Augment(2), Augment(0, flip=True), ANY], ids=repr)
def test_streams_are_asked_for_by_epoch_and_by_the_step_of_the_run(augment):
    asked = []

    def noting(number, name):
        asked.append((number, name))
        return draw(number, name)

    list(resident(numbered(10), 4, noting, augment=augment).epoch(2, start=1))
    names = ["crop"] * bool(augment.crop_padding) + ["flip"] * augment.flip
    assert asked == [(2, "order"), *((2 * 3 + step, name) for step in (1, 2) for name in names)]


def test_crops_do_not_depend_on_whether_there_are_mirror_images():
    plain, mirrored = (drawn(alike(100), 2, flip) for flip in (False, True))
    assert plain.equal(mirrored // 2)
    assert 0 < (mirrored % 2).sum() < 100


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    list(resident(numbered(10), 4, augment=ANY).epoch(0))
    assert torch.get_rng_state().equal(before)


# --- forms -----------------------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_batches_have_the_form_that_was_asked_for(memory_format, dtype):
    arrays, normalize = numbered(12), Normalize((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    form = Form("cpu", memory_format, dtype)
    for batches in (
        Resident(arrays, 5, normalize, draw, augment=ANY, form=form).epoch(0),
        evaluation_batches(arrays, 5, normalize, form=form),
    ):
        for x, y in batches:
            assert x.dtype == dtype
            assert y.dtype == torch.int64
            assert x.is_contiguous(memory_format=memory_format)


@formats
def test_half_precision_is_rounded_once(memory_format):
    arrays, normalize = numbered(12), Normalize((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    single, half = (
        Resident(arrays, 5, normalize, draw, augment=ANY, form=Form("cpu", memory_format, dtype)).epoch(0)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for (x, _), (z, _) in zip(single, half, strict=True):
        assert x.to(torch.bfloat16).equal(z)


def test_both_memory_formats_hold_the_same_numbers():
    planar, last = (
        Resident(numbered(12), 5, Normalize((0.5,) * 3, (0.2,) * 3), draw, augment=ANY, form=Form("cpu", lies))
        for lies in FORMATS
    )
    assert same(planar.epoch(1), last.epoch(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@formats
def test_batches_on_a_gpu_are_those_on_the_cpu(memory_format):
    arrays, normalize = numbered(300), Normalize((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    here, there = (
        [
            *Resident(arrays, 64, normalize, draw, augment=ANY, form=Form(device, memory_format)).epoch(2, 1),
            *evaluation_batches(arrays, 64, normalize, form=Form(device, memory_format)),
        ]
        for device in ("cpu", "cuda")
    )
    for (x, y), (a, b) in zip(here, there, strict=True):
        assert a.device.type == b.device.type == "cuda"
        assert a.is_contiguous(memory_format=memory_format)
        assert y.equal(b.cpu())
        torch.testing.assert_close(a.cpu(), x, atol=1e-6, rtol=0)


# --- evaluation ------------------------------------------------------------------------------------------------------


@formats
@given(st.integers(1, 30), st.integers(1, 5), st.data())
def test_evaluation_sees_everything_once_over_all_ranks(memory_format, count, world, data):
    arrays, batch_size = numbered(count), data.draw(st.integers(world, 40))
    seen = []
    for rank in range(world):
        batches = evaluation_batches(
            arrays, batch_size, bytes_of(3), form=Form(memory_format=memory_format), part=Part(rank, world)
        )
        assert len(batches) == len(list(batches))
        for x, y in batches:
            assert 1 <= len(y) <= -(-batch_size // world)
            assert x.equal(arrays.images[y].float())
            seen += y.tolist()
    assert sorted(seen) == list(range(count))
    assert world > 1 or seen == list(range(count))


def test_evaluation_can_be_gone_through_again():
    batches = evaluation_batches(numbered(10), 4, bytes_of(3))
    assert same(list(batches), list(batches))
    assert [len(y) for _, y in batches] == [4, 4, 2]


# --- errors ----------------------------------------------------------------------------------------------------------

GOOD = numbered(10)


@pytest.mark.parametrize(
    ("arrays", "batch_size", "options", "error", "text"),
    [
        (GOOD, 11, {}, DataError, r"batch_size is 11, and there are 10 images; it must be 10 or less"),
        (GOOD, 0, {}, DataError, r"batch_size is 0, for 1 rank together; it must be a whole number, 1 or more"),
        (GOOD, 2.5, {}, DataError, r"batch_size is 2\.5, for 1 rank together"),
        (GOOD, 3, {"part": Part(0, 4)}, DataError, r"batch_size is 3, for 4 ranks together; it must be .*, 4 or more"),
        (GOOD, 9, {"part": Part(0, 2)}, DataError, r"10 images in batches of 9 leave 1 .* 2 ranks: .*drop_last=True"),
        (GOOD, 4, {"part": Part(2, 2)}, OutOfRange, r"rank 2 of 2: ranks are 0 to 1"),
        (GOOD, 4, {"part": Part(-1, 2)}, OutOfRange, r"rank -1 of 2"),
        (GOOD, 4, {"part": Part(0, 0)}, OutOfRange, r"rank 0 of 0: .*there is at least one"),
        (GOOD, 4, {"form": Form(memory_format=torch.preserve_format)}, ShapeError, r"memory_format is torch\.preserve"),
        (
            GOOD._replace(images=GOOD.images.float()),
            4,
            {},
            ShapeError,
            r"images are torch\.float32 \(10, 3, 6, 5\); .* uint8",
        ),
        (GOOD._replace(images=GOOD.images[0]), 4, {}, ShapeError, r"images are torch\.uint8 \(3, 6, 5\); they must be"),
        (GOOD._replace(images=GOOD.images[:0]), 4, {}, ShapeError, r"images are torch\.uint8 \(0, 3, 6, 5\)"),
        (GOOD._replace(labels=GOOD.labels[:9]), 4, {}, ShapeError, r"labels are \(9,\) for 10 images; each needs one"),
    ],
)
def test_what_cannot_be_batched_is_refused(arrays, batch_size, options, error, text):
    with pytest.raises(error, match=text):
        Resident(arrays, batch_size, bytes_of(3), draw, **options)


def test_dropping_the_last_batch_leaves_nobody_without():
    ranks = [resident(GOOD, 9, part=Part(rank, 2), drop_last=True) for rank in range(2)]
    assert [[len(y) for _, y in rank.epoch(0)] for rank in ranks] == [[4], [5]]


def test_evaluation_takes_batches_larger_than_the_data_and_refuses_those_smaller_than_the_ranks():
    assert [len(y) for _, y in evaluation_batches(GOOD, 100, bytes_of(3))] == [10]
    with pytest.raises(DataError, match=r"batch_size is 2, for 3 ranks together"):
        evaluation_batches(GOOD, 2, bytes_of(3), part=Part(0, 3))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: Normalize((0.5,), (0.1, 0.1)),
            ShapeError,
            r"mean has 1 numbers and std 2; each channel needs one of both",
        ),
        (lambda: Normalize((0.5,), (0.0,)), OutOfRange, r"mean \(0\.5,\), std \(0\.0,\): .* std greater than 0"),
        (lambda: Normalize((float("nan"),), (1.0,)), OutOfRange, r"mean \(nan,\)"),
        (lambda: Normalize((0.5,), (float("inf"),)), OutOfRange, r"std \(inf,\)"),
        (lambda: Resident(GOOD, 4, bytes_of(1), draw), ShapeError, r"mean and std have 1 numbers, .* 3 channels"),
        (lambda: evaluation_batches(GOOD, 4, bytes_of(4)), ShapeError, r"mean and std have 4 numbers, .* 3 channels"),
        (lambda: Augment(-1), OutOfRange, r"crop_padding is -1; it must be a whole number of pixels"),
        (lambda: Augment(1.5), OutOfRange, r"crop_padding is 1\.5"),
        (
            lambda: resident(GOOD, 4).epoch(0, 4),
            OutOfRange,
            r"epoch 0 from step 4: an epoch is 0 or more, and has 3 steps",
        ),
        (lambda: resident(GOOD, 4).epoch(0, -1), OutOfRange, r"epoch 0 from step -1"),
        (lambda: resident(GOOD, 4).epoch(-1), OutOfRange, r"epoch -1 from step 0"),
    ],
)
def test_numbers_out_of_range_are_refused_at_once(make, error, text):
    with pytest.raises(error, match=text):
        make()
