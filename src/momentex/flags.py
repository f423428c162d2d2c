"""Flags: the fields of a recipe as arguments of the command. tyro reads them off the dataclasses.

What tyro does not know is done before it reads: which kind of optimizer or schedule a recipe has, whether it has an
exchange, mixup, CutMix, Cutout, and options of models that it does not have yet. The recipe is changed accordingly, and
tyro gets the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from momentex.augment.values import CutMix, Cutout, Mixup
from momentex.errors import MomentexError, RecipeError, did_you_mean
from momentex.over import GN, IN, LN, LRN, PONO, Only, Over
from momentex.recipes import find, names
from momentex.recipes.arms import Usual
from momentex.train import recipe as parts
from momentex.train.recipe import Data, Exchange, Option, Recipe
from momentex.train.regularizers import DropBlock, ManifoldMixup, ShakeDrop, StochasticDepth

T = TypeVar("T")

KINDS: dict[str, dict[str, type[Any]]] = {
    "optimizer": {"sgd": parts.SGD, "adam": parts.Adam},
    "schedule": {
        "constant": parts.Constant,
        "steps": parts.Steps,
        "cosine": parts.Cosine,
        "plateau": parts.Plateau,
        "inverse-sqrt": parts.InverseSqrt,
    },
}

# Of a recipe, and absent unless it has them: any flag of theirs adds one.
PARTS: dict[str, type[Any]] = {
    "exchange": Exchange,
    "cutout": Cutout,
    "mixup": Mixup,
    "cutmix": CutMix,
    "manifold_mixup": ManifoldMixup,
    "dropblock": DropBlock,
    "shakedrop": ShakeDrop,
    "stochastic_depth": StochasticDepth,
}
EXAMPLES = {
    "exchange": "lam 0.7",
    "cutout": "size 16",
    "mixup": "alpha 0.2",
    "cutmix": "p 0.5",
    "manifold_mixup": "alpha 2",
    "dropblock": "p 0.1",
    "shakedrop": "last 0.5",
    "stochastic_depth": "last 0.5",
}


@dataclass(frozen=True, kw_only=True)
class Train:
    """What `momentex train` is asked for."""

    to: Path | None = None
    """The run directory. Default: runs/RECIPE/seed-N."""
    quiet: bool = False
    """Tell nothing but errors."""
    json: bool = False
    """Tell each epoch as a JSON object on stdout."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, default: T | None = None, about: str = "") -> T:
    """A value of the dataclass `kind`; its fields without default are positional."""
    told = StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with redirect_stderr(told):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=prog,
                description=about or None,
                config=(tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs),
                registry=_registry(),
                **given,
            )
    except SystemExit as stop:
        # tyro draws a box around errors of values, too. Ours speak for themselves.
        error: BaseException | None = stop
        while error is not None and not isinstance(error, MomentexError):
            error = error.__context__
        if error is None:
            sys.stderr.write(told.getvalue())
            raise
        raise error from None


def train(arguments: Sequence[str]) -> tuple[str, Train]:
    """What the run is called (the recipe's name, or that of a folder of images), and everything that was asked for."""
    name, asked = asked_of_recipe("train", Train, arguments, ABOUT_TRAIN)
    if asked.quiet and asked.json:
        raise RecipeError("--quiet and --json were both given: one asks for silence, the other one for every epoch.")
    return name, asked


