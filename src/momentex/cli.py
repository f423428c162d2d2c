"""The command `momentex`: verbs over recipes. Help, lists and errors of flags answer without torch.

Errors that are raised on purpose are one message on stderr and exit code 2; MOMENTEX_TRACEBACK=1 shows where they
arose.
"""

from __future__ import annotations

import json as json_
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import momentex
from momentex.errors import DataError, MomentexError, did_you_mean

GOES_ON = (["train"], ["compare"], ["sweep"])  # verbs that do, when they were stopped and are asked for again
STOPPED = 130  # as shells say it of a process that Ctrl-C ended
REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _verb(arguments)(arguments[1:])
        sys.stdout.flush()
    except SystemExit as stop:  # tyro has said what there was to say
        return stop.code if isinstance(stop.code, int) else REFUSED
    except KeyboardInterrupt:
        again = f"; the same command goes on from here: {_command(arguments)}" if arguments[:1] in GOES_ON else ""
        return _told(f"stopped{again}", STOPPED)
    except BrokenPipeError:  # whoever reads has seen enough, as in `momentex recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MomentexError as error:
        if os.environ.get("MOMENTEX_TRACEBACK") == "1":
            raise
        return _told(str(error), REFUSED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        return _told(f"this needs {error.name}, which is not installed. Do: pip install 'momentex[train]'", REFUSED)
    return 0


EXTRA = ("accelerate", "numpy", "PIL", "safetensors", "scipy", "sklearn", "torchvision", "tqdm", "tyro")


def _told(text: str, code: int) -> int:
    print(f"momentex: {text}", file=sys.stderr, flush=True)
    return code


def _command(arguments: Sequence[str]) -> str:
    return shlex.join(["momentex", *arguments])


# --- verbs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluate:
    """Measure the weights of a run again."""

    run: Path
    """The run directory."""
    which: Literal["last", "best"] = "last"
    """The weights of the last epoch, or of the one with the lowest error."""
    data: Path | None = None
    """Where data sets lie. Default: where the run found them."""
    json: bool = False
    """As a JSON object."""


@dataclass(frozen=True)
class Recipes:
    """The recipes, with the paper's error and ours; of one of them, its lab note as well."""

    pattern: tuple[str, ...]
    """Parts of names, or patterns with *; without any, all recipes."""
    show: bool = False
    """The resolved recipe of this name, or of FILE.py:FUNCTION, as JSON."""
    json: bool = False
    """The list as JSON."""


@dataclass(frozen=True)
class DataList:
    """The data sets, and whether they are here. `momentex data get NAME --to DIR` fetches one."""

    data: Path | None = None
    """Where data sets lie. Default: the folder that MOMENTEX_DATA names."""
    json: bool = False
    """As JSON."""


@dataclass(frozen=True)
class DataGet:
    """Fetch a data set and check it."""

    name: str
    """cifar10, cifar100."""
    to: Path | None = None
    """Where to. Default: the folder that MOMENTEX_DATA names."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model where moments could be exchanged, with shapes; the recommended one is marked."""

    model: str
    """cifar:NAME, torchvision:NAME, timm:NAME, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""
    input: tuple[int, ...] | None = None
    """Shape of a sample. Default: 3 32 32 for cifar:…, 3 224 224 for others."""
    json: bool = False
    """As JSON."""


def train(arguments: Sequence[str]) -> None:
    """Train a recipe, or go on with it."""
    from momentex import flags

    name, asked = flags.train(arguments)
    to = asked.to or Path("runs") / flags.name_of_folder(name) / f"seed-{asked.recipe.seed}"

    from momentex.train.engine import fit
    from momentex.train.progress import reporter, spoken

    quiet = asked.quiet or os.environ.get("RANK", "0") != "0"  # of several processes one tells
    found = fit(
        asked.recipe, to, reporter=reporter(quiet, asked.json and not quiet), command=_command(["train", *arguments])
    )
    if found and not quiet and not asked.json:
        for which in ("last", "best"):
            row: Mapping[str, Any] = found[which]
            print(f"{which}: epoch {row['epoch']}, {spoken(row)}")
        print(f"run: {to}")


def compare(arguments: Sequence[str]) -> None:
    """Compare MoEx with its controls: arms over paired seeds, a table, a report."""
    from momentex.verbs import compare as verb

    verb.compare(arguments)


def sweep(arguments: Sequence[str]) -> None:
    """Train a grid or a list of recipes over the same seeds, the paper's ablations among them: a table, a report."""
    from momentex.verbs import sweep as verb

    verb.sweep(arguments)


def report(arguments: Sequence[str]) -> None:
    """Tell what came of runs: a page to look at, markdown or LaTeX."""
    from momentex.verbs import report as verb

    verb.report(arguments)


def evaluate(arguments: Sequence[str]) -> None:
    """Measure the weights of a run again."""
    from momentex import flags

    asked = flags.parse(Evaluate, arguments, prog="momentex evaluate")

    from momentex.train.engine import evaluate_run
    from momentex.train.progress import as_json, spoken

    found = evaluate_run(asked.run, data_root=asked.data, which=asked.which)
    print(as_json(found) if asked.json else spoken(found))


def recipes(arguments: Sequence[str]) -> None:
    """The recipes, with the paper's error and ours."""
    from momentex import flags
    from momentex.recipes import find, names
    from momentex.train.resolved import to_json

    asked = flags.parse(Recipes, arguments, prog="momentex recipes")
    if asked.show:
        if len(asked.pattern) != 1:
            raise MomentexError("--show shows one recipe: momentex recipes NAME --show.")
        print(json_.dumps(to_json(find(asked.pattern[0])), indent=1))
        return
    entries = [entry for entry in names() if not asked.pattern or _matches(entry.name, asked.pattern)]
    if not entries:
        near = did_you_mean(" ".join(asked.pattern), [entry.name for entry in names()])
        raise MomentexError(f"no recipe has {' or '.join(map(repr, asked.pattern))} in its name. {near}".strip())
    rows = [_row(entry) for entry in entries]
    if asked.json:
        print(json_.dumps([{**row, "summary": e.summary} for row, e in zip(rows, entries, strict=True)], indent=1))
        return
    print(_table(rows))
    for entry in entries:
        if asked.pattern == (entry.name,):
            print(f"\n{entry.note}")
            if entry.ours and entry.ours.verdict:
                print(f"\nMeasured here: {entry.ours.verdict}")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, f"*{pattern}*") for pattern in patterns)


