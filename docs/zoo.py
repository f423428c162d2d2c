"""Count the parameters of every model of the CIFAR zoo, and write the table of docs/models.md: python docs/zoo.py."""

from __future__ import annotations

from pathlib import Path

import torch

from momentex import models
from momentex.models.cifar import ZOO

PAGE = Path(__file__).parent / "models.md"
START, END = "<!-- zoo -->", "<!-- /zoo -->"


def parameters(name: str, classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in models.build(f"cifar:{name}", classes).parameters())


def table() -> str:
    lines = [
        "| `--model` | parameters, 10 classes | 100 classes | paper | exchange at the input of | where stands |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name, entry in ZOO.items():
        counts = " | ".join(f"{parameters(name, classes):,}" for classes in (10, 100))
        lines.append(f"| `cifar:{name}` | {counts} | {entry.paper or '–'} | `{entry.site}` | {entry.there} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """`text` with the table between its markers."""
    before, rest = text.split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf8")), encoding="utf8")
    print(table())
