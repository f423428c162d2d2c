"""The CUDA kernels: interpreted here, compiled where there is a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from momentex import PONO
from momentex.exchange import How, exchange

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: no kernels to test")


def _compare(**environment: str) -> str:
    command = [sys.executable, "-m", "tests.kernels_on_device"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_triton
def test_interpreted_kernels_agree_with_the_readable_reference():
    assert "cases on cpu" in _compare(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@needs_triton
def test_compiled_kernels_agree_with_the_readable_reference_on_a_gpu():
    assert "cases on cuda" in _compare()


@pytest.mark.gpu
@needs_triton
def test_a_gpu_runs_the_kernels_and_masks_the_operations_of_torch():
    x, index = torch.randn(4, 8, 5, 5, device="cuda"), torch.tensor([1, 0, 3, 2])
    with torch.profiler.profile() as profile:
        exchange(x, index, How(PONO()), mask=None, batch=None)
    assert any("_apply" in event.key for event in profile.key_averages())
