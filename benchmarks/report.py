"""Write what was measured into the README, each block between its markers: python -m benchmarks.report [BLOCK …]."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.keep import read
from momentex.comparison.analysis import analyse
from momentex.comparison.result import Comparison, from_json
from momentex.report import markdown
from momentex.report.compared import document
from momentex.report.document import Table

WHOLE = ("cpu", "cuda", "loop")  # the files that a whole `make bench` writes
FACTS = ("hardware", "threads of a run", "torch")
ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="*", help=f"{' or '.join(BLOCKS)}; all of them by default")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf8")
    for name in parser.parse_args().blocks or BLOCKS:
        text = filled(text, name, BLOCKS[name]())
    readme.write_text(text, encoding="utf8")


def measured() -> list[dict[str, Any]]:
    """The committed measurements of the exchange, and of the training loop."""
    paths = (ROOT / f"benchmarks/results/{name}.json" for name in WHOLE)
    return [json.loads(path.read_text(encoding="utf8")) for path in paths if path.exists()]


BLOCKS: dict[str, Callable[[], str]] = {
    "costs": lambda: costs(measured()),
    "digits": lambda: compared(read(ROOT / "results/digits.json")),
    "cifar10": lambda: compared(read(ROOT / "results/cifar10.resnet20_5k.json")),
    "digits_sizes": lambda: by_size(
        (row["train_size"], from_json(row["comparison"]))
        for row in json.loads((ROOT / "results/digits_sizes.json").read_text("utf8"))["sizes"]
    ),
}


def filled(text: str, name: str, block: str) -> str:
    """`text` with `block` between the markers of this name."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{block}\n{end}{after}"


def compared(comparison: Comparison) -> str:
    """The first table of a comparison's report, and its verdicts."""
    found = document(comparison, analyse(comparison))
    table = next(part for part in found.sections[0].parts if isinstance(part, Table))
    claims = [f"- {markdown.text(claim.text)}" for claim in found.lead]
    where = "; ".join(f"{name} {comparison.facts[name]}" for name in FACTS if name in comparison.facts)
    about = f"{markdown.text(found.about)}. {table.caption} Measured with `{comparison.facts['command']}` ({where})."
    return "\n".join([*claims, "", markdown.table(table), "", f"<sub>{about}</sub>"])


def by_size(found: Iterable[tuple[int, Comparison]]) -> str:
    """With how many images MoEx is better, worse or neither, against each of its references: a sentence each."""
    told: dict[str, dict[str, list[str]]] = {}
    for size, comparison in found:
        for contrast in analyse(comparison).contrasts[: comparison.beforehand]:
            against = next(arm.heading for arm in comparison.arms if arm.name == contrast.against)
            told.setdefault(against, {}).setdefault(contrast.verdict, []).append(str(size))
    lines = []
    for against, verdicts in told.items():
        parts = [f"{verdict} with {', '.join(sizes)}" for verdict, sizes in verdicts.items()]
        lines.append(f"- MoEx against {against}, by training images: {'; '.join(parts)}.")
    return "\n".join(lines)


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
    if results.get("loop"):
        parts.append(_loop(results))
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


def _loop(results: dict[str, Any]) -> str:
    lines = [
        "| training loop of CIFAR's ResNet-20, bfloat16, channels_last | measured | bar | |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {b['name']} | {b['measured']} | {b['allowed']} | {b['verdict']} |" for b in results["bars"]]
    speeds = ", ".join(f"{name} {value:,.0f}" for name, value in results["loop"]["images_per_second"].items())
    late = "" if results["loop"]["counted"] else " Not counted: the machine was not idle."
    return "\n".join(lines) + f"\n\nImages a second: {speeds}.{late}"


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{statistics.median(found):.2f} [{found[0]:.2f}, {found[-1]:.2f}]"


if __name__ == "__main__":
    main()
