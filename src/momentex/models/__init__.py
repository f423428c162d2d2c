"""A model from its name: `build("cifar:resnet20", 10)`. Names are listed and resolved without torch.

| name | model |
| --- | --- |
| `cifar:resnet20` | this package's, in `cifar.ZOO`; any size of a family: `cifar:resnet` with `depth=8` |
| `torchvision:resnet18` | torchvision's classifiers, without weights |
| `timm:resnet18` | timm's, without weights |
| `path/to/mine.py:function` | what a function (or a class) in a file returns |
| `package.module:function` | what a function (or a class) in a module returns |
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from momentex.errors import MomentexError, did_you_mean
from momentex.models.cifar import FAMILIES, ZOO, Family

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "first_site", "load_function", "stages", "takes"]

FORMS = "cifar:MODEL, torchvision:MODEL, timm:MODEL, path/to/mine.py:FUNCTION or package.module:FUNCTION"


def build(name: str, num_classes: int, **arguments: Any) -> nn.Module:
    """The model of that name, with further arguments for its builder.

    A function of yours is called with `num_classes` if its signature takes it.

    >>> model = build("cifar:resnet", num_classes=10, depth=8, in_channels=1)
    >>> sum(p.numel() for p in model.parameters())
    77754
    """
    library, colon, model = name.partition(":")
    if colon and library in _LIBRARIES:
        built = _LIBRARIES[library](name, model, num_classes, arguments)
    else:
        _check_is_yours(name, library if colon else "")
        function = load_function(name)
        parameters = inspect.signature(function).parameters
        if "num_classes" in parameters or _takes_any(parameters):
            arguments = {"num_classes": num_classes, **arguments}
        built = _called(name, function, arguments)
    if not isinstance(built, importlib.import_module("torch.nn").Module):
        raise MomentexError(f"{name!r} returned {_described(built)}; it must return a torch.nn.Module.")
    return built


def first_site(name: str) -> str | None:
    """The layer on whose input the paper's "first layer" is, for models of `cifar:`; None for all others.

    >>> first_site("cifar:densenet_bc_100"), first_site("torchvision:resnet18")
    ('dense1', None)
    """
    family = _family(name)
    return family.site if family else None


def stages(name: str) -> tuple[str, ...]:
    """The first layer and the stages of models of `cifar:`, by name; empty for all others.

    >>> stages("cifar:resnet110"), stages("torchvision:resnet18")
    (('conv1', 'layer1', 'layer2', 'layer3'), ())
    """
    family = _family(name)
    return family.stages if family else ()


def takes(name: str, argument: str) -> bool:
    """Whether the function that builds this model has an argument of that name.

    >>> takes("cifar:resnet110", "branch"), takes("cifar:densenet_bc", "branch"), takes("timm:resnet18", "branch")
    (True, False, False)
    """
    family = _family(name)
    if family is not None:
        home = importlib.import_module(f"momentex.models.cifar.{family.home}")
        return argument in inspect.signature(getattr(home, name.partition(":")[2])).parameters
    if name.partition(":")[0] in _LIBRARIES:
        return False
    return argument in inspect.signature(load_function(name)).parameters


def _family(name: str) -> Family | None:
    library, _, model = name.partition(":")
    if library != "cifar":
        return None
    return ZOO[model].family if model in ZOO else FAMILIES.get(model)


def load_function(spec: str) -> Callable[..., Any]:
    """The function (or class) that `path/to/mine.py:function` or `package.module:function` names.

    A file is executed once, with its own folder importable while that lasts.

    >>> load_function("fractions:Fraction")(2, 4)
    Fraction(1, 2)
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise MomentexError(
            f"{spec!r} does not say which function of which file: write path/to/mine.py:FUNCTION or "
            "package.module:FUNCTION."
        )
    module = _module_of_file(where) if _is_path(where) else _module_of_name(where)
    found = getattr(module, name, None)
    if callable(found):
        return found
    if found is not None:
        raise MomentexError(f"{name!r} in {where} is {_described(found)}; it must be a function.")
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    own = [key for key in own if callable(getattr(module, key)) and not key.startswith("_")]
    listed = f"It has {', '.join(own)}." if own else "It has none."
    raise MomentexError(_sentences(f"{where} has no function {name!r}.", did_you_mean(name, own), listed))


# --- libraries -------------------------------------------------------------------------------------------------------


def _cifar(name: str, model: str, num_classes: int, arguments: Mapping[str, Any]) -> Any:
    family = ZOO[model].family if model in ZOO else FAMILIES.get(model)
    if family is None:
        raise _unknown("cifar", model, [*ZOO, *FAMILIES], f"It has {', '.join(ZOO)}; and {', '.join(FAMILIES)}.")
    builder = getattr(importlib.import_module(f"momentex.models.cifar.{family.home}"), model)
    return _called(name, builder, {"num_classes": num_classes, **arguments})


def _torchvision(name: str, model: str, num_classes: int, arguments: Mapping[str, Any]) -> Any:
    models = _library("torchvision.models", name, "pip install 'momentex[train]'")
    # The classifiers alone: other builders have other classes, and some fetch the weights of their backbone.
    known = models.list_models(module=models)
    if model not in known:
        every = "torchvision.models.list_models(module=torchvision.models) lists all."
        raise _unknown("torchvision", model, known, every)
    builder = models.get_model_builder(model)
    return _called(name, builder, {"weights": None, "num_classes": num_classes, **arguments})


