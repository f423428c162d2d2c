"""What importing costs, what it drags in, and which way imports point."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

import momentex

SOURCE = Path(momentex.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
API = SOURCE.parent.parent / "docs" / "api.md"


def python(code: str) -> str:
    """What a fresh interpreter prints, with this package importable as it is here."""
    path = os.pathsep.join([str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


RESOLVE = "import momentex; [getattr(momentex, name) for name in momentex.__all__]"


def modules_after(code: str) -> set[str]:
    return set(json.loads(python(f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))")))


def test_importing_the_package_imports_neither_torch_nor_any_module_of_its_own() -> None:
    loaded = modules_after("import momentex")
    assert not {m for m in loaded if m == "torch" or m.startswith(("torch.", "numpy", "momentex."))}


def test_what_moments_range_over_needs_no_torch() -> None:
    loaded = modules_after("from momentex import PONO, IN, LN, GN, LRN; GN(4); PONO(groups=2, only='std')")
    assert "torch" not in loaded
    assert {m for m in loaded if m.startswith("momentex.")} == {"momentex.over", "momentex.errors"}


def test_every_public_name_together_needs_torch_and_nothing_else() -> None:
    new = modules_after(RESOLVE) - modules_after("import torch")
    ours = {m for m in new if m.split(".")[0] == "momentex"}
    standard = {m for m in new if m.split(".")[0].lstrip("_") in sys.stdlib_module_names | {"hashlib", "blake2"}}
    assert new - ours - standard == set()


def test_attaching_and_one_step_import_no_compiler_and_none_of_the_heavy_packages() -> None:
    step = (
        "import torch, momentex\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))\n"
        "moex = momentex.MomentExchange(model, '1', p=1.0)\n"
        "y = torch.tensor([0, 1])\n"
        "with moex(y) as targets: loss = targets.cross_entropy(model(torch.randn(2, 3)))\n"
        "loss.backward(); moex.diagnostics()"
    )
    plain = "import torch\nm = torch.nn.Linear(3, 2); m(torch.randn(2, 3)).sum().backward()"
    new = modules_after(step) - modules_after(plain)
    heavy = (
        "torchvision",
        "accelerate",
        "matplotlib",
        "pandas",
        "scipy",
        "sklearn",
        "torch._dynamo",
        "torch._inductor",
    )
    assert not {m for m in new if m.startswith(heavy)}


def test_all_public_names_are_imported_within_150_milliseconds_of_torch() -> None:
    """Seconds of a processor for importing all of momentex after torch; others may hold the clock up."""
    timed = (
        "import torch, time; start = time.process_time()\n"
        f"{RESOLVE}; print(time.process_time() - start)"
    )  # fmt: skip
    assert median(float(python(timed)) for _ in range(5)) <= 0.15


# --- which way they point --------------------------------------------------------------------------------------------

ORDER = {  # what each module of the core may import of ours, directly
    "__init__": set(),
    "errors": set(),
    "over": {"errors"},
    "opened": {"errors", "over"},
    "moments": {"errors", "over", "opened"},
    "pairing": {"errors"},
    "targets": {"errors", "pairing"},
    "kernels": {"opened", "moments"},
    "exchange": {"errors", "over", "opened", "moments", "pairing"},
    "replay": {"errors"},
    "attach": {"errors", "over", "opened", "moments", "exchange", "replay"},
    "diagnostics": {"errors", "moments", "pairing"},
    "blocks": {"errors", "opened", "pairing", "targets", "replay", "attach", "diagnostics"},
    "moex": {"errors", "over", "pairing", "targets", "exchange", "attach", "diagnostics", "blocks"},
    "survey": {"errors", "over", "exchange", "targets", "attach", "diagnostics", "moex"},
}
PACKAGES = {  # what each package may import besides itself
    "augment": {"errors", "pairing", "targets"},
    "models": {"errors"},
    "data": {"errors"},
    "feature": {*ORDER},
    "evaluate": {*ORDER},
    "train": {*ORDER, "augment", "feature", "models", "data", "evaluate"},
    "recipes": {"errors", "over", "augment", "models", "train"},
    "sweep": {"errors", "over", "pairing", "train", "recipes"},
    "comparison": {"errors", "train", "recipes", "sweep"},
    "ablations": {"errors", "over", "train", "recipes", "sweep"},
    "swept": {"errors", "train", "sweep", "comparison"},
    "report": {"errors", "comparison", "sweep", "swept"},
    "comparing": {"errors", "train", "comparison", "report"},
    "flags": {"errors", "over", "augment", "train", "recipes"},
    "verbs": {
        *("errors", "train", "recipes", "sweep", "comparison", "ablations", "swept"),
        *("report", "comparing", "flags"),
    },
    "cli": {*ORDER, "models", "data", "train", "recipes", "flags", "verbs"},
    "__main__": {"cli"},
}


def name_of(file: Path) -> str:
    """Dotted, within the package: `exchange`, `data.cifar`, `data` for its __init__."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def top(name: str) -> str:
    return name.split(".")[0]