def asked_of_recipe(
    verb: str,
    kind: type[T],
    arguments: Sequence[str],
    about: str,
    usual: Callable[[str], Usual] | None = None,
    *,
    finder: Callable[[str], Recipe] = find,
) -> tuple[str, T]:
    """A recipe's name, or that of a folder of images, and a `kind`, whose field `recipe` has the flags of a recipe.

    A comparison has what is `usual` for the recipe: its exchange, and the defaults of the fields `arms` and `seeds`.
    `finder` knows the recipe of a name.
    """
    name, rest = "", list(arguments)
    if rest and not rest[0].startswith("-"):
        name, *rest = rest
    root, rest = _take(rest, "--data")
    if root is not None:
        rest += ["--data.root", root]
    folder = _folder(rest)
    helps = "-h" in rest or "--help" in rest
    if not name and folder is None and not helps:
        raise RecipeError(_no_recipe(verb, rest))
    recipe = finder(name) if name else Recipe()
    others: dict[str, Any] = {}
    if usual is not None:
        known = usual(name)
        recipe = replace(recipe, exchange=recipe.exchange or known.exchange)
        others = {"arms": known.arms, "seeds": (str(known.seeds),)}
    if folder is not None:
        recipe = replace(recipe, data=replace(recipe.data, name="folder", folder=folder))
    recipe, rest = _with_kinds(recipe, rest)
    recipe, rest = _with_parts(recipe, rest, shown=helps)
    recipe, rest = _with_model_options(recipe, rest)
    make: Any = kind
    default = make(**others, recipe=replace(recipe, paper=None))  # what is reported is no flag
    asked: Any = parse(kind, rest, prog=f"momentex {verb} {name or 'RECIPE'}", default=default, about=about + _ABOUT)
    called = name or f"folder.{'' if folder is None else folder.expanduser().resolve().name}"
    return called, replace(asked, recipe=replace(asked.recipe, paper=recipe.paper))


def name_of_folder(recipe: str) -> str:
    """A recipe's name as that of a folder.

    >>> name_of_folder("path/to/mine.py:recipe"), name_of_folder("cifar10.resnet20")
    ('mine.recipe', 'cifar10.resnet20')
    """
    where, colon, function = recipe.rpartition(":")
    return f"{Path(where).name.removesuffix('.py')}.{function}" if colon else recipe


def _folder(arguments: list[str]) -> Path | None:
    value, _ = _take(arguments, "--data.folder")
    return None if value in (None, "None") else Path(value)


# tyro joins lines, but for those that begin with a sign.
ABOUT_TRAIN = """\
Train a recipe, or go on with it. Every field of the recipe is a flag. Also:
--exchange None takes Moment Exchange away, any flag --exchange.… adds it; likewise --mixup, --cutmix, --cutout,
--manifold-mixup, --dropblock, --shakedrop, --stochastic-depth
"""
_ABOUT = """\
--optimizer sgd|adam, --schedule constant|steps|cosine|plateau|inverse-sqrt
--data DIR is short for --data.root DIR
--data.folder DIR trains on a folder of images, and needs no recipe
--model-options.NAME VALUE is for the function that builds the model"""


def _no_recipe(verb: str, rest: list[str]) -> str:
    known = {entry.name for entry in names()}
    late = next((argument for argument in rest if argument in known), None)
    if late is not None:
        return f"the recipe comes first: momentex {verb} {late} …"
    return (
        f"momentex {verb} needs a recipe (`momentex recipes` lists them, mine.py:FUNCTION is one of your own), or "
        "--data.folder DIR for a folder of images."
    )


# --- before tyro reads -----------------------------------------------------------------------------------------------


def _name_of(argument: str) -> str:
    """`--a_b=c` as `--a-b`."""
    return argument.partition("=")[0].replace("_", "-") if argument.startswith("--") else ""


