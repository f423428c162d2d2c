"""The package of the data: what importing it costs, and its names."""

import pytest

import momentex.data
from tests.test_imports import modules_after


@pytest.mark.parametrize(
    "code",
    [
        "import momentex.data",
        "import momentex.data.fetch, momentex.data.official",
        "from pathlib import Path; from momentex.data import describe, find\n"
        "assert [find(about.name, Path('/nowhere')) for about in describe()[1:]] == [None] * 4",
    ],
)
def test_what_is_there_is_said_without_torch_numpy_and_pillow(code):
    heavy = {"torch", "numpy", "PIL", "torchvision", "sklearn"}
    assert not {module.split(".")[0] for module in modules_after(code)} & heavy


def test_every_name_resolves_to_the_module_that_is_said_to_be_its_home():
    assert sorted(momentex.data.__all__) == sorted(momentex.data._HOME)
    for name in momentex.data.__all__:
        assert getattr(momentex.data, name).__module__ == f"momentex.data.{momentex.data._HOME[name]}"
        assert getattr(momentex.data, name).__doc__
        assert name in dir(momentex.data)


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(AttributeError, match=r"'momentex.data' has no attribute 'Loader'; it has .*Resident"):
        momentex.data.Loader  # noqa: B018
