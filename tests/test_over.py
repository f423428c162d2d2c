"""The values that say what moments range over."""

import pickle
import subprocess
import sys

import pytest

from momentex import GN, IN, LN, LRN, PONO
from tests.strategies import OVERS


@pytest.mark.parametrize("over", OVERS, ids=repr)
def test_a_value_equals_its_copy_and_what_its_repr_says(over):
    assert eval(repr(over)) == over == pickle.loads(pickle.dumps(over))
    assert hash(eval(repr(over))) == hash(over)


def test_values_of_different_kinds_differ():
    assert len(set(OVERS)) == len(OVERS)
    assert LN() != IN()
    assert PONO() != LRN()


def test_values_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign"):
        PONO().groups = 2


def test_values_need_no_torch():
    code = "import momentex.over as over, sys; over.GN(4); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("groups", [0, -1, 1.5, "4", True, None])
@pytest.mark.parametrize("kind", [PONO, GN])
def test_groups_that_are_no_whole_number_are_refused(kind, groups):
    wanted = rf"^groups is {groups!r}; {kind.__name__} needs a whole number of groups, 1 or more\.$"
    with pytest.raises(ValueError, match=wanted):
        kind(groups)


@pytest.mark.parametrize("kind", [PONO, IN, LN, LRN, lambda only: GN(4, only=only)])
def test_an_unknown_moment_is_refused(kind):
    with pytest.raises(
        ValueError, match=r"^only is 'var'; it is 'mean' \(.*\), 'std' \(.*\), or None \(move both\)\.$"
    ):
        kind(only="var")


def test_lrn_has_no_mean_to_move():
    with pytest.raises(ValueError, match=r"^LRN\(only='mean'\) would move nothing: .* Use PONO\(only='mean'\)\.$"):
        LRN(only="mean")
