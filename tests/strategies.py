"""Features, indices and everything that moments can range over: lists to go through, and hypothesis strategies."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from momentex import GN, IN, LN, LRN, PONO
from momentex.over import Over

SIZES = [1, 2, 3, 5, 7, 11]

OVERS: list[Over] = [
    *(PONO(only=only) for only in (None, "mean", "std")),
    PONO(groups=2),
    PONO(groups=2, only="std"),
    *(IN(only=only) for only in (None, "mean", "std")),
    *(LN(only=only) for only in (None, "mean", "std")),
    *(GN(2, only=only) for only in (None, "mean", "std")),
    LRN(),
]


def has_channels(over: Over) -> bool:
    """Do channels share moments? Written down here again: a test must not ask the code what is right."""
    return not isinstance(over, IN)


def has_space(over: Over) -> bool:
    """Do positions share moments?"""
    return isinstance(over, IN | LN | GN)


def groups_of(over: Over) -> int:
    return over.groups if isinstance(over, PONO | GN) else 1


POOLED = [over for over in OVERS if has_space(over)]  # these serve masks and ragged sets


class Given(NamedTuple):
    """Features, what must be said about them, how many samples they are, and which of those sit out."""

    h: Tensor
    arguments: dict[str, Any]
    samples: int
    sits_out: tuple[int, ...] = ()


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 2 + 1).to(dtype)


def _strided(dtype: torch.dtype) -> Given:
    return Given(_random(5, 8, 3, 4, dtype=dtype)[:, ::2, :, 1:3], {}, 5)


def _masked(dtype: torch.dtype) -> Given:
    valid = torch.tensor([7, 1, 4, 2, 0])
    return Given(_random(5, 4, 7, dtype=dtype), {"mask": torch.arange(7) < valid[:, None]}, 5, (1, 4))


def _masked_image(dtype: torch.dtype) -> Given:
    mask = torch.tensor([[[1, 0], [0, 1], [1, 1]], [[0, 0], [1, 1], [0, 0]], [[1, 0], [0, 0], [0, 0]]])
    return Given(_random(3, 4, 3, 2, dtype=dtype), {"mask": mask}, 3, (2,))


def _masked_tokens(dtype: torch.dtype) -> Given:
    valid = torch.tensor([3, 7, 5, 6])
    arguments = {"mask": torch.arange(7) < valid[:, None], "channel_dim": -1, "skip": 2}
    return Given(_random(4, 7, 4, dtype=dtype), arguments, 4, (0,))


def _ragged(dtype: torch.dtype) -> Given:
    batch = torch.tensor([3, 0, 0, 2, 3, 0, 5, 3, 2, 0, 5, 5, 5])  # set 4 is empty, set 1 too
    batch[1] = 1  # one point
    return Given(_random(13, 4, dtype=dtype), {"batch": batch}, 6, (1, 4))


KINDS: dict[str, Callable[[torch.dtype], Given]] = {
    "vectors": lambda dtype: Given(_random(5, 4, dtype=dtype), {}, 5),
    "sequences": lambda dtype: Given(_random(5, 4, 7, dtype=dtype), {}, 5),
    "images": lambda dtype: Given(_random(5, 4, 3, 2, dtype=dtype), {}, 5),
    "volumes": lambda dtype: Given(_random(3, 4, 2, 3, 2, dtype=dtype), {}, 3),
    "channels last": lambda dtype: Given(_random(5, 4, 3, 2, dtype=dtype).to(memory_format=torch.channels_last), {}, 5),
    "strided": _strided,
    "expanded": lambda dtype: Given(_random(1, 4, 3, 2, dtype=dtype).expand(5, -1, -1, -1), {}, 5),
    "tokens": lambda dtype: Given(_random(5, 7, 4, dtype=dtype), {"channel_dim": -1}, 5),
    "time first": lambda dtype: Given(_random(7, 5, 4, dtype=dtype), {"channel_dim": -1, "batch_dim": 1}, 5),
    "prefix": lambda dtype: Given(_random(5, 7, 4, dtype=dtype), {"channel_dim": -1, "skip": 2}, 5),
    "one sample": lambda dtype: Given(_random(1, 4, 3, 2, dtype=dtype), {}, 1),
    "masked": _masked,
    "masked images": _masked_image,
    "masked tokens": _masked_tokens,
    "ragged": _ragged,
}


def fits(over: Over, kind: str) -> bool:
    """Are there moments of this sort for features of this kind?"""
    if kind in ("masked", "masked images", "masked tokens", "ragged"):
        return has_space(over)
    return has_channels(over) or kind != "vectors"


def fitting(*kinds: str, overs: list[Over] = OVERS) -> list[tuple[Over, str]]:
    return [(over, kind) for over in overs for kind in kinds or KINDS if fits(over, kind)]


def indices_for(samples: int) -> dict[str, Tensor]:
    """A derangement, a permutation with a fixed point, and a map in which sample 0 gives to nearly all."""
    turned = torch.arange(samples).roll(1)
    partly = torch.cat([torch.arange(samples - 1).roll(1), torch.tensor([samples - 1])]) if samples > 1 else turned
    crowded = torch.zeros(samples, dtype=torch.int64)
    crowded[-1] = samples // 2
    return {"derangement": turned, "fixed point": partly, "no permutation": crowded}


class Case(NamedTuple):
    """One example of hypothesis."""

    h: Tensor
    index: Tensor
    over: Over


def permutations(size: int) -> st.SearchStrategy[Tensor]:
    return st.permutations(range(size)).map(torch.tensor)


def maps(size: int) -> st.SearchStrategy[Tensor]:
    return st.lists(st.integers(0, size - 1), min_size=size, max_size=size).map(torch.tensor)


@st.composite
def cases(draw: st.DrawFn, index: Callable[[int], st.SearchStrategy[Tensor]] = maps) -> Case:
    """Features of rank 2 to 5 with odd and prime sizes, moments that exist for them, and an index."""
    over = draw(st.sampled_from(OVERS))
    batch, rank = draw(st.sampled_from(SIZES)), draw(st.integers(2 if has_channels(over) else 3, 5))
    channels = draw(st.sampled_from([2, 3, 5, 7])) * groups_of(over)
    space = [
        draw(st.sampled_from([2, 3, 5] if has_space(over) and axis == 0 else [1, 2, 3])) for axis in range(rank - 2)
    ]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    h = torch.randn(batch, channels, *space, generator=generator, dtype=torch.float64) * 3 + 2
    return Case(h, draw(index(batch)), over)
