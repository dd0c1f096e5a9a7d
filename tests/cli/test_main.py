from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import paperbench
from paperbench.cli.main import exit_status
from tests.cli.conftest import Run, validated
from tests.golden import assert_golden
from tests.helpers import ROOT, change_yaml, copy_of_specs, paperbench_process, python


@pytest.mark.parametrize(
    "command",
    [
        *("list", "models", "models --long", "models preact_resnet164.cifar100"),
        *("show table2 --profile smoke", "data check digits"),
    ],
)
def test_lists(run: Run, command: str) -> None:
    code, out, err = run(*command.split())
    assert (code, err) == (0, "")
    assert_golden(command.replace(" ", "_").replace("--", ""), out)


def test_show_takes_long(run: Run) -> None:
    assert "\nClaims:\n" in run("show", "table2", "--long")[1]


def test_tables_are_listed_and_shown_as_json(run: Run) -> None:
    names = [one["table"] for one in validated("list", run("list", "--format", "json")[1])["tables"]]
    for arguments in (*names, "table2 --profile smoke", "table1 --set momentum=0.8"):
        shown = validated("show", run("show", *arguments.split(), "--format", "json")[1])
        for file in ("experiment", "expected"):
            validated(file, json.dumps(shown[file]))
        assert {net["recipe"] for net in shown["nets"]} == {*shown["recipes"]}
        printed = {cell: float(one["params"][:-1]) for cell, one in shown["published"].items() if one["params"]}
        counted = {net["cell"]: net["parameters"] / 1e6 for net in shown["nets"] if net["cell"] in printed}
        assert counted == pytest.approx(printed, rel=0.03)


def test_data_convert_writes_a_file_that_data_check_reads(run: Run) -> None:
    for part in ("train", "test"):
        for label in range(10):
            directory = Path("images") / part / str(label)
            directory.mkdir(parents=True)
            Image.new("RGB", (32, 32), (label, 0, 0)).save(directory / "one.png")
    code, out, _ = run("data", "convert", "images", "mine/cifar10.npz")
    assert code == 0
    assert "10 to train on, 10 to test" in out
    assert run("data", "check", "cifar10", "--data", "mine") == (0, out, "")
    assert run("data", "convert", "images", "mine/other.npz", "--dataset", "cifar10")[0] == 0


@pytest.mark.parametrize("width", [60, pytest.param(200, marks=pytest.mark.full)])
def test_help_and_lists_fit_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    outputs = [
        run(*arguments.split())
        for arguments in ("--help", "run --help", "plan --help", "record --help", "list", "models")
    ]
    assert {(code, err) for code, _, err in outputs} == {(0, "")}
    assert max(len(line) for _, out, _ in outputs for line in out.splitlines()) <= width


def test_help_groups_the_commands_and_is_printed_without_arguments(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert run() == (2, out, "")
    assert [line for line in out.splitlines() if line.endswith(":")][1:] == [
        "Inspect:",
        "Train:",
        "Compare:",
        "Present:",
        "Utilities:",
    ]


def test_own_tables_are_read_and_a_broken_one_stops_no_other(run: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    change_yaml(specs / "experiments/table2.yaml", (("title",), "My error (%)"))
    assert "My error (%)" in run("list", "--tables", specs)[1]
    change_yaml(specs / "experiments/table5.yaml", (("recipee",), "imagenet"))
    code, out, err = run("list", "--tables", specs)
    assert (code, err) == (1, "")
    assert "My error (%)" in out
    assert re.search(
        r"table5 +- +- +cannot be read:.*recipee: unknown key. Did you mean 'recipe'", " ".join(out.split())
    )
    for command in (("models",), ("report", "--out", "page"), ("status",), ("plot", "fig6", "--profile", "smoke")):
        results = () if command[0] == "models" else ("--results", ROOT / "results" / "smoke")
        code, _, err = run(*command, *results, "--tables", specs)
        assert (code, len(err.splitlines())) == (0, 1)
        assert err.startswith("paperbench: left out: table5: ")


def failing(error: BaseException) -> Callable[[], int]:
    def execute() -> int:
        raise error

    return execute


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "paperbench: interrupted. What was saved is kept; repeat the command to go on."),
        (MemoryError(), 2, "paperbench: error: out of memory (an allocation failed). Close"),
        (ImportError("libtorch_cpu.so: failed to map segment"), 2, "paperbench: error: out of memory (libtorch"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory"), 2, "out of memory ([enforce"),
        (RuntimeError("Resource temporarily unavailable"), 2, "no more threads can start (Resource"),
        (RuntimeError("can't start new thread"), 2, "no more threads can start (can't start new thread). Raise"),
    ],
)
def test_errors_of_the_system_print_no_traceback(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    importlib.import_module("paperbench.training.memory")  # which knows torch's errors
    assert exit_status(failing(error)) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ImportError("a bug")])
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match="a bug"):
        exit_status(failing(error))


def test_further_lines_of_an_error_are_indented(run: Run, tmp_path: Path) -> None:
    (copy_of_specs(tmp_path) / "experiments" / "a\nOK: all is well.yaml").write_text("{")
    code, _, err = run("show", "xyz", "--tables", tmp_path)
    assert code == 2
    assert "\n  OK: all is well" in err
    assert "\nOK" not in err


def test_command_line_works_as_a_process(tmp_path: Path) -> None:
    version = paperbench_process("--version", cwd=tmp_path)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"paperbench {paperbench.__version__}\n", "")
    wrong = paperbench_process("show", "tabel2", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines())) == (2, "", 1)


def test_windows_is_told_of_wsl_before_anything_else_and_every_module_can_be_imported(tmp_path: Path) -> None:
    """On what stands in for Windows: without the modules that Python lacks there."""
    program = """
import pkgutil, platform, sys
import matplotlib, multiprocessing.util, numpy, pandas, pyarrow, scipy, sklearn, timm, torch, torchcodec, torchvision
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"), None))
import paperbench
for module in pkgutil.walk_packages(paperbench.__path__, "paperbench."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
platform.system = lambda: "Windows"
from paperbench.cli.main import main
main(["show", "tabel2"])
"""
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()
    assert first == "paperbench: Windows does not rename open files, so no run can be saved. Use WSL 2."
    assert second.startswith("paperbench: error: ")


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # the pipe breaks when the buffer is written
    command = [sys.executable, "-m", "paperbench", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=environment, cwd=tmp_path)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
