"""Write the measured costs into the README, between its two markers: python -m benchmarks.report."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MARKERS = ("<!-- costs -->", "<!-- /costs -->")


def main() -> None:
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks/results").glob("*.json"))]
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(), costs(found)))


def filled(text: str, table: str) -> str:
    """`text` with `table` between the markers."""
    before, rest = text.split(MARKERS[0])
    _, after = rest.split(MARKERS[1])
    return f"{before}{MARKERS[0]}\n{table}\n{MARKERS[1]}{after}"


def costs(found: Iterable[dict[str, Any]]) -> str:
    """A section for every machine that was measured."""
    return "\n\n".join(_machine(results) for results in found)


def _machine(results: dict[str, Any]) -> str:
    facts = results["machine"]
    where = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"
    parts = [f"**{where}**, torch {facts['torch']} ({facts['date']}, `python -m {results['command']}`):"]
    if results.get("step"):
        parts.append(_steps(results["step"]))
    if results.get("operator"):
        parts.append(_operators(results["operator"]))
    return "\n\n".join(parts)


def _steps(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| ResNet-20 step, p = 1, batch 128 | plain | Algorithm 1 | momentex | `compiled=True` | plain again |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        over = row["overhead"]
        cells = [f"{over[name]['median']:+.1%}" for name in ("algorithm_1", "eager", "compiled", "plain again")]
        late = "" if row["counted"] else " (not counted: the machine was not idle)"
        lines.append(f"| {row['setting']}{late} | {row['milliseconds']['plain']:.1f} ms | {' | '.join(cells)} |")
    return "\n".join(lines)


def _operators(rows: list[dict[str, Any]]) -> str:
    counted = [row for row in rows if row["counted"]]
    lines = [
        "| operator, forward + backward, × Algorithm 1 | momentex | momentex, `compiled=True` | one read and write |",
        "| --- | --- | --- | --- |",
    ]
    for megabytes, dtype in sorted({(row["megabytes"], row["dtype"]) for row in counted}):
        chosen = [row["to_algorithm_1"] for row in counted if (row["megabytes"], row["dtype"]) == (megabytes, dtype)]
        cells = [_range(r[name]["median"] for r in chosen) for name in ("eager", "compiled", "floor")]
        lines.append(f"| {dtype}, {megabytes:.0f} MB, {len(chosen)} cases | {' | '.join(cells)} |")
    lines.append(
        f"\n{len(counted)} of {len(rows)} cases were measured while the machine was idle. Median [least, most]."
    )
    return "\n".join(lines)


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{statistics.median(found):.2f} [{found[0]:.2f}, {found[-1]:.2f}]"


if __name__ == "__main__":
    main()
