"""Batches out of memory: images stay bytes, padded once; a batch is cut out of them, mirrored and normalized at once.

Everything random about a batch is drawn on the CPU for the whole batch of all ranks, from generators that the caller
gives for a number and a name. So batch n of an epoch is the same whether the epoch ran through or was resumed, on every
device, and however many ranks there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from momentex.data.arrays import Arrays
from momentex.errors import DataError, OutOfRange, ShapeError

Draw = Callable[[int, str], torch.Generator]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Augment:
    """What is done to an image of the training set: zeros around it, a crop of its own size, mirrored every other time.

    The same distribution as torchvision's RandomCrop(size, padding=crop_padding) and RandomHorizontalFlip().

    >>> Augment(crop_padding=4, flip=True)
    Augment(crop_padding=4, flip=True)
    """

    crop_padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if type(self.crop_padding) is not int or self.crop_padding < 0:
            raise OutOfRange(f"crop_padding is {self.crop_padding!r}; it must be a whole number of pixels, 0 or more.")


@dataclass(frozen=True)
class Normalize:
    """(x / 255 − mean) / std for each channel, as one multiplication and one addition.

    >>> Normalize(mean=(0.5,), std=(0.25,))
    Normalize(mean=(0.5,), std=(0.25,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ShapeError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}; each channel needs one of both."
            )
        if not all(map(math.isfinite, self.mean)) or not all(0 < std < math.inf for std in self.std):
            raise OutOfRange(f"mean {self.mean}, std {self.std}: both must be finite, and std greater than 0.")

    def factors(self, channels: int) -> tuple[Tensor, Tensor]:
        """scale and shift (C,), so that the result is scale · x + shift."""
        if len(self.mean) != channels:
            raise ShapeError(
                f"mean and std have {len(self.mean)} numbers, and the images have {channels} channels; each needs one."
            )
        mean, std = (torch.tensor(numbers, dtype=torch.float64) for numbers in (self.mean, self.std))
        return (1 / (255 * std)).float(), (-mean / std).float()


class Form(NamedTuple):
    """Where batches go, how they lie in memory, and in which floats."""

    device: torch.device | str = "cpu"
    memory_format: torch.memory_format = torch.contiguous_format
    dtype: torch.dtype = torch.float32


class Part(NamedTuple):
    """Which of several equal processes this is. Each takes its contiguous slice of every batch."""

    rank: int = 0
    world: int = 1

    def of(self, count: int) -> slice:
        """This rank's slice of `count`: together they are everything, once; sizes differ by one at most.

        >>> [Part(rank, 3).of(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)


class Resident:
    """The training set in memory, shuffled, augmented and normalized. `batch_size` is that of all ranks together.

    draw(number, name) is the generator of one draw: the order of an epoch comes from (epoch, "order"), where the images
    of a step are cut from (step, "crop"), and which are mirrored from (step, "flip"), steps being counted through all
    epochs. With the plans of momentex: draw=lambda step, name: momentex.stream(seed, step, name).

    The last batch of an epoch is as short as it comes out, unless `drop_last`.

    >>> arrays = Arrays(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2, ("cat", "dog"))
    >>> numbered = lambda number, name: torch.Generator().manual_seed(number)
    >>> batches = Resident(arrays, 4, Normalize((0.5,) * 3, (0.25,) * 3), numbered, augment=Augment(1, flip=True))
    >>> len(batches), [(tuple(x.shape), tuple(y.shape)) for x, y in batches.epoch(0, start=1)]
    (3, [((4, 3, 8, 8), (4,)), ((2, 3, 8, 8), (2,))])
    """

    def __init__(
        self,
        arrays: Arrays,
        batch_size: int,
        normalize: Normalize,
        draw: Draw,
        *,
        augment: Augment = Augment(),
        form: Form = Form(),  # noqa: B008
        part: Part = Part(),  # noqa: B008
        drop_last: bool = False,
    ) -> None:
        _check(arrays, batch_size, part)
        count = len(arrays.images)
        if batch_size > count:
            raise DataError(f"batch_size is {batch_size}, and there are {count} images; it must be {count} or less.")
        if count % batch_size and count % batch_size < part.world and not drop_last:
            raise DataError(
                f"{count} images in batches of {batch_size} leave {count % batch_size} for the last one, and there are "
                f"{part.world} ranks: one would get nothing. Use drop_last=True or another batch_size."
            )
        self.batch_size, self._count = batch_size, count
        self._steps = count // batch_size if drop_last else math.ceil(count / batch_size)
        self._windows = _Windows(arrays, normalize, augment.crop_padding, form)
        self._augment, self._draw, self._part = augment, draw, part

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from step `start` on: bit for bit those that the whole epoch has there."""
        if number < 0 or not 0 <= start <= len(self):
            raise OutOfRange(f"epoch {number} from step {start}: an epoch is 0 or more, and has {len(self)} steps.")
        order = torch.randperm(self._count, generator=self._draw(number, "order"))
        return (self._batch(order, number, step) for step in range(start, len(self)))

    def _batch(self, order: Tensor, epoch: int, step: int) -> Batch:
        number, padding = epoch * len(self) + step, self._augment.crop_padding
        index = order[step * self.batch_size : (step + 1) * self.batch_size]
        mine = self._part.of(len(index))
        corners = torch.zeros(2, len(index), dtype=torch.int64)
        if padding:
            corners.random_(0, 2 * padding + 1, generator=self._draw(number, "crop"))
        mirrored = None
        if self._augment.flip:
            coins = torch.rand(len(index), generator=self._draw(number, "flip"))
            mirrored = (coins[mine] < 0.5).nonzero().squeeze(1)
        return self._windows.cut(torch.cat([index[None], corners])[:, mine], mirrored)