def _row(entry: Any) -> dict[str, str]:
    """What the list says of a recipe. An error is in %, with its standard error, and ours with the number of seeds."""
    from momentex.recipes.arms import spoken

    recipe, ours = entry.recipe, entry.ours
    sem = "" if ours is None or ours.sem is None else f" ± {ours.sem:.2f}"
    size = "" if recipe.data.train_size is None else f", {recipe.data.train_size:,} images"
    return {
        "recipe": entry.name,
        "model": recipe.model,
        "data": f"{recipe.data.name}{size}",
        "epochs": str(recipe.epochs),
        "paper": "" if entry.reported is None else spoken(entry.reported),
        "ours": "" if ours is None else f"{ours.error:.2f}{sem} ({ours.seeds})",
    }


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def data(arguments: Sequence[str]) -> None:
    """The data sets, whether they are here, and fetching one: data get NAME --to DIR."""
    from momentex import flags
    from momentex.data import describe, find, get

    home = os.environ.get("MOMENTEX_DATA")
    if arguments[:1] == ["get"]:
        asked = flags.parse(DataGet, arguments[1:], prog="momentex data get")
        to = asked.to or (Path(home) if home else None)
        if to is None:
            raise DataError("where to was not said: give --to DIR, or set MOMENTEX_DATA.")
        get(asked.name, to, say=lambda text: print(text, file=sys.stderr, flush=True))
        return
    if arguments and not arguments[0].startswith("-"):
        near = did_you_mean(arguments[0], ["get"])
        raise MomentexError(
            f"momentex data has no {arguments[0]!r}; it is `momentex data` or `momentex data get NAME`. {near}".strip()
        )
    shown = flags.parse(DataList, arguments, prog="momentex data")
    root = shown.data or (Path(home) if home else None)
    sets = [
        (about, find(about.name, root or Path()) if root or about.name == "digits" else None) for about in describe()
    ]
    if shown.json:
        listed = [{**about._asdict(), "here": None if place is None else str(place)} for about, place in sets]
        print(json_.dumps(listed, indent=1))
        return
    for about, place in sets:
        classes = "" if about.classes is None else f"; {about.classes} classes"
        print(f"{about.name}: {about.what}{classes}")
        there = f"here: {place}" if place else f"looked for: {about.looked_for}; {about.size}"
        print(f"    {there if place or about.classes is None or root is None else f'not here; {there}'}")
        print(f"    {about.terms}")
    print(f"\nLooked in {root}." if root else "\nNo folder was looked in: give --data DIR, or set MOMENTEX_DATA.")


def layers(arguments: Sequence[str]) -> None:
    """The layers of a model where moments could be exchanged."""
    from momentex import flags

    asked = flags.parse(Layers, arguments, prog="momentex layers")

    import torch

    from momentex.models import build, first_site
    from momentex.survey import Sites, sites

    shape = asked.input or ((3, 32, 32) if asked.model.startswith("cifar:") else (3, 224, 224))
    model = build(asked.model, num_classes=10)
    try:
        found = sites(model, torch.zeros(2, *shape))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise MomentexError(
            f"{asked.model} could not take an input of {(2, *shape)}: {reason}. Name another shape: --input 3 32 32"
        ) from error
    recorded = first_site(asked.model)
    if recorded is not None:
        found = Sites(replace(site, recommended=site.layer == recorded) for site in found)
    print(json_.dumps([asdict(site) for site in found], indent=1) if asked.json else found)


# --- the table of verbs ----------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "compare": compare,
    "sweep": sweep,
    "report": report,
    "evaluate": evaluate,
    "recipes": recipes,
    "data": data,
    "layers": layers,
}


def _verb(arguments: Sequence[str]) -> Callable[[Sequence[str]], None]:
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help", "--version"):
        return lambda _: print(f"momentex {momentex.__version__}" if verb == "--version" else _help())
    if verb not in VERBS:
        raise MomentexError(f"there is no {verb!r}; there are {', '.join(VERBS)}. {did_you_mean(verb, VERBS)}".strip())
    return VERBS[verb]


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {(function.__doc__ or '').strip()}" for verb, function in VERBS.items())
    return f"""\
momentex: Moment Exchange for image classifiers, and the paper's experiments as recipes.

usage: momentex VERB …      momentex VERB --help says more; momentex --version

{verbs}

  momentex compare digits               the arms side by side, on data that comes along: minutes on a CPU
  momentex train mine.py:recipe --epochs 10    a function of yours that returns a recipe; every field is a flag"""
