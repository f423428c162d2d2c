"""The command: lists, errors, exit codes, and a run from beginning to end."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

import momentex
from momentex import cli, flags
from momentex.recipes import names
from momentex.train.recipe import Exchange, Recipe
from momentex.verbs import compare

DOCUMENT = Path(__file__).parent.parent / "docs" / "training.md"
SOURCE = Path(momentex.__file__).parents[1]

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("momentex.train.engine") is None, reason="there is no engine yet"
)


def refused(capsys, *arguments):
    """What is said on stderr by a command that is refused."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Without the settings of whoever runs the tests; what is written goes to a folder of its own."""
    for name in ("MOMENTEX_DATA", "MOMENTEX_TRACEBACK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def one_thread():
    """More only get in each other's way in networks of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("trian", r"there is no 'trian'; there are train, compare, .*Did you mean 'train'\?"),
        ("train", r"momentex train needs a recipe \(`momentex recipes` lists them, .*or --data\.folder DIR"),
        ("train --seed 1 digits", r"the recipe comes first: momentex train digits …"),
        ("train digts", r"there is no recipe 'digts'\. Did you mean 'digits'"),
        ("train nothere.py:f", r"There is no Python file 'nothere\.py'"),
        ("train digits --epochs 0", r"epochs is 0; it must be 1 or more\."),
        ("train digits --exchange.p 2", r"exchange\.p is 2\.0; it must lie between 0 and 1\."),
        ("train digits --optimizer.lr 0", r"optimizer\.lr is 0\.0; it must be above 0\."),
        ("train digits --exchange.over foo", r"exchange\.over is 'foo'; it is pono, in, ln, gn4"),
        ("train digits --exchange.over ponno", r"exchange\.over is 'ponno'; .* Did you mean 'pono'"),
        ("train digits --exchange.over lrn-mean", r"LRN\(only='mean'\) would move nothing"),
        ("train digits --exchange yes", r"--exchange is 'yes'; it is None \(take it away\)\."),
        ("train digits --exchange", r"--exchange has no value\."),
        (
            "train digits --exchange None --exchange.p 1",
            r"--exchange None takes away what --exchange\.p changes",
        ),
        ("train digits --optimizer adma", r"--optimizer is 'adma'; there are sgd, adam\. Did you mean 'adam'\?"),
        ("train digits --schedule plateau", r"a Plateau schedule looks at the NLL of held-out images"),
        ("train digits --data.name folder", r"data\.name is 'folder' and data\.folder is None"),
        ("train digits --quiet --json", r"--quiet and --json were both given"),
        ("recipes nothing-like-it", r"no recipe has 'nothing-like-it' in its name\."),
        ("recipes cifar10.resnet110_mox", r"no recipe has .*Did you mean 'cifar10\.resnet110_moex'"),
        ("recipes --show", r"--show shows one recipe"),
        ("recipes digits.resnt --show", r"there is no recipe 'digits\.resnt'"),
        ("data gett cifar10", r"momentex data has no 'gett'; .*Did you mean 'get'\?"),
        ("data get cifar10", r"where to was not said: give --to DIR, or set MOMENTEX_DATA\."),
        ("data get cifar11 --to x", r"There is no set 'cifar11'; .*Did you mean 'cifar10'"),
        ("layers cifar:resnet21", r"cifar has no .*'resnet21'\. Did you mean '.*resnet20'"),
        ("layers cifar:resnet20 --input 1 8 8", r"cifar:resnet20 could not take an input of \(2, 1, 8, 8\): .*--input"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(capsys, given, message):
    said = refused(capsys, *given.split())
    assert re.match(f"momentex: {message}", said)
    assert said.count("\n") == 1
    assert said.endswith("\n")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("train digits --epoch 3", "--epochs"),
        ("train digits --exchange.lamb .3", "--exchange.lam"),
        ("train digits --optimizer.lrr .3", "--optimizer.lr"),
        ("evaluate somewhere --wich best", "--which"),
        ("recipes --shw", "--show"),
        ("data --jsn", "--json"),
        ("layers cifar:resnet20 --inptu 3", "--input"),
    ],
)
def test_an_unknown_flag_is_answered_with_a_near_one(capsys, given, near):
    said = refused(capsys, *given.split())
    assert "Unrecognized options" in said
    assert re.search(rf"Perhaps you meant:[^~]*{re.escape(near)} ?", said)


def test_a_value_of_the_wrong_type_names_its_flag(capsys):
    assert "--epochs" in refused(capsys, "train", "digits", "--epochs", "many")


def command(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "momentex", *arguments], env=environment, capture_output=True, text=True, **options
    )


def test_an_error_has_no_traceback_unless_asked_for():
    plain = command("train", "digits.resnt")
    assert (plain.returncode, plain.stdout) == (2, "")
    assert "Traceback" not in plain.stderr
    asked = command("train", "digits.resnt", env={"MOMENTEX_TRACEBACK": "1"})
    assert asked.returncode == 1
    assert "Traceback" in asked.stderr
    assert "RecipeError: there is no recipe 'digits.resnt'" in asked.stderr


def test_a_package_that_is_missing_is_named_with_what_to_do(tmp_path):
    code = "import sys; sys.modules['tyro'] = None; from momentex.cli import main; sys.exit(main(['recipes']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "momentex: this needs tyro, which is not installed. Do: pip install 'momentex[train]'\n"


def test_ctrl_c_says_that_the_same_command_goes_on(capsys, tmp_path):
    (tmp_path / "mine.py").write_text("def recipe(): raise KeyboardInterrupt")
    assert cli.main(["train", "mine.py:recipe", "--to", "a b"]) == 130
    assert capsys.readouterr().err == (
        "momentex: stopped; the same command goes on from here: momentex train mine.py:recipe --to 'a b'\n"
    )


def test_a_reader_who_has_seen_enough_ends_it_quietly():
    writer = subprocess.Popen(
        [sys.executable, "-m", "momentex", "recipes", "--json"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    writer.stdout.close()
    assert writer.stderr.read() == ""
    writer.stderr.close()
    assert writer.wait(timeout=60) == 0


# --- help and lists: fast, without torch -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["--help", "", "--version", "recipes", "data", "train --help", "train cifar10.resnet110 --help", "recipes --help"],
)
def test_help_and_lists_answer_at_once_and_need_neither_torch_nor_numpy(given):
    """Seconds of a processor, start of the interpreter included: other processes may hold the clock up."""
    code = (
        "import sys, time; from momentex.cli import main; code = main(sys.argv[1:])\n"
        "print(time.process_time(), file=sys.stderr)\n"
        "assert code == 0, code\n"
        "assert not {'torch', 'numpy', 'tqdm', 'accelerate', 'sklearn'} & set(sys.modules), sorted(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, *given.split()], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stderr.splitlines()[-1]))
    assert median(seconds) < 0.5


def test_help_lists_every_verb(capsys):
    assert cli.main(["--help"]) == cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {verb} +\w.*\.$", out, re.MULTILINE) for verb in cli.VERBS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"momentex {momentex.__version__}\n"


def test_help_of_a_recipe_has_its_values_and_every_field_of_an_exchange(capsys):
    assert cli.main(["train", "cifar10.resnet110", "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"--epochs INT[^-]*\(default: 164\)", out)
    for field in Exchange.__dataclass_fields__:
        assert f"--exchange.{field.replace('_', '-')}" in out
    assert "--paper" not in out


def test_the_list_has_every_name_and_the_papers_number(capsys):
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recipe", "model", "data", "epochs", "paper", "ours"]
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in names()]
    (line,) = [line for line in lines if line.startswith("cifar100.resnet110_moex ")]
    assert line.split()[1:] == ["cifar:resnet110", "cifar100", "164", "25.47", "±", "0.09"]


def test_patterns_choose_from_the_list(capsys):
    def listed(*patterns):
        assert cli.main(["recipes", *patterns, "--json"]) == 0
        return [row["recipe"] for row in json.loads(capsys.readouterr().out)]

    assert listed("digits_") == [f"digits{arm}" for arm in ("_moex", "_labels_only", "_lam1")]
    assert listed("cifar100*wrn*dropout") == [
        f"cifar100.wrn_28_10{arm}_dropout" for arm in ("", "_moex", "_labels_only", "_lam1")
    ]
    assert listed("digits_lam1", "released") == ["digits_lam1", *listed("released_script")]


def test_a_whole_name_prints_the_lab_note_and_show_the_resolved_recipe(capsys):
    assert cli.main(["recipes", "cifar10.resnet110"]) == 0
    (entry,) = [entry for entry in names() if entry.name == "cifar10.resnet110"]
    assert capsys.readouterr().out.endswith(f"\n\n{entry.note}\n")
    assert cli.main(["recipes", "cifar10.resnet110", "--show"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["epochs"], shown["schedule"]["milestones"]) == (164, [81, 122])


def test_data_says_what_is_here(capsys, tmp_path, monkeypatch):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert cli.main(["data"]) == 0
    assert "No folder was looked in: give --data DIR, or set MOMENTEX_DATA." in capsys.readouterr().out
    for given in (["data", "--data", str(tmp_path)], ["data"]):
        assert cli.main(given) == 0
        out = capsys.readouterr().out
        assert f"here: {tmp_path}/cifar-10-batches-bin" in out
        assert re.search(r"^cifar100: .*\n    not here; looked for: .*cifar-100-python", out, re.MULTILINE)
        monkeypatch.setenv("MOMENTEX_DATA", str(tmp_path))
    assert cli.main(["data", "--json"]) == 0
    here = {row["name"]: row["here"] for row in json.loads(capsys.readouterr().out)}
    assert here["cifar10"] == f"{tmp_path}/cifar-10-batches-bin"
    assert here["cifar100"] is None


@pytest.mark.parametrize(
    ("given", "layer", "takes"),
    [
        ("cifar:densenet_bc_100", "dense1", "(2,24,32,32)"),
        ("torchvision:resnet18", "layer1", "(2,64,56,56)"),
        ("torchvision:resnet18 --input 3 64 64", "layer1", "(2,64,16,16)"),
    ],
)
def test_layers_marks_the_first_stage(capsys, given, layer, takes):
    assert cli.main(["layers", *given.split(), "--json"]) == 0
    (recommended,) = [site for site in json.loads(capsys.readouterr().out) if site["recommended"]]
    assert (recommended["layer"], recommended["takes"]) == (layer, takes)


def test_layers_prints_a_table(capsys):
    assert cli.main(["layers", "cifar:resnet20"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^layer1 +Sequential +\(2,16,32,32\) +\(2,16,32,32\) +recommended$", out, re.MULTILINE)


# --- runs ------------------------------------------------------------------------------------------------------------

SHORT = ["train", "digits_moex", "--epochs", "2", "--evaluation.every", "1"]


@needs_engine
def test_a_run_is_trained_and_measured_again(capsys, tmp_path):
    to = str(tmp_path / "run")
    assert cli.main([*SHORT, "--to", to]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^epoch 2/2: loss [\d.]+, .*error [\d.]+ %", err, re.MULTILINE)
    error = re.search(r"^last: epoch 2, .*error ([\d.]+) %", out, re.MULTILINE)[1]
    assert out.endswith(f"run: {to}\n")

    assert cli.main(["evaluate", to]) == 0
    assert f"error {error} %" in capsys.readouterr().out
    assert cli.main(["evaluate", to, "--which", "best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] <= float(error) + 0.01
    (tmp_path / "run" / "best.safetensors").rename(tmp_path / "kept")
    assert "best.safetensors" in refused(capsys, "evaluate", to, "--which", "best")
    (tmp_path / "kept").rename(tmp_path / "run" / "best.safetensors")
    start = json.loads((tmp_path / "run" / "run.json").read_text())["starts"][0]
    assert start["command"] == shlex.join(["momentex", *SHORT, "--to", to])

    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert cli.main([*SHORT, "--to", to]) == 0  # nothing is left to do
    assert "/2: " not in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    said = refused(capsys, *SHORT, "--epochs", "3", "--to", to)
    assert re.match(r"momentex: .* holds a run of another recipe:\s+epochs: 2 there, 3 now\s.*--to", said)


@needs_engine
def test_the_default_folder_is_of_recipe_and_seed(capsys, tmp_path):
    mine = "from momentex.recipes import find\ndef recipe(): return find('digits')"
    (tmp_path / "mine.py").write_text(mine)
    assert cli.main(["train", "mine.py:recipe", "--epochs", "1", "--seed", "3", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "runs" / "mine.recipe" / "seed-3" / "metrics.jsonl").exists()


@needs_engine
def test_json_is_an_object_for_each_epoch(capsys):
    assert cli.main([*SHORT, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert all(0 <= row["error"] <= 100 for row in rows)


@needs_engine
def test_of_several_processes_only_the_first_tells(tmp_path):
    done = command(*SHORT, "--to", str(tmp_path / "run"), env={"RANK": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_engine
def test_ctrl_c_leaves_a_run_that_the_same_command_goes_on_with(tmp_path):
    arguments = ["train", "digits", "--epochs", "300", "--to", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "momentex", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert run.stderr.readline().startswith("epoch 1/300: ")
    run.send_signal(signal.SIGINT)
    said = run.stderr.read()
    run.stderr.close()
    assert run.wait(timeout=60) == 130
    last = said.splitlines()[-1]
    assert last == f"momentex: stopped; the same command goes on from here: {shlex.join(['momentex', *arguments])}"
    assert "Traceback" not in said

    again = subprocess.Popen(
        [sys.executable, "-m", "momentex", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert re.match(r"going on after epoch [1-9]", again.stderr.readline())
    again.send_signal(signal.SIGINT)
    again.stderr.read()
    again.stderr.close()
    assert again.wait(timeout=60) == 130


# --- the page --------------------------------------------------------------------------------------------------------

COMMANDS = re.findall(r"^momentex (.*?)(?: +#.*)?$", DOCUMENT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_page_are_understood(line, monkeypatch):
    verb, *rest = shlex.split(line)
    if verb == "train":
        assert isinstance(flags.train(rest)[1].recipe, Recipe)
    elif verb == "recipes":
        assert cli.main([verb, *rest]) == 0
    elif verb == "evaluate":
        assert flags.parse(cli.Evaluate, rest, prog="momentex evaluate").run.name == "seed-0"
    elif verb == "layers":
        assert flags.parse(cli.Layers, rest, prog="momentex layers").model == "torchvision:resnet18"
    elif verb == "compare":
        assert isinstance(compare.parsed(rest)[1].recipe, Recipe)
    elif rest[:1] == ["get"]:
        assert flags.parse(cli.DataGet, rest[1:], prog="momentex data get").name == "cifar10"
    else:
        assert verb == "data"
        assert cli.main(["data"]) == 0


def test_the_page_uses_every_verb_that_has_no_page_of_its_own():
    assert {line.split()[0] for line in COMMANDS} >= set(cli.VERBS) - {"compare", "report", "sweep"}
