"""What every test shares: the documents' code blocks are tests too, and a marker says what its test needs."""

import os
import signal

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# A shell starts what it runs in the background with Ctrl-C ignored, and nohup SIGHUP; so would every run of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], pattern="*.md").pytest()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("data") and "MOMENTEX_DATA" not in os.environ:
        pytest.skip("needs MOMENTEX_DATA, the folder that holds the real data")
