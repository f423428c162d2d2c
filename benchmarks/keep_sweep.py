"""Keeps what a sweep found, in results/sweeps/: python -m benchmarks.keep_sweep runs/sweep/digits.moments

`sweep.json` has every outcome without its curve, and `momentex report` renders it; `table.md` is that for people.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from momentex import ablations
from momentex.errors import RecipeError, RunError
from momentex.report import markdown
from momentex.report.swept import document
from momentex.swept import folder as store
from momentex.swept.result import Swept, to_json

RESULTS = Path(__file__).parent.parent / "results" / "sweeps"
TABLE = "table.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the sweep, named as it is")
    options = parser.parse_args()
    found = store.read(options.folder)
    if found is None:
        raise SystemExit(f"{options.folder} holds no sweep.")
    to = RESULTS / options.folder.resolve().name
    keep(found, to)
    print(to)


def keep(found: Swept, to: Path) -> None:
    """Write both files; an error if the sweep of that name is now another one."""
    if lines := stale(to.name, found):
        raise RecipeError(f"the sweep {to.name} is not what was run: {'; '.join(lines)}")
    if len(found.seeds) < 2:
        raise RunError("one seed has no standard error, and is not kept.")
    short = replace(found, outcomes=tuple(replace(outcome, curve=(), best={}) for outcome in found.outcomes))
    to.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_json(short), ensure_ascii=False, separators=(",", ":"))
    (to / store.FILE).write_text(f"{text}\n", encoding="utf8")
    (to / TABLE).write_text(table(short), encoding="utf8")


def stale(name: str, found: Swept) -> list[str]:
    """In what the sweep of that name differs from what was run."""
    return store.changed(found.sweep, ablations.find(name))


def table(found: Swept) -> str:
    """As people read it."""
    return f"{markdown.of(document(found), whole=False)}\n"


if __name__ == "__main__":
    main()
