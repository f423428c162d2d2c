"""What features and their companions must be: everything that shapes can tell, by the text of the error."""

import pytest
import torch

from momentex import GN, IN, LN, LRN, PONO, Moments, denormalize, exchange_moments, normalize
from momentex.errors import FeatureError, GroupError, MomentexError, OutOfRange, PairingError, ShapeError
from momentex.exchange import How

IMAGE = torch.randn(4, 6, 3, 2)
POINTS = torch.randn(5, 6)
TOKENS = torch.randn(4, 7, 6)

REFUSED = {
    "integer features": (
        FeatureError,
        lambda: normalize(IMAGE.int()),
        r"features are a tensor of torch\.int32; moments need a floating-point tensor\. Attach to a later layer\.",
    ),
    "complex features": (
        FeatureError,
        lambda: normalize(IMAGE.cfloat()),
        r"features are a tensor of torch\.complex64;",
    ),
    "a tuple": (FeatureError, lambda: normalize((IMAGE,)), r"features are a tuple; moments need a floating-point"),
    "one axis": (
        ShapeError,
        lambda: normalize(IMAGE[0, 0, 0]),
        r"features \(2,\) have 1 axes; they need a batch and a channel axis\.",
    ),
    "channel_dim": (
        ShapeError,
        lambda: normalize(POINTS, channel_dim=2),
        r"channel_dim=2, but .* \(5, 6\) have 2 axes",
    ),
    "batch_dim": (ShapeError, lambda: normalize(POINTS, batch_dim=-3), r"batch_dim=-3, but .* \(5, 6\) have 2 axes"),
    "one axis twice": (
        ShapeError,
        lambda: normalize(TOKENS, channel_dim=-3),
        r"batch_dim and channel_dim are both axis 0 of features \(4, 7, 6\)\.",
    ),
    "skip below zero": (OutOfRange, lambda: normalize(TOKENS, skip=-1), r"skip is -1; it is the number of first pos"),
    "skip true": (
        OutOfRange,
        lambda: normalize(TOKENS, skip=True),
        r"skip is True; it is the number of first positions",
    ),
    "skip in images": (
        ShapeError,
        lambda: normalize(IMAGE, skip=1),
        r"skip=1 leaves the first positions alone; .*more than 1 positions.*Given \(sample first\): \(4, 6, 3, 2\)",
    ),
    "skip everything": (
        ShapeError,
        lambda: normalize(TOKENS, channel_dim=-1, skip=7),
        r"skip=7 .* more than 7 positions.* \(4, 6, 7\)",
    ),
    "eps": (OutOfRange, lambda: normalize(IMAGE, eps=0.0), r"eps is 0\.0; it must be greater than 0, or constant"),
    "eps nan": (OutOfRange, lambda: normalize(IMAGE, eps=float("nan")), r"eps is nan; it must be greater than 0"),
    "eps of How": (OutOfRange, lambda: How(eps=-1.0), r"eps is -1\.0; it must be greater than 0"),
    "correction": (OutOfRange, lambda: normalize(IMAGE, correction=2), r"correction is 2; it is 1 \(unb.*\) or 0 \("),
    "groups": (
        GroupError,
        lambda: normalize(IMAGE, GN(4)),
        r"GN\(groups=4, only=None\): 4 groups do not divide the 6 channels of features "
        r"\(4, 6, 3, 2\); possible are 1, 2, 3, 6\.",
    ),
    "groups of PONO": (
        GroupError,
        lambda: normalize(IMAGE, PONO(5)),
        r"PONO.*: 5 groups do not divide the 6 channels of",
    ),
    "PONO of one channel": (
        GroupError,
        lambda: normalize(IMAGE[:, :1]),
        r"PONO\(groups=1, only=None\) takes moments over the channel axis of a group, which for features "
        r"\(4, 1, 3, 2\) has one element: .* Attach to a layer with more, or choose other moments\.",
    ),
    "PONO with groups of one": (GroupError, lambda: normalize(IMAGE, PONO(6)), "channel axis of a group, .* one elem"),
    "IN of one position": (GroupError, lambda: normalize(IMAGE[..., :1, :1], IN()), "over the spatial axes, which for"),
    "IN of vectors": (GroupError, lambda: normalize(POINTS, IN()), "over the spatial axes, which for features"),
    "LN of one element": (
        GroupError,
        lambda: normalize(POINTS[:, :1], LN()),
        r"over the channel and spatial axes, which for features \(5, 1\) has one element",
    ),
    "GN of one element": (GroupError, lambda: normalize(POINTS, GN(6)), "over the channel and spatial axes, which for"),
    "LN of no position": (
        GroupError,
        lambda: normalize(IMAGE[..., :0], LN()),
        r"over the channel and spatial axes, which for features \(4, 6, 3, 0\) has no element",
    ),
    "IN of no channel": (GroupError, lambda: normalize(IMAGE[:, :0], IN()), r"\(4, 0, 3, 2\)"),
    "PONO and mask": (
        GroupError,
        lambda: normalize(IMAGE, mask=torch.ones(4, 3, 2, dtype=torch.bool)),
        r"PONO exchanges position by position, and under a mask, partners may have padding\. Use IN\(\), LN\(\) or GN",
    ),
    "LRN and batch": (
        GroupError,
        lambda: normalize(POINTS, LRN(), batch=torch.tensor([0, 0, 1, 1, 1])),
        r"LRN exchanges position by position, and ragged sets have no positions in common\. Use IN\(\), LN\(\) or GN",
    ),
    "mask of another shape": (
        ShapeError,
        lambda: normalize(IMAGE, LN(), mask=torch.ones(4, 3, dtype=torch.bool)),
        r"mask \(4, 3\) does not fit features .* = \(4, 6, 3, 2\); it must be \(batch, \*space\) = \(4, 3, 2\), true",
    ),
    "mask in another order": (
        ShapeError,
        lambda: normalize(TOKENS, LN(), channel_dim=-1, batch_dim=1, mask=torch.ones(4, 7, dtype=torch.bool)),
        r"mask \(4, 7\) does not fit .* = \(7, 6, 4\); it must be \(batch, \*space\) = \(7, 4\)",
    ),
    "nested features": (
        FeatureError,
        lambda: normalize(torch.nested.as_nested_tensor([POINTS, POINTS], layout=torch.jagged), IN(), channel_dim=-1),
        r"features are nested; moments need a dense tensor: pad it and give a mask, or join the sets",
    ),
    "sparse features": (FeatureError, lambda: normalize(POINTS.to_sparse()), r"a tensor of torch\.sparse_coo; moments"),
    "mask of lists": (
        ShapeError,
        lambda: normalize(TOKENS, LN(), mask=[[1] * 6] * 4),
        r"mask is a list; it must be a tensor: \(batch, \*space\), true where an element counts\.",
    ),
    "batch of a list": (
        ShapeError,
        lambda: normalize(POINTS, LN(), batch=[0, 0, 1, 1, 1]),
        r"batch is a list; it must be a tensor: \(points,\) whole numbers, the set that each point belongs to\.",
    ),
    "mask of floats": (
        ShapeError,
        lambda: normalize(IMAGE, LN(), mask=torch.ones(4, 3, 2)),
        r"mask is torch\.float32; it must be bool \(or 0 / 1\), true where an element counts\.",
    ),
    "batch and space": (
        ShapeError,
        lambda: normalize(TOKENS, LN(), batch=torch.zeros(4, dtype=torch.int64)),
        r"a batch vector makes features \(all points, channels\), without mask or skip; given \(4, 7, 6\)\.",
    ),
    "batch and mask": (
        ShapeError,
        lambda: normalize(POINTS, LN(), batch=torch.zeros(5, dtype=torch.int64), mask=torch.ones(5, dtype=torch.bool)),
        r"without mask or skip; given \(5, 6\), mask\.",
    ),
    "batch and skip": (
        ShapeError,
        lambda: normalize(POINTS, LN(), batch=torch.zeros(5, dtype=torch.int64), skip=1),
        r"without mask or skip; given \(5, 6\), skip\.",
    ),
    "batch of floats": (
        ShapeError,
        lambda: normalize(POINTS, LN(), batch=torch.zeros(5)),
        r"batch is torch\.float32 \(5,\); it must be whole numbers, one for each of the 5 points: the set that",
    ),
    "batch of another length": (
        ShapeError,
        lambda: normalize(POINTS, LN(), batch=torch.zeros(4, dtype=torch.int64)),
        r"batch is torch\.int64 \(4,\); it must be whole numbers, one for each of the 5 points",
    ),
    "batch below zero": (
        PairingError,
        lambda: normalize(POINTS, LN(), batch=torch.tensor([0, 0, -1, 1, 1])),
        r"batch has numbers from -1 to 1;",
    ),
    "batch beyond the sets": (
        PairingError,
        lambda: exchange_moments(POINTS, torch.tensor([1, 0]), LN(), batch=torch.tensor([0, 0, 2, 1, 1])),
        r"batch has numbers from 0 to 2; with 2 sets they must be 0 to 2, exclusive\.",
    ),
    "a name instead of a value": (GroupError, lambda: normalize(IMAGE, "pono"), r"over is 'pono'; .*PONO\(\)"),
    "mean and std that differ": (
        ShapeError,
        lambda: denormalize(IMAGE, Moments(torch.zeros(4, 1, 3, 2), torch.ones(4, 1, 1, 1))),
        r"mean \(4, 1, 3, 2\) and std \(4, 1, 1, 1\) must have one shape, of 2 axes or more\.",
    ),
    "moments of another spatial size": (
        ShapeError,
        lambda: denormalize(IMAGE, normalize(torch.randn(4, 6, 2, 2))[1]),
        r"moments .* = \(4, 1, 2, 2\) do not fit features .* = \(4, 6, 3, 2\): .* Moments at each position fit no",
    ),
    "moments of another batch": (
        ShapeError,
        lambda: denormalize(IMAGE, normalize(torch.randn(3, 6, 3, 2), LN())[1]),
        r"moments .* = \(3, 1, 1, 1\) do not fit features .* = \(4, 6, 3, 2\): the batch must be equal",
    ),
    "moments of other groups": (
        ShapeError,
        lambda: denormalize(IMAGE, normalize(torch.randn(4, 8, 3, 2), GN(4))[1]),
        r"moments .* = \(4, 4, 1, 1\) do not fit features .* the groups must divide the channels",
    ),
    "moments of too few sets": (
        PairingError,
        lambda: denormalize(POINTS, Moments(torch.zeros(2, 1), torch.ones(2, 1)), batch=torch.tensor([0, 0, 2, 1, 1])),
        r"batch has numbers from 0 to 2; with 2 sets they must be 0 to 2, exclusive\.",
    ),
}


@pytest.mark.parametrize(("kind", "call", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_with_a_text_that_helps(kind, call, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MomentexError)


def test_the_error_of_a_batch_vector_speaks_of_sets_only_if_somebody_said_how_many():
    with pytest.raises(PairingError, match="batch has numbers from -1 to 1") as caught:
        normalize(POINTS, LN(), batch=torch.tensor([-1, 0, 0, 1, 1]))
    assert "None" not in str(caught.value)


def test_nothing_is_refused_that_has_a_meaning():
    normalize(IMAGE[:, :1], LRN())  # a second moment of one element exists
    normalize(IMAGE, LN(), mask=torch.ones(4, 3, 2, dtype=torch.int64))
    normalize(POINTS, LN(), batch=torch.zeros(5, dtype=torch.int32))
    exchange_moments(IMAGE, torch.tensor([1, 0, 2, 3], dtype=torch.int32))
