"""The sweeps that are kept as results: of the points that have their names today, and tables of their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import keep_sweep
from momentex import ablations
from momentex.errors import RecipeError, RunError
from momentex.swept import folder as store
from tests.sweeps import swept

KEPT = sorted(path.parent for path in keep_sweep.RESULTS.glob(f"*/{store.FILE}"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_kept_sweep_is_whole_and_of_today(folder: Path) -> None:
    found = store.read(folder)
    assert found is not None
    assert keep_sweep.stale(folder.name, found) == []
    assert {(o.arm, o.seed) for o in found.outcomes} == {(p.name, s) for p in found.sweep.points for s in found.seeds}
    assert "command" in found.facts
    assert (folder / keep_sweep.TABLE).read_text(encoding="utf8") == keep_sweep.table(found)


def test_what_is_kept_can_be_read_again_and_has_no_curves(tmp_path: Path) -> None:
    found = swept(ablations.find("digits.moments"), lambda point, seed: len(point.name) + seed, facts={"command": "it"})
    keep_sweep.keep(found, tmp_path / "digits.moments")
    assert store.read(tmp_path / "digits.moments") == found
    assert "| No MoEx" in (tmp_path / "digits.moments" / "table.md").read_text(encoding="utf8")


def test_another_sweep_and_a_single_seed_are_not_kept(tmp_path: Path) -> None:
    found = swept(ablations.find("digits.moments"), lambda point, seed: 1.0, seeds=1)
    with pytest.raises(RunError, match="one seed has no standard error"):
        keep_sweep.keep(found, tmp_path / "digits.moments")
    with pytest.raises(RecipeError, match=r"the sweep digits\.lambda_p is not what was run: none: a point there"):
        keep_sweep.keep(found, tmp_path / "digits.lambda_p")
    assert not list(tmp_path.iterdir())
