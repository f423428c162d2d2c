"""A run whose model is compiled is the eager run, and goes on as that does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from momentex.train.recipe import Exchange
from tests.train_runs import Told, assert_same_run, fitted, metrics, tiny, trained


def test_a_compiled_run_is_the_eager_one_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    recipe = tiny(exchange=Exchange(layer="stage", p=0.5), compile=True)
    whole = trained(recipe, tmp_path / "whole")
    eager = trained(tiny(exchange=Exchange(layer="stage", p=0.5)), tmp_path / "eager")
    for mine, theirs in zip(metrics(whole), metrics(eager), strict=True):
        assert mine.pop("split") == theirs.pop("split")
        assert mine == pytest.approx(theirs, rel=1e-4)

    def at(step: int) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fitted(recipe, tmp_path / "run", Told(at))
    fitted(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