CORE = [f for f in FILES if name_of(f) in ORDER]
OTHERS = [f for f in FILES if name_of(f) not in ORDER]


def imports_of(file: Path) -> set[str]:
    """Names within momentex that this file imports, those under TYPE_CHECKING and in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "momentex":
            within = node.module.removeprefix("momentex").removeprefix(".")
            found |= {within} if within else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("momentex.") for a in node.names if a.name.startswith("momentex.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file.name}: a relative import"
    return found


@pytest.mark.parametrize("file", [f for f in CORE if f.stem != "__init__"], ids=name_of)
def test_imports_point_one_way(file: Path) -> None:
    assert imports_of(file) <= ORDER[name_of(file)]


@pytest.mark.parametrize("file", OTHERS, ids=name_of)
def test_imports_between_packages_point_one_way(file: Path) -> None:
    here = top(name_of(file))
    assert here in PACKAGES, f"{here} is new: say in ORDER or PACKAGES what it may import"
    assert {top(name) for name in imports_of(file)} <= PACKAGES[here] | {here, "__init__"}


def test_the_order_has_no_circle_and_no_module_that_is_gone() -> None:
    assert set(ORDER) == {name_of(f) for f in CORE}
    seen: list[str] = []
    for name, allowed in (ORDER | PACKAGES).items():
        later = allowed - set(seen)
        assert not later, f"{name} may import {later}, which stands after it"
        seen.append(name)


def test_nothing_of_the_core_is_imported_inside_of_a_function() -> None:
    """An import that hides is an arrow that the order does not show."""
    hidden = []
    for file in CORE:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                hidden += [(file.name, n.lineno) for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert not hidden


# --- the public names ------------------------------------------------------------------------------------------------


def typed_names() -> dict[str, str]:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname: node.module.removeprefix("momentex.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_names_for_type_checkers_are_the_names_that_are_resolved() -> None:
    assert typed_names() == momentex._HOME
    assert sorted(momentex.__all__) == sorted(momentex._HOME)


@pytest.mark.parametrize("name", momentex.__all__)
def test_every_public_name_has_its_home_in_the_module_that_is_said_and_a_docstring_with_an_example(name: str) -> None:
    assert getattr(momentex, name).__module__ == f"momentex.{momentex._HOME[name]}"
    assert ">>> " in getattr(momentex, name).__doc__  # an example, which the tests run
    assert name in dir(momentex)


def test_the_api_page_lists_the_public_names() -> None:
    listed = re.findall(r"^::: momentex\.(\w+)\s*$", API.read_text(), flags=re.MULTILINE)
    assert set(momentex.__all__) <= set(listed)
    assert set(listed) - set(momentex.__all__) == {"errors"}
    assert len(listed) == len(set(listed))


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'MoEx'; it has .*MomentExchange"):
        momentex.MoEx  # noqa: B018


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_module_is_longer_than_400_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400
