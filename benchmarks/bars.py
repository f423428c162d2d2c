"""The bars: what the exchange may cost, and whether it holds to that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

EAGER, COMPILED = 0.30, 0.20  # forward + backward, × Algorithm 1
TO_FLOOR = {"float32": 3.5, "bfloat16": 6.0}  # compiled, × floor, from 8 MB
STEP = {"eager": 0.08, "compiled": 0.04}  # of a ResNet-20 step in float32 at p = 1
PEAK = 3.0  # × the features
FLOAT32_ERROR = 1e-5  # of values and gradients, maximum over root mean square
IMPORT_SECONDS = 0.15
LOOP = 1.05  # × the bare step: data and metrics
CONVENTIONAL = 1.7  # images per second, × the conventional loop, where the CPU computes in bfloat16
LOOP_STEP = {"moex": 0.10, "moex compiled": 0.06}  # of the loop's own step, bfloat16 channels_last, at p = 1
SAVING = 0.02  # of an epoch of CIFAR-10
SHIFTED = "100 + normal"
PARTS = ("value", "gradient")


@dataclass(frozen=True)
class Bar:
    """One promise: what was measured, what is allowed, in how many cases it held."""

    name: str
    allowed: str
    measured: str
    held: int
    cases: int
    not_counted: int = 0

    @property
    def verdict(self) -> str:
        if self.cases == 0:
            return "not counted" if self.not_counted else "not run"
        return "holds" if self.held == self.cases else f"holds in {self.held} of {self.cases}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def judge(results: dict[str, Any]) -> list[Bar]:
    """Every bar for which there are results."""
    return [bar for part in (_operator, _step, _memory, _accuracy, _import) for bar in part(results)]


def judge_loop(results: dict[str, Any]) -> Iterator[Bar]:
    """The bars of the training loop, whose results are a file of their own."""
    row = results["loop"]
    believed = row["counted"]
    yield _timed("training loop, × bare step", LOOP, [(row["loop_to_bare"]["median"], believed)], "{:.3f}")
    faster = row["conventional_to_loop"]["median"]
    fast = believed and "bf16" in results["machine"]["cpu"]
    yield Bar(
        "images per second, × conventional loop",
        f"≥ {CONVENTIONAL}",
        f"{faster:.2f}",
        int(fast and faster >= CONVENTIONAL),
        int(fast),
        int(not fast),
    )
    for name, limit in LOOP_STEP.items():
        overhead = (row["overhead"][name]["median"], believed)
        yield _timed(f"training loop, {name} at p = 1, overhead", limit, [overhead], "{:+.1%}")
    saving = (row["saving"]["of_an_epoch"], believed)
    yield _timed("checkpoint after every epoch, of an epoch", SAVING, [saving], "{:.2%}")


def _operator(results: dict[str, Any]) -> Iterator[Bar]:
    rows = results.get("operator", [])
    for name, limit in (("eager", EAGER), ("compiled", COMPILED)):
        ratios = [(r["to_algorithm_1"][name]["median"], r["counted"]) for r in rows]
        yield _timed(f"operator {name}, forward + backward, × Algorithm 1", limit, ratios)
    for dtype, limit in TO_FLOOR.items():
        chosen = [r for r in rows if r["dtype"] == dtype and r["megabytes"] >= 8]
        ratios = [(r["to_floor"]["compiled"]["median"], r["counted"]) for r in chosen]
        yield _timed(f"operator compiled, {dtype} ≥ 8 MB, × floor", limit, ratios)


def _step(results: dict[str, Any]) -> Iterator[Bar]:
    for row in results.get("step", []):
        for name, limit in STEP.items():
            overhead = (row["overhead"][name]["median"], row["counted"])
            if row["setting"].startswith("float32"):
                yield _timed(f"ResNet-20 step, {row['setting']}, {name}, overhead", limit, [overhead], "{:+.1%}")


def _memory(results: dict[str, Any]) -> Iterator[Bar]:
    rows = results.get("memory", [])
    if rows:
        allowed = [row["two_moment_maps_and_pairing"] for row in rows]
        saved = [row["eager"]["saved"] for row in rows]
        held = sum(s <= a + 1e-9 for s, a in zip(saved, allowed, strict=True))
        yield Bar("kept for backward beyond x", "two float32 moment maps + pairing", _range(saved), held, len(rows))
        peaks = [row["eager"]["peak"] for row in rows]
        yield Bar("peak extra allocation, × x", f"≤ {PEAK}", _range(peaks), sum(p <= PEAK for p in peaks), len(rows))


def _accuracy(results: dict[str, Any]) -> Iterator[Bar]:
    for name in ("eager", "compiled"):
        rows = [row for row in results.get("accuracy", []) if name in row]
        singles = [row for row in rows if row["dtype"] == "float32"]
        errors = [e for row in singles if row["input"] != SHIFTED for e in row[name].values()]
        if errors:
            held = sum(e <= FLOAT32_ERROR for e in errors)
            yield Bar(f"float32 error {name}", f"≤ {FLOAT32_ERROR:g}", _range(errors, "{:.1e}"), held, len(errors))
        # x − μ cancels in any float32 arithmetic there: the bar is to lose no more than the listing does
        ratios = [
            row[name][part] / row["algorithm_1"][part] for row in singles if row["input"] == SHIFTED for part in PARTS
        ]
        if ratios:
            held = sum(r <= 1.05 for r in ratios)
            yield Bar(f"float32 error {name}, {SHIFTED}, × Algorithm 1", "≤ 1.05", _range(ratios), held, len(ratios))
        halves = [
            (row[name][part], row["algorithm_1"][part]) for row in rows if row["dtype"] != "float32" for part in PARTS
        ]
        if halves:
            held = sum(ours <= theirs for ours, theirs in halves)
            worst = max(ours / theirs for ours, theirs in halves)
            yield Bar(f"half-precision error {name}, × Algorithm 1", "≤ 1", f"at most {worst:.2f}", held, len(halves))
        huge = [
            e
            for row in rows
            if row["dtype"] == "float16" and row["input"].startswith("300")
            for e in row[name].values()
        ]
        if huge:
            finite = sum(e < float("inf") for e in huge)
            yield Bar(f"finite at float16, 300 · normal, {name}", "all", _range(huge, "{:.1e}"), finite, len(huge))


def _import(results: dict[str, Any]) -> Iterator[Bar]:
    seconds = results.get("import_seconds")
    if seconds is not None:
        held = int(seconds <= IMPORT_SECONDS)
        yield Bar("import of every public name beyond torch", f"≤ {IMPORT_SECONDS} s", f"{seconds:.3f} s", held, 1)


def _timed(name: str, limit: float, found: list[tuple[float, bool]], form: str = "{:.2f}") -> Bar:
    counted = [value for value, believed in found if believed]
    held = sum(value <= limit for value in counted)
    allowed = f"≤ {form.format(limit).lstrip('+')}"
    return Bar(name, allowed, _range(counted, form), held, len(counted), len(found) - len(counted))


def _range(values: Iterable[float], form: str = "{:.2f}") -> str:
    found = sorted(values)
    if not found:
        return "–"
    middle = found[len(found) // 2]
    if len(found) == 1:
        return form.format(middle)
    return f"{form.format(middle)} [{form.format(found[0])}, {form.format(found[-1])}]"