def _timm(name: str, model: str, num_classes: int, arguments: Mapping[str, Any]) -> Any:
    timm = _library("timm", name, "pip install 'momentex[timm]'")
    if not timm.is_model(model):
        raise _unknown("timm", model, timm.list_models(), "timm.list_models() lists all.")
    create = timm.create_model
    return _called(name, create, {"model_name": model, "pretrained": False, "num_classes": num_classes, **arguments})


_LIBRARIES = {"cifar": _cifar, "torchvision": _torchvision, "timm": _timm}


def _library(module: str, name: str, remedy: str) -> Any:
    library = module.partition(".")[0]
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:  # it is there, and lacks something else
            raise
        raise MomentexError(f"{name!r} needs {library}, which is not installed. Do: {remedy}") from None
    return importlib.import_module(module)


def _unknown(library: str, model: str, known: Iterable[str], every: str) -> MomentexError:
    return MomentexError(_sentences(f"{library} has no classifier {model!r}.", did_you_mean(model, known), every))


def _check_is_yours(name: str, prefix: str) -> None:
    """What is no path and no module is no library that we know, or has no colon at all."""
    if _is_path(prefix or name) or prefix in sys.modules:
        return
    if not prefix:
        near = did_you_mean(f"cifar:{name}", [f"cifar:{model}" for model in ZOO])
        raise MomentexError(_sentences(f"{name!r} does not say whose model it is.", near, f"Write {FORMS}."))
    if prefix.isidentifier() and find_spec(prefix) is None:
        what = f"{name!r}: {prefix!r} is no library of models, and no module that could be imported."
        raise MomentexError(_sentences(what, did_you_mean(prefix, _LIBRARIES), _as_path(prefix), f"Write {FORMS}."))


# --- calling ---------------------------------------------------------------------------------------------------------


def _called(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """function(**arguments), where the signature says that this can be."""
    parameters = inspect.signature(function).parameters
    if not _takes_any(parameters):
        _check_arguments(name, parameters, arguments)
    needed = [key for key, p in parameters.items() if p.default is p.empty and p.kind not in _ANY]
    missing = [key for key in needed if key not in arguments]
    if missing:
        raise MomentexError(f"{name!r} needs {', '.join(missing)}, which was not given: add it to the arguments.")
    try:
        return function(**arguments)
    except TypeError as error:
        refused = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
        if not _takes_any(parameters) or refused is None or refused[2] not in arguments:
            raise
        # The libraries' builders take anything, and hand it to a class.
        kind = getattr(sys.modules.get(getattr(function, "__module__", "")), refused[1], None)
        near = did_you_mean(refused[2], inspect.signature(kind).parameters) if kind else ""
        raise MomentexError(_sentences(f"{name!r} takes no argument {refused[2]!r}.", near)) from error


_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _check_arguments(name: str, parameters: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]) -> None:
    known = [key for key, p in parameters.items() if p.kind not in (*_ANY, inspect.Parameter.POSITIONAL_ONLY)]
    for given in arguments:
        if given not in known:
            listed = f"It takes {', '.join(known)}." if known else "It takes none."
            raise MomentexError(
                _sentences(f"{name!r} takes no argument {given!r}.", did_you_mean(given, known), listed)
            )


# --- importing -------------------------------------------------------------------------------------------------------


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where


def _module_of_file(where: str) -> ModuleType:
    path = Path(where).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        beside = [str(Path(where).with_name(other.name)) for other in sorted(path.parent.glob("*.py"))]
        raise MomentexError(
            _sentences(f"There is no Python file {where!r} (looked for {path}).", did_you_mean(where, beside))
        )
    # One file is one module, whatever the path that it is named by, and never the module of the same name elsewhere.
    name = f"_momentex_{path.stem}_{blake2b(str(path).encode(), digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None  # since the name ends in .py
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # before it runs: dataclasses look for their module
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, _FAILURES):
            raise
        raise _failed(where, path, error) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _module_of_name(where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except _FAILURES as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{where}.".startswith(f"{missing}."):
            raise _failed(where, None, error) from error
        what = f"There is no module {missing!r} that could be imported."
        raise MomentexError(_sentences(what, _as_path(where))) from None


_FAILURES = (Exception, SystemExit)  # a script that ends itself must not end the command that imports it


def _as_path(module: str) -> str:
    file = Path(*module.split(".")).with_suffix(".py")
    return f"A file is named by its path: {file}:FUNCTION." if file.is_file() else ""


def _failed(where: str, path: Path | None, error: BaseException) -> MomentexError:
    """Which line of the file it was: of the calls on the way to the error, the last in that file."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    frames = [f for f in frames if not f.filename.startswith("<frozen ") and f.filename != importlib.__file__]
    file, place, cause = str(path or (frames[0].filename if frames else "")), "", str(error)
    lines = [f.lineno for f in frames if f.filename == file]
    if isinstance(error, SyntaxError) and not lines:  # the file itself: nothing in it has run
        file, lines, cause = error.filename or file, [error.lineno], error.msg
    if lines:
        place = f" ({file}, line {lines[-1]})"
    return MomentexError(f"{where} could not be imported{place}: {type(error).__name__}: {cause}")


def _sentences(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
