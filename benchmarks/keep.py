"""Keeps what a comparison found, in results/: python -m benchmarks.keep runs/compare/digits [--name digits_methods]

A file has the comparison, without the curves of its runs, and `errors`: what `momentex recipes` lists as ours.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from momentex.comparison import store
from momentex.comparison.analysis import analyse
from momentex.comparison.result import Comparison, from_json, to_json
from momentex.errors import RecipeError, RunError
from momentex.recipes import find, names
from momentex.recipes.arms import without
from momentex.train.resolved import differences
from momentex.train.resolved import from_json as recipe_of

RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the comparison")
    parser.add_argument("--name", help="of the file, which then is not what `momentex recipes` lists")
    options = parser.parse_args()
    comparison = store.read(options.folder)
    if comparison is None:
        raise SystemExit(f"{options.folder} holds no comparison.")
    path = RESULTS / f"{options.name or comparison.title}.json"
    write(path, kept(comparison) | ({"errors": {}} if options.name else {}))
    print(path)


def kept(comparison: Comparison) -> dict[str, Any]:
    """The comparison and its errors in JSON's types; a RecipeError if the recipe of that name is now another one."""
    if lines := stale(comparison):
        raise RecipeError(f"the recipe {comparison.title} is not what was compared: {'; '.join(lines)}")
    analysis = analyse(comparison)
    if len(comparison.seeds) < 2:
        raise RunError("one seed has no standard error, and is not kept.")
    short = replace(comparison, outcomes=tuple(replace(outcome, curve=()) for outcome in comparison.outcomes))
    listed = {entry.name for entry in names()} if _is_its_own_baseline(comparison) else set()
    errors = {}
    for row in analysis.rows:
        name = comparison.title if row.arm == "baseline" else f"{comparison.title}_{row.arm}"
        if name in listed and "error" in row.last:
            found = row.last["error"]
            errors[name] = {"error": found.mean, "sem": found.sem, "seeds": found.n, "verdict": analysis.verdict}
    return {"errors": errors, "comparison": to_json(short)}


def _is_its_own_baseline(comparison: Comparison) -> bool:
    """Whether the arm baseline is the recipe of that name: of stacking.cutmix, it is not, and the arm moex is not
    stacking.cutmix_moex.
    """
    recipe = find(comparison.title)
    return not differences(recipe, without(recipe, [arm.name for arm in comparison.arms]))


def stale(comparison: Comparison) -> list[str]:
    """In what the recipe of that name differs from what was compared."""
    then, now = recipe_of(comparison.recipe), without(find(comparison.title), [arm.name for arm in comparison.arms])
    return differences(replace(then, seed=0), replace(now, seed=0))


def write(path: Path, content: dict[str, Any]) -> None:
    """As JSON, for people too."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf8")


def read(path: Path) -> Comparison:
    """The comparison of a file that was kept."""
    return from_json(json.loads(path.read_text(encoding="utf8"))["comparison"])


if __name__ == "__main__":
    main()
