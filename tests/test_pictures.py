"""The pictures: their scripts run, and what they show is computed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from momentex.comparison.analysis import analyse
from tests.comparisons import comparison

ROOT = Path(__file__).parent.parent


def load(path: str) -> ModuleType:
    name = f"script_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_drawn(tmp_path):
    load("docs/draw_idea.py").draw(tmp_path / "idea.png")
    assert (tmp_path / "idea.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_the_exchange_of_its_own_features():
    script = load("docs/draw_idea.py")
    h = script.features(script.photographs(side=32))
    h_hat, moments = script.normalize(h)
    exchanged = script.exchange_moments(h, torch.tensor([1, 0]))
    torch.testing.assert_close(exchanged[0], (h_hat * moments.std[[1, 0]] + moments.mean[[1, 0]])[0])


def made_sizes():
    numbers = {arm: [9.0 + i, 8.5 + i, 9.5 + i] for i, arm in enumerate(["baseline", "moex", "labels_only", "lam1"])}
    numbers["moex"][0] -= 0.3
    numbers["baseline"][1] += 0.2
    made = comparison(numbers)
    return [(size, made, analyse(made)) for size in (50, 100, 200)]


def test_the_picture_of_sizes_is_drawn_the_same_every_time(tmp_path):
    script = load("docs/draw_digits.py")
    for name in ("one.svg", "two.svg"):
        script.draw(made_sizes(), tmp_path / name, "made")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.svg").read_text("utf8").startswith("<?xml")


def test_the_picture_of_sizes_that_is_there_shows_the_results_that_are_there():
    script = load("docs/draw_digits.py")
    assert script.source() in (ROOT / "docs/digits.svg").read_text("utf8")
    assert [size for size, _, _ in script.measured()] == [50, 100, 200, 400, 800]
