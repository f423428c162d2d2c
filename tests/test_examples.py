"""The demo and the picture: both scripts run, and the arms of the demo differ in what they say and in nothing else."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent


def load(path: str) -> ModuleType:
    name = f"script_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    threads = torch.get_num_threads()
    yield load("examples/digits.py")
    torch.set_num_threads(threads)


def test_the_demo_runs_and_reports_every_arm(digits, capsys):
    digits.main(["--seeds", "3", "--epochs", "1", "--train-size", "50"])
    shown = capsys.readouterr().out
    assert "seed 3 of 3" in shown
    assert all(f"MoEx − {arm}" in shown for arm in digits.ARMS if arm != "MoEx")
    assert shown.count("±") >= 2 * (len(digits.ARMS) + 3)


def test_the_demo_trains_something(digits):
    x, y, x_test, y_test = digits.digits()
    rows = digits.balanced_subset(y, 200, digits.stream(0, 0, "subset"))
    assert y[rows].bincount().tolist() == [20] * 10
    error, _ = digits.evaluate(digits.train(digits.moment_exchange, x[rows], y[rows], seed=0, epochs=4), x_test, y_test)
    assert error < 40


def test_label_interpolation_in_the_demo_mixes_the_labels_as_moment_exchange_does(digits):
    model, y, x = digits.TinyResNet(), torch.arange(10), torch.randn(10, 1, 8, 8)
    labels_only, moex, mixed = digits.label_interpolation(model, 3), digits.moment_exchange(model, 3), 0
    for _ in range(12):
        with labels_only(y) as expected, moex(y) as targets:
            model(x)
        torch.testing.assert_close(targets.probabilities(10), expected.probabilities(10))
        mixed += len(targets.terms) > 1
    assert 0 < mixed < 12


def test_the_verdict_of_the_demo_is_no_bolder_than_its_numbers(digits):
    assert "lower" in digits.verdict([-2.0, -2.1, -1.9], "Error")
    assert "higher" in digits.verdict([2.0, 2.1, 1.9], "Error")
    assert "not distinguishable" in digits.verdict([-2.0, 2.1, 0.1], "Error")
    assert "too few" in digits.verdict([-2.0, -2.0], "Error")


def test_the_picture_is_drawn(tmp_path):
    load("docs/draw_idea.py").draw(tmp_path / "idea.png")
    assert (tmp_path / "idea.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_the_exchange_of_its_own_features():
    script = load("docs/draw_idea.py")
    h = script.features(script.photographs(side=32))
    h_hat, moments = script.normalize(h)
    exchanged = script.exchange_moments(h, torch.tensor([1, 0]))
    torch.testing.assert_close(exchanged[0], (h_hat * moments.std[[1, 0]] + moments.mean[[1, 0]])[0])
