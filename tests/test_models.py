"""From a name to a model: this package's, a library's, the user's own; and what is said when that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import momentex
from momentex.errors import MomentexError
from momentex.models import build, first_site, load_function
from momentex.models.cifar import FAMILIES, ZOO
from tests.models import same

MINE = """
import torch
from torch import nn
from layers import head

LIMIT = 3

def net(num_classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), head(width, num_classes))

def fixed(width=4):
    return nn.Linear(12, width)

def anything(**arguments):
    return Net(**arguments)

class Net(nn.Module):
    def __init__(self, num_classes, depth):
        super().__init__()
        self.num_classes, self.depth = num_classes, depth

def number(num_classes):
    return num_classes

def forgotten():
    return Net
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A file of the user's, which imports another from its folder."""
    (tmp_path / "layers.py").write_text("from torch.nn import Linear as head\n")
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path / "mine.py"
    sys.modules.pop("layers", None)


def with_text(folder: Path, text: str, name: str = "broken.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


# --- libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_is_built_by_its_name(name: str) -> None:
    with torch.device("meta"):
        model = build(f"cifar:{name}", 100)
    assert sum(p.numel() for p in model.parameters()) == ZOO[name].parameters_100


def test_arguments_reach_the_builder_of_the_zoo() -> None:
    assert build("cifar:wrn_28_10", 10, dropout=0.3).layer1[0].dropout.p == 0.3
    assert build("cifar:densenet_bc", 10, depth=10, growth_rate=4, use_checkpoint=True).dense1.use_checkpoint
    assert build("cifar:resnet", 10, depth=8, in_channels=1).conv1.in_channels == 1


def test_a_torchvision_model_has_the_classes_that_are_asked_for_and_no_weights_from_elsewhere() -> None:
    model = build("torchvision:resnet18", 7, width_per_group=64)
    assert model.fc.out_features == 7
    torch.manual_seed(3)
    first = build("torchvision:squeezenet1_1", 7)
    torch.manual_seed(3)
    again = build("torchvision:squeezenet1_1", num_classes=7)
    assert all(same(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_timm_builds_its_own_models() -> None:
    pytest.importorskip("timm")
    assert build("timm:resnet18", 7).get_classifier().out_features == 7
    with pytest.raises(MomentexError, match=r"timm has no classifier 'resnt18'\. Did you mean .*'resnet18'"):
        build("timm:resnt18", 7)


@pytest.mark.parametrize(
    ("library", "needed"),
    [
        ("timm", r"'timm:resnet18' needs timm, which is not installed\. Do: pip install 'momentex\[timm\]'$"),
        ("torchvision", r"'torchvision:resnet18' needs torchvision, .* Do: pip install 'momentex\[train\]'$"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_what_installs_it(
    library: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MomentexError, match=needed):
        build(f"{library}:resnet18", 10)


def test_a_library_that_lacks_something_itself_says_so_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_text(tmp_path, "import nowhere_at_all\n", "timm.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        build("timm:resnet18", 10)


def test_first_site_is_recorded_for_the_zoo_and_its_families_alone() -> None:
    assert {name: first_site(f"cifar:{name}") for name in ZOO} == {name: entry.site for name, entry in ZOO.items()}
    assert {name: first_site(f"cifar:{name}") for name in FAMILIES} == {name: f.site for name, f in FAMILIES.items()}
    for other in ("cifar:resnet21", "resnet20", "torchvision:resnet18", "timm:resnet18", "mine.py:resnet20"):
        assert first_site(other) is None


# --- the user's own --------------------------------------------------------------------------------------------------


def test_a_function_in_a_file_is_called_with_the_classes_if_it_takes_them(mine: Path) -> None:
    assert build(f"{mine}:net", 5)[2].out_features == 5
    assert build(f"{mine}:net", 5, width=6)[1].out_features == 6
    assert build(f"{mine}:fixed", 5).out_features == 4
    assert build(f"{mine}:anything", 5, depth=2).num_classes == 5
    assert build(f"{mine}:Net", 5, depth=2).depth == 2


def test_a_function_in_a_module_is_called_too() -> None:
    assert build("momentex.models.cifar.resnet:resnet20", 5).fc.out_features == 5
    assert build("momentex.models.cifar.resnet:resnet", 5, depth=8).fc.out_features == 5


def test_a_path_may_be_relative_or_of_the_home_folder(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    monkeypatch.setenv("HOME", str(mine.parent))
    assert load_function("mine.py:net") is load_function(f"./{mine.name}:net") is load_function("~/mine.py:net")


def test_a_file_runs_once_and_is_a_private_module_that_dataclasses_and_pickle_find(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "Path(__file__).with_name('it ran').touch(exist_ok=False)\n"
        "@dataclass\n"
        "class Value:\n"
        "    number: int = 3\n"
    )
    file = with_text(tmp_path, text, "json.py")
    value = load_function(f"{file}:Value")
    assert load_function(f"{file}:Value") is value
    assert value().number == 3
    assert value.__module__.startswith("_momentex_json_")
    assert sys.modules[value.__module__].Value is value
    assert not hasattr(sys.modules["json"], "Value")


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with_text(tmp_path / folder, f"def which(): return {folder!r}\n", "mine.py")
    assert [load_function(f"{tmp_path / folder}/mine.py:which")() for folder in ("a", "b")] == ["a", "b"]


def test_the_folder_of_a_file_is_importable_while_it_runs_and_not_after(mine: Path) -> None:
    before = list(sys.path)
    load_function(f"{mine}:net")
    assert sys.path == before
    with pytest.raises(MomentexError, match="could not be imported"):
        load_function(f"{with_text(mine.parent, 'import nowhere')}:net")
    assert sys.path == before


def test_a_file_that_failed_runs_again_once_it_is_mended(tmp_path: Path) -> None:
    file = with_text(tmp_path, "def net(): return 1 +\n")
    with pytest.raises(MomentexError, match="SyntaxError"):
        load_function(f"{file}:net")
    with_text(tmp_path, "def net(): return 'mended'\n")
    assert load_function(f"{file}:net")() == "mended"


def test_an_interrupt_while_a_file_runs_is_an_interrupt(tmp_path: Path) -> None:
    file = with_text(tmp_path, "raise KeyboardInterrupt\n")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            load_function(f"{file}:net")


def test_names_sites_and_functions_need_no_torch(tmp_path: Path) -> None:
    file = with_text(tmp_path, "def recipe(): return 'found'\n", "recipes.py")
    code = (
        "import sys\n"
        "from momentex.models import first_site, load_function\n"
        "from momentex.models.cifar import ZOO\n"
        "assert all(first_site('cifar:' + name) == entry.site for name, entry in ZOO.items())\n"
        f"assert load_function({str(file)!r} + ':recipe')() == 'found'\n"
        "heavy = {'torch', 'torchvision', 'timm', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    path = os.pathsep.join([str(Path(momentex.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, timeout=120, check=False)
    assert run.returncode == 0


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cifar:resnet21",
            r"^cifar has no classifier 'resnet21'\. Did you mean .*'resnet20'.*\? It has resnet20, .*; and",
        ),
        ("torchvision:resnt18", r"^torchvision has no classifier 'resnt18'\. Did you mean 'resnet18'.* lists all\.$"),
        ("torchvision:fasterrcnn_resnet50_fpn", r"^torchvision has no classifier 'fasterrcnn_resnet50_fpn'\."),
        (
            "torchvison:resnet18",
            r"'torchvison' is no library of models.* Did you mean 'torchvision'\? Write cifar:MODEL,",
        ),
        (
            "nowhere:net",
            r"^'nowhere:net': 'nowhere' is no library of models, and no module that could be imported\. Wr",
        ),
        (
            "resnet20",
            r"^'resnet20' does not say whose model it is\. Did you mean 'cifar:resnet20'.*\? Write cifar:MODEL,",
        ),
        ("xyz", r"^'xyz' does not say whose model it is\. Write cifar:MODEL, .* or package\.module:FUNCTION\.$"),
        ("mine.py", r"^'mine\.py' does not say which function of which file: write path/to/mine\.py:FUNCTION or"),
        ("mine.py:", r"^'mine\.py:' does not say which function of which file"),
        ("momentex.nowhere.net:net", r"^There is no module 'momentex\.nowhere' that could be imported\.$"),
        ("momentex.models.cifar.resnet:resnet32", r"has no function 'resnet32'\. Did you mean .*'resnet20'"),
        (
            "momentex.models.cifar.resnext:STEM",
            r"^'STEM' in momentex\.models\.cifar\.resnext is an int; it must be a fun",
        ),
    ],
)
def test_a_name_that_means_nothing_says_what_was_meant_or_what_there_is(name: str, message: str) -> None:
    with pytest.raises(MomentexError, match=message):
        build(name, 10)


def test_a_missing_file_is_refused_with_its_whole_path_and_near_names(mine: Path) -> None:
    wrong = mine.with_name("mime.py")
    with pytest.raises(
        MomentexError, match=rf"^There is no Python file '{wrong}' \(looked for .*\)\. Did you mean '{mine}'"
    ):
        build(f"{wrong}:net", 10)
    with pytest.raises(MomentexError, match=rf"no Python file '{mine.with_suffix('')}' .*Did you mean '{mine}'"):
        build(f"{mine.with_suffix('')}:net", 10)


def test_a_module_that_is_a_file_here_is_refused_with_its_path(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    with pytest.raises(MomentexError, match=r"A file is named by its path: mine\.py:FUNCTION\. Write"):
        build("mine:net", 10)
    with pytest.raises(MomentexError, match=r"^There is no module 'mine' .*A file is named by its path: mine\.py:FUNC"):
        load_function("mine:net")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            "nett",
            {},
            r"mine\.py has no function 'nett'\. Did you mean 'net'.*\? It has net, fixed, anything, Net, number, f",
        ),
        ("LIMIT", {}, r"^'LIMIT' in .*mine\.py is an int; it must be a function\.$"),
        ("number", {}, r"mine\.py:number' returned an int; it must return a torch\.nn\.Module\.$"),
        ("forgotten", {}, r"mine\.py:forgotten' returned the class Net; it must return a torch\.nn\.Module\.$"),
        (
            "net",
            {"widht": 3},
            r":net' takes no argument 'widht'\. Did you mean 'width'\? It takes num_classes, width\.$",
        ),
        ("forgotten", {"width": 3}, r":forgotten' takes no argument 'width'\. It takes none\.$"),
        ("anything", {"dept": 3}, r":anything' takes no argument 'dept'\. Did you mean 'depth'\?$"),
        ("Net", {}, r":Net' needs depth, which was not given: add it to the arguments\.$"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_with_what_it_takes(
    mine: Path, function: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(MomentexError, match=message):
        build(f"{mine}:{function}", 10, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "cifar:wrn_28_10",
            {"drop": 0.3},
            r"takes no argument 'drop'\. .*It takes num_classes, in_channels, dropout, branch\.$",
        ),
        ("cifar:resnet", {}, r"^'cifar:resnet' needs depth, which was not given"),
        (
            "torchvision:resnet18",
            {"width_per_grup": 64},
            r"takes no argument 'width_per_grup'\. Did you mean 'width_per_g",
        ),
        ("torchvision:vit_b_16", {"dropuot": 0.1}, r"takes no argument 'dropuot'\. Did you mean 'dropout'"),
    ],
)
def test_an_argument_that_a_librarys_model_does_not_take_is_refused(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(MomentexError, match=message):
        build(name, 10, **arguments)


def test_an_error_inside_of_a_builder_stays_what_it_is(tmp_path: Path) -> None:
    file = with_text(tmp_path, "def net(**arguments): return len(3)\n")
    with pytest.raises(TypeError, match="has no len"):
        build(f"{file}:net", 10)


FAILING = {
    "x = 1\nx = nowhere\n": r"broken\.py could not be imported \(.*broken\.py, line 2\): NameError: name 'nowhere'",
    "x = 1\n\nif x\n": r"broken\.py could not be imported \(.*broken\.py, line 3\): SyntaxError: expected ':'$",
    "import nowhere\n": r"\(.*broken\.py, line 1\): ModuleNotFoundError: No module named 'nowhere'$",
    "def f():\n    1 / 0\n\nf()\n": r"\(.*broken\.py, line 2\): ZeroDivisionError: division by zero$",
    "\nimport fractions\nfractions.Fraction(1, 0)\n": r"\(.*broken\.py, line 3\): ZeroDivisionError: Fraction\(1, 0\)$",
    "\n\nimport sys\nsys.exit('usage')\n": r"\(.*broken\.py, line 4\): SystemExit: usage$",
    "\nimport sibling\n": r"\(.*broken\.py, line 2\): SyntaxError: '\(' was never closed \(sibling\.py, line 1\)$",
}


@pytest.mark.parametrize(
    ("text", "message"), FAILING.items(), ids=["name", "own syntax", "module", "call", "elsewhere", "exit", "sibling"]
)
@pytest.mark.parametrize("load", [load_function, lambda name: build(name, 10)], ids=["load", "build"])
def test_a_file_that_fails_is_refused_with_the_file_the_line_and_the_cause(
    tmp_path: Path, text: str, message: str, load: Callable[[str], object]
) -> None:
    with_text(tmp_path, "x = (\n", "sibling.py")
    with pytest.raises(MomentexError, match=message) as refused:
        load(f"{with_text(tmp_path, text)}:net")
    assert refused.value.__cause__ is not None


def test_a_module_that_fails_is_refused_with_the_file_the_line_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "failing_package").mkdir()
    with_text(tmp_path / "failing_package", "", "__init__.py")
    with_text(tmp_path / "failing_package", "x = 1\nimport nowhere.at.all\n", "inner.py")
    message = (
        r"^failing_package\.inner could not be imported \(.*inner\.py, line 2\): ModuleNotFoundError: No module named"
    )
    with pytest.raises(MomentexError, match=message):
        load_function("failing_package.inner:net")
    with pytest.raises(MomentexError, match=r"^There is no module 'failing_package\.outer' that could be imported\.$"):
        load_function("failing_package.outer:net")


def test_what_is_built_is_a_module_that_learns() -> None:
    model = build("cifar:resnet", 3, depth=8, width=4)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert isinstance(model, nn.Module)
    assert all(p.grad is not None for p in model.parameters())