def _take(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The last value of `flag`, and the arguments without it."""
    value: str | None = None
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        if _name_of(argument) != flag:
            rest.append(argument)
        elif "=" in argument:
            value = argument.partition("=")[2]
        elif i + 1 < len(arguments) and not arguments[i + 1].startswith("--"):
            i += 1
            value = arguments[i]
        else:
            raise RecipeError(f"{flag} has no value.")
        i += 1
    return value, rest


def _with_kinds(recipe: Recipe, arguments: list[str]) -> tuple[Recipe, list[str]]:
    for part, kinds in KINDS.items():
        value, arguments = _take(arguments, f"--{part}")
        if value is None:
            continue
        wanted = value.lower().replace("_", "-")
        if wanted not in kinds:
            near = did_you_mean(wanted, kinds)
            raise RecipeError(f"--{part} is {value!r}; there are {', '.join(kinds)}. {near}".strip())
        if not isinstance(getattr(recipe, part), kinds[wanted]):
            recipe = replace(recipe, data=_with_validation(recipe.data, arguments), **{part: kinds[wanted]()})
    return recipe, arguments


def _with_validation(data: Data, arguments: list[str]) -> Data:
    """A plateau of held-out images is refused without them, before tyro has read that there are some."""
    images, _ = _take(arguments, "--data.validation")
    return replace(data, validation=int(images)) if images and images.isdecimal() else data


def _with_parts(recipe: Recipe, arguments: list[str], *, shown: bool) -> tuple[Recipe, list[str]]:
    """The recipe with those parts that a flag touches (or with all, whose flags are to be shown), or without."""
    changes: dict[str, Any] = {}
    for part, kind in PARTS.items():
        flag = f"--{part.replace('_', '-')}"
        value, arguments = _take(arguments, flag)
        touched = [argument for argument in arguments if _name_of(argument).startswith(f"{flag}.")]
        if value is not None and value.lower() != "none":
            example = EXAMPLES[part]
            raise RecipeError(
                f"{flag} is {value!r}; it is None (take it away). Its fields are flags: {flag}.{example} adds one."
            )
        if value is not None and touched:
            raise RecipeError(f"{flag} None takes away what {touched[0]} changes: leave one of them out.")
        if value is not None:
            changes[part] = None
        elif getattr(recipe, part) is None and (touched or shown):
            changes[part] = kind()
    return replace(recipe, **changes), arguments


def _with_model_options(recipe: Recipe, arguments: list[str]) -> tuple[Recipe, list[str]]:
    """Options that the recipe does not have yet: tyro would not know their names."""
    prefix, options = "--model-options.", dict(recipe.model_options)
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        key = _name_of(argument).removeprefix(prefix).replace("-", "_")
        if not _name_of(argument).startswith(prefix) or key.removeprefix("no_") in recipe.model_options:
            rest.append(argument)
        elif "=" in argument:
            options[key] = option(argument.partition("=")[2])
        elif i + 1 < len(arguments) and not arguments[i + 1].startswith("--"):
            i += 1
            options[key] = option(arguments[i])
        else:
            options[key] = True
        i += 1
    return replace(recipe, model_options=options), rest


def option(text: str) -> Option:
    """A number, true or false, or a word.

    >>> option("3"), option("0.3"), option("true"), option("relu")
    (3, 0.3, True, 'relu')
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# --- over ------------------------------------------------------------------------------------------------------------


def over(text: str) -> Over:
    """What moments range over, by its short name: `gn4` has four groups, `pono-mean` moves the mean alone.

    >>> over("pono2"), over("in-std")
    (PONO(groups=2, only=None), IN(only='std'))
    """
    word, _, suffix = text.lower().partition("-")
    stem, groups = word.rstrip("0123456789"), word[len(word.rstrip("0123456789")) :]
    only: dict[str, Only | None] = {"": None, "mean": "mean", "std": "std"}
    plain: dict[str, Any] = {"in": IN, "ln": LN, "lrn": LRN}
    if suffix in only and (suffix or "-" not in text):
        if stem == "pono":
            return PONO(groups=int(groups or 1), only=only[suffix])
        if stem == "gn" and groups:
            return GN(groups=int(groups), only=only[suffix])
        if stem in plain and not groups:
            return plain[stem](only=only[suffix])
    near = did_you_mean(text.lower(), [f"{word}{end}" for word in SHORT for end in ("", "-mean", "-std")])
    raise RecipeError(
        f"exchange.over is {text!r}; it is pono, in, ln, gn4 (four groups) or lrn; pono2 has two groups, and -mean or "
        f"-std moves one moment alone. {near}".strip()
    )


SHORT = ("pono", "pono2", "in", "ln", "gn4", "lrn")


def short(value: Over) -> str:
    """The name that `over` reads.

    >>> short(GN(4, only="mean")), short(PONO())
    ('gn4-mean', 'pono')
    """
    groups = getattr(value, "groups", 1) if isinstance(value, (PONO, GN)) else ""
    word = type(value).__name__.lower() + ("" if isinstance(value, PONO) and groups == 1 else str(groups))
    return f"{word}-{value.only}" if value.only else word


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def short_names(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in (PONO, IN, LN, GN, LRN, Over):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="{pono,in,ln,gn4,lrn}[-mean|-std]",
            instance_from_str=lambda words: over(words[0]),
            is_instance=lambda value: isinstance(value, (PONO, IN, LN, GN, LRN)),
            str_from_instance=lambda value: [short(value)],
        )

    return registry
