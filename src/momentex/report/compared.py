"""The document of a comparison: verdict, table, differences, learning curves, what was run, what to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from momentex.comparison.analysis import Analysis, Contrast, Estimate, Row, Which
from momentex.comparison.result import Arm, Comparison
from momentex.comparison.sentences import chance, in_percent, name_of, seeds
from momentex.report import cells, figures
from momentex.report.document import (
    Cell,
    Claim,
    Claims,
    Column,
    Document,
    Fact,
    Facts,
    Group,
    Items,
    Section,
    Table,
    Tone,
)

TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "not distinguishable": "open", "unknown": "none"}
KNOW = "What to know"
FIRST = ("error", "nll", "calibration")  # of the metrics of our own runs, what the first table has


def document(comparison: Comparison, analysis: Analysis) -> Document:
    """Everything that the analysis says, and what it is about."""
    named = analysis.contrasts[: max(1, comparison.beforehand)]
    sections = (
        Section(title="Results", parts=(_table(comparison, analysis), *figures.runs(comparison, analysis))),
        *_differences(comparison, analysis, named),
        *_curves(comparison),
        Section(title=KNOW, parts=(Items(analysis.notes),)),
        Section(title="What was run", parts=tuple(run(comparison))),
        *more(comparison, analysis),
    )
    return Document(title=comparison.title, about=_about(comparison), lead=_lead(comparison, named), sections=sections)


def _about(comparison: Comparison) -> str:
    arms, images = len(comparison.arms), f", measured on {comparison.split} images" if comparison.recipe else ""
    paired = "the same seeds" if len(comparison.seeds) > 1 else "the same seed"
    return f"{arms} arm{'s' * (arms != 1)}, {seeds(len(comparison.seeds))}, {paired} in every arm{images}"


# --- verdicts --------------------------------------------------------------------------------------------------------


def _lead(comparison: Comparison, named: Sequence[Contrast]) -> tuple[Claim, ...]:
    if named:
        ranks = ["primary contrast", *["named beforehand"] * len(named)]
        return tuple(replace(_claim(comparison, c), rank=rank) for c, rank in zip(named, ranks, strict=False))
    why = "There is one arm, and nothing to compare it with." if len(comparison.arms) == 1 else (
        "No differences are drawn between these arms: they differ in more than what an arm is."
    )  # fmt: skip
    return (Claim(tone="none", badge="no verdict", title=comparison.title, text=why),)


def _claim(comparison: Comparison, contrast: Contrast) -> Claim:
    headings = {arm.name: arm.heading for arm in comparison.arms}
    percent = in_percent(comparison, contrast.metric)
    figure = ""
    if contrast.mean is not None:
        value = cells.difference(contrast.mean, contrast.low, contrast.high, percent)
        figure = f"{value} {'points of error' if percent and contrast.metric == 'error' else _metric(contrast)}"
    return Claim(
        tone=TONES[contrast.verdict],
        badge="no verdict" if contrast.verdict == "unknown" else contrast.verdict,
        title=f"{headings[contrast.arm]} against {headings[contrast.against]}",
        figure=figure,
        text=contrast.sentence,
    )


def _metric(contrast: Contrast) -> str:
    return f"{name_of(contrast.metric)}{' at the best epoch' if contrast.which == 'best' else ''}"


# --- tables ----------------------------------------------------------------------------------------------------------


def metrics_of(analysis: Analysis) -> list[str]:
    """All that some arm has numbers of, in their order."""
    return list(dict.fromkeys(metric for row in analysis.rows for metric in row.last))


def _table(comparison: Comparison, analysis: Analysis) -> Table:
    columns = [
        column for metric in _first(comparison, analysis) for column in _of_metric(comparison, analysis.rows, metric)
    ]
    columns += [*_of_time(comparison, analysis.rows), *_of_seeds(comparison, analysis.rows), *_of_paper(comparison)]
    return _joined(comparison, analysis.rows, columns, caption=_caption(comparison, analysis))


def _first(comparison: Comparison, analysis: Analysis) -> list[str]:
    """What the first table has: of runs of ours what is of interest to everybody, of others everything."""
    return [m for m in metrics_of(analysis) if not comparison.recipe or m in (comparison.metric, *FIRST)]


def _joined(
    comparison: Comparison, rows: Sequence[Row], columns: Sequence[tuple[Column, list[str]]], caption: str
) -> Table:
    arms = {arm.name: arm for arm in comparison.arms}
    keys = {arm.name: key for key, arm in enumerate(comparison.arms)}
    return Table(
        columns=(Column("arm", number=False), *(column for column, _ in columns)),
        rows=tuple(
            (Cell(arms[row.arm].heading, key=keys[row.arm]), *(Cell(texts[i]) for _, texts in columns))
            for i, row in enumerate(rows)
        ),
        caption=caption,
    )


def _caption(comparison: Comparison, analysis: Analysis) -> str:
    best = any(row.best for row in analysis.rows)
    when = "After the last epoch, unless the best one is named. " if best else ""
    if any(row.failures for row in analysis.rows):
        when = f"{when}Why some seeds have no numbers is told under “{KNOW}”. "
    if len(comparison.seeds) == 1:
        return f"{when}One seed, and so no standard error."
    which = "plain, s / √n" if comparison.sem == "plain" else "with the small-sample correction of s"
    return f"{when}Mean ± standard error ({which}) over seeds."


def _of_metric(comparison: Comparison, rows: Sequence[Row], metric: str) -> Iterator[tuple[Column, list[str]]]:
    """The last epoch, and the best one for the metric that verdicts are about."""
    yield _estimates(comparison, metric, "last", [row.last.get(metric) for row in rows])
    if metric == comparison.metric and any(metric in row.best for row in rows):
        yield _estimates(comparison, metric, "best", [row.best.get(metric) for row in rows])


def _estimates(
    comparison: Comparison, metric: str, which: Which, estimates: Sequence[Estimate | None]
) -> tuple[Column, list[str]]:
    percent = in_percent(comparison, metric)
    heading = f"{name_of(metric)}{', best epoch' if which == 'best' else ''}"
    return Column(heading, "%" if percent else ""), cells.column(estimates, comparison.sem, percent=percent)


def _of_time(comparison: Comparison, rows: Sequence[Row]) -> Iterator[tuple[Column, list[str]]]:
    if any(row.seconds for row in rows):
        times = [cells.NOTHING if row.seconds is None else cells.duration(row.seconds.mean) for row in rows]
        yield Column("run time"), times
    if any(row.cost for row in rows):
        yield Column("cost", "×"), [cells.cost(row.cost, comparison.sem) for row in rows]


def _of_seeds(comparison: Comparison, rows: Sequence[Row]) -> Iterator[tuple[Column, list[str]]]:
    """Where some have no numbers, over how many the others are."""
    if any(row.failures for row in rows):
        total = len(comparison.seeds)
        yield Column("seeds"), [f"{total - len(row.failures)} of {total}" for row in rows]


def _of_paper(comparison: Comparison) -> Iterator[tuple[Column, list[str]]]:
    if any(arm.paper for arm in comparison.arms):
        yield Column("paper", "%"), [cells.paper(arm.paper) for arm in comparison.arms]


# --- sections --------------------------------------------------------------------------------------------------------


def _differences(comparison: Comparison, analysis: Analysis, named: Sequence[Contrast]) -> Iterator[Section]:
    if analysis.contrasts:
        others = tuple(_claim(comparison, contrast) for contrast in analysis.contrasts[len(named) :])
        drawn = tuple(figures.differences(comparison, analysis.contrasts))
        yield Section(title="Differences", parts=(*drawn, *_secondary(comparison, analysis), Claims(others)))


def _secondary(comparison: Comparison, analysis: Analysis) -> Iterator[Group]:
    """The same contrasts in the other metrics that the first table has."""
    drawn = [
        figure
        for metric in _first(comparison, analysis)
        for figure in figures.differences(
            comparison, [c for c in analysis.secondary if (c.metric, c.which) == (metric, "last")]
        )
    ]
    if drawn:
        yield Group(tuple(drawn))


def _curves(comparison: Comparison) -> Iterator[Section]:
    if drawn := tuple(figures.curves(comparison)):
        yield Section(title="Learning curves", parts=(Group(drawn),))


def run(comparison: Comparison) -> Iterator[Items | Facts]:
    """What was run: the arms, and facts of all of them."""
    told = tuple(_told(arm) for arm in comparison.arms if arm.what)
    if told:
        yield Items(told)
    yield Facts(tuple(_facts(comparison)))


def _told(arm: Arm) -> str:
    return f"{arm.heading}: {arm.what}"


NAMES = {"command": "command to repeat it", "time": "time"}
RECIPE = ("model", "epochs", "batch_size", "precision")


def _facts(comparison: Comparison) -> Iterator[Fact]:
    facts = dict(comparison.facts)
    if command := facts.pop("command", ""):
        yield Fact(NAMES["command"], command, code=True)
    yield Fact("seeds", _numbers(comparison.seeds))
    data = comparison.recipe.get("data")
    if isinstance(data, dict):
        size = f", {data['train_size']:,} training images drawn by the seed" if data.get("train_size") else ""
        yield Fact("data", f"{data.get('folder') or data.get('name')}{size}")
    for name in RECIPE:
        if name in comparison.recipe:
            yield Fact(name.replace("_", " "), str(comparison.recipe[name]))
    for name, text in facts.items():
        yield Fact(name, text)


def _numbers(found: Sequence[int]) -> str:
    """0 to 4; or 3, 7, 11."""
    if len(found) > 2 and list(found) == list(range(found[0], found[-1] + 1)):
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))


def more(comparison: Comparison, analysis: Analysis) -> Iterator[Section]:
    """What is not of interest to everybody: every metric, every contrast."""
    columns = [
        _estimates(comparison, metric, which, found)
        for metric in metrics_of(analysis)
        for which, found in (
            ("last", [row.last.get(metric) for row in analysis.rows]),
            ("best", [row.best.get(metric) for row in analysis.rows]),
        )
        if any(found)
    ]
    if columns:
        every = _joined(comparison, analysis.rows, columns, caption=_caption(comparison, analysis))
        yield Section(title="Every metric", parts=(every,), aside=True)
    if analysis.contrasts:
        yield Section(title="Every contrast", parts=(_contrasts(comparison, analysis),), aside=True)


def _contrasts(comparison: Comparison, analysis: Analysis) -> Table:
    headings = {arm.name: arm.heading for arm in comparison.arms}
    named = set(comparison.contrasts[: comparison.beforehand])
    rows = []
    for c in (*analysis.contrasts, *analysis.secondary):
        percent = in_percent(comparison, c.metric)
        p = c.p if c.p_adjusted is None else c.p_adjusted
        rows.append(
            (
                Cell(f"{headings[c.arm]} − {headings[c.against]}"),
                Cell(_metric(c)),
                Cell(cells.difference(c.mean, c.low, c.high, percent)),
                Cell(cells.interval(c.low, c.high, percent)),
                Cell(cells.NOTHING if p is None else chance(p).removeprefix("p").removeprefix(" =").strip()),
                Cell("no" if (c.arm, c.against) in named or c.p_adjusted is None else "yes"),
                Cell("none would do" if c.seeds_needed is None and c.p is not None
                     else cells.NOTHING if c.seeds_needed is None else f"{c.seeds_needed:,}"),
                Cell(c.verdict),
            )
        )  # fmt: skip
    columns = (
        Column("contrast", number=False),
        Column("metric", number=False),
        Column("difference"),
        Column("95 % interval"),
        Column("p"),
        Column("corrected", number=False),
        Column("seeds needed"),
        Column("verdict", number=False),
    )
    caption = "Paired over seeds. Seeds needed to see the difference observed, four times out of five."
    return Table(columns=columns, rows=tuple(rows), caption=caption)
