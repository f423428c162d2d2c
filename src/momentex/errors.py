"""Every error that momentex raises on purpose. Each is also a ValueError, so `except ValueError` is enough."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real


class MomentexError(ValueError):
    """Something was asked for that cannot be done; the message says what was given, what is needed and what to do."""


class LayerNotFound(MomentexError):
    """The model has no layer of that name."""


class AttachmentError(MomentexError):
    """The model cannot be attached to as it is: compiled already, replicated by DataParallel, scripted."""


class FeatureError(MomentexError):
    """Features whose moments cannot be exchanged: not a floating-point tensor, or nothing that could be selected."""


class ShapeError(MomentexError):
    """Tensors that must fit each other do not."""


class GroupError(MomentexError):
    """The moments that were asked for do not exist for features of this shape."""


class PairingError(MomentexError):
    """An index, a plan or a policy that does not say who gets whose moments."""


class OutOfRange(MomentexError):
    """A number outside of the range in which it means something."""


class StepError(MomentexError):
    """A step was used in a way in which features and labels would not have been mixed together."""


class LayerDidNotFire(StepError):
    """The block ran and the layer did not see exactly one forward pass."""


class TargetError(MomentexError):
    """Labels, weights or a criterion that cannot be combined exactly."""


class DataError(MomentexError):
    """Data that is missing, damaged or not what it says."""


class RecipeError(MomentexError):
    """A recipe that contradicts itself or does not exist."""


class RunError(MomentexError):
    """A run directory that is in use, of another recipe or damaged; a run that cannot go on."""


class RunInUse(RunError):
    """A run directory in which another process trains."""


class MomentexWarning(UserWarning):
    """Something works, and is probably not what you want."""


def did_you_mean(name: str, candidates: Iterable[str], most: int = 3) -> str:
    """`Did you mean 'a' or 'b'?` with the nearest candidates, or nothing.

    >>> did_you_mean("layr1", ["layer1", "layer2", "fc"], most=1)
    "Did you mean 'layer1'?"
    """
    near = get_close_matches(name, list(candidates), n=most, cutoff=0.6)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


def check_fraction(name: str, value: float) -> float:
    """`value` as a float if it lies in [0, 1]."""
    if not isinstance(value, Real) or not 0 <= value <= 1:  # NaN fails the comparison
        raise OutOfRange(f"{name} is {value!r}; it must be a number between 0 and 1.")
    return float(value)
