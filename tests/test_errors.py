"""Errors: one root, near names, fractions."""

import inspect

import pytest

from momentex import errors
from momentex.errors import check_fraction, did_you_mean

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if not issubclass(kind, Warning)])
def test_every_error_is_a_value_error_and_says_when_it_is_raised(kind):
    assert issubclass(kind, ValueError)
    assert issubclass(kind, errors.MomentexError)
    assert kind.__doc__


def test_our_warning_is_a_users_warning():
    assert issubclass(errors.MomentexWarning, UserWarning)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("layer1", "Did you mean 'layer1' or 'layer3'?"),  # of equally near ones the last
        ("fcc", "Did you mean 'fc'?"),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_near_names_are_suggested_and_far_ones_are_not(name, answer):
    assert did_you_mean(name, ["layer1", "layer2", "layer3", "fc"], most=2) == answer


@pytest.mark.parametrize("value", [0, 1, 0.0, 0.5, 1.0, True])
def test_a_fraction_becomes_a_float(value):
    assert check_fraction("p", value) == value
    assert type(check_fraction("p", value)) is float


@pytest.mark.parametrize("value", [-1e-9, 1.0000001, float("nan"), float("inf"), "0.5", None, 1j])
def test_what_is_no_fraction_is_refused_by_name(value):
    with pytest.raises(errors.OutOfRange, match=r"^p is .*; it must be a number between 0 and 1\.$"):
        check_fraction("p", value)