class Evaluation:
    """A set in order, as it is: what `evaluation_batches` gives. It can be gone through any number of times."""

    def __init__(self, windows: _Windows, count: int, batch_size: int, part: Part) -> None:
        self._windows, self._count, self.batch_size, self._part = windows, count, batch_size, part

    def __len__(self) -> int:
        return sum(1 for _ in self._slices())

    def __iter__(self) -> Iterator[Batch]:
        return (self._windows.all_of(part) for part in self._slices())

    def _slices(self) -> Iterator[slice]:
        for start in range(0, self._count, self.batch_size):
            part = self._part.of(min(self.batch_size, self._count - start))
            if part.start < part.stop:
                yield slice(start + part.start, start + part.stop)


def evaluation_batches(
    arrays: Arrays,
    batch_size: int,
    normalize: Normalize,
    *,
    form: Form = Form(),  # noqa: B008
    part: Part = Part(),  # noqa: B008
) -> Evaluation:
    """The images in order, neither shuffled nor augmented; each exactly once over all ranks, so that sums are exact.

    Where the last batch has fewer images than there are ranks, some ranks have one batch less.

    >>> arrays = Arrays(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5), tuple("abcde"))
    >>> [y for _, y in evaluation_batches(arrays, 4, Normalize((0.5,) * 3, (0.25,) * 3))]
    [tensor([0, 1, 2, 3]), tensor([4])]
    """
    _check(arrays, batch_size, part)
    return Evaluation(_Windows(arrays, normalize, 0, form), len(arrays.images), batch_size, part)


class _Windows:
    """All crops of all padded images, as a view: (N, top, left, rows, bytes of a row) or, planar, (…, C, H, W)."""

    def __init__(self, arrays: Arrays, normalize: Normalize, padding: int, form: Form) -> None:
        images = arrays.images
        count, channels, height, width = images.shape
        scale, shift = normalize.factors(channels)
        if form.memory_format not in (torch.contiguous_format, torch.channels_last):
            raise ShapeError(
                f"memory_format is {form.memory_format}; it must be torch.contiguous_format or channels_last."
            )
        self._last = form.memory_format == torch.channels_last
        padded = _padded(images, padding, last=self._last, device=form.device)
        offsets = 2 * padding + 1
        if self._last:
            # A row of a crop is one run of bytes, and one long axis to normalize along: channels would be an axis of 3.
            image, row, pixel = padded.stride()[:3]
            shape, strides = (count, offsets, offsets, height, width * channels), (image, row, pixel, row, 1)
            scale, shift = scale.repeat(width), shift.repeat(width)
        else:
            image, plane, row, pixel = padded.stride()
            shape, strides = (count, offsets, offsets, channels, height, width), (image, row, pixel, plane, row, pixel)
            scale, shift = scale.view(-1, 1, 1), shift.view(-1, 1, 1)
        self._views = padded.as_strided(shape, strides)
        self._scale, self._shift = scale.to(form.device), shift.to(form.device)
        self._labels = arrays.labels.to(form.device)
        self._size, self._form = (height, width, channels), form

    def cut(self, places: Tensor, mirrored: Tensor | None) -> Batch:
        """`places` is (image, top, left) × batch; `mirrored` says which of the batch are. Both on the CPU."""
        index, top, left = places.to(self._form.device, non_blocking=True)
        pixels = self._views[index, top, left]
        if mirrored is not None:
            mirrored = mirrored.to(self._form.device, non_blocking=True)
            rows = pixels.view(len(pixels), *self._size) if self._last else pixels
            rows.index_copy_(0, mirrored, rows.index_select(0, mirrored).flip(2 if self._last else 3))
        return self._normalized(pixels), self._labels[index]

    def all_of(self, part: slice) -> Batch:
        return self._normalized(self._views[part, 0, 0]), self._labels[part]

    def _normalized(self, pixels: Tensor) -> Tensor:
        x = torch.addcmul(self._shift, pixels, self._scale)
        if self._last:
            x = x.view(len(x), *self._size).permute(0, 3, 1, 2)
        return x.to(self._form.dtype)


def _padded(images: Tensor, padding: int, *, last: bool, device: torch.device | str) -> Tensor:
    """The images with zeros around them, (N, H, W, C) if channels are to be last. Itself, where nothing changes."""
    images = (images.permute(0, 2, 3, 1) if last else images).to(device)
    if not padding:
        return images.contiguous()
    count, *size = images.shape
    rows, columns = (0, 1) if last else (1, 2)
    size[rows], size[columns] = size[rows] + 2 * padding, size[columns] + 2 * padding
    padded = images.new_zeros(count, *size)
    inner = slice(padding, -padding)
    padded[(slice(None), inner, inner) if last else (slice(None), slice(None), inner, inner)] = images
    return padded


def _check(arrays: Arrays, batch_size: int, part: Part) -> None:
    images, labels = arrays.images, arrays.labels
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        raise ShapeError(f"images are {images.dtype} {tuple(images.shape)}; they must be uint8 (N, C, H, W).")
    if labels.shape != images.shape[:1]:
        raise ShapeError(f"labels are {tuple(labels.shape)} for {len(images)} images; each needs one.")
    if part.world < 1 or not 0 <= part.rank < part.world:
        raise OutOfRange(
            f"rank {part.rank} of {part.world}: ranks are 0 to {part.world - 1}, and there is at least one."
        )
    if type(batch_size) is not int or batch_size < part.world:
        raise DataError(
            f"batch_size is {batch_size!r}, for {part.world} rank{'s' * (part.world > 1)} together; it must be a whole "
            f"number, {part.world} or more."
        )
