from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import paperbench
from paperbench.cli import list_tables
from tests.cli.conftest import Run
from tests.helpers import ROOT, change_yaml, copy_of_specs, paperbench_process

SIZES = {"table1": (11, 5), "table2": (10, 5), "table3": (12, 5), "table4": (8, 5), "table5": (16, 3)}
"""Cells and runs per cell of each table."""


def test_list_prints_tables_profiles_and_next_steps(run: Run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    found = re.findall(r"^(table\d) +(\d+)(?: \+ \d+ on request)? +(\d+) ", out, re.MULTILINE)
    assert {table: (int(cells), int(seeds)) for table, cells, seeds in found} == SIZES
    assert " 12 + 1 on request " in out
    for profile in ("paper", "shallow", "smoke"):
        assert f"\n{profile} " in out
    assert "`paperbench run table2" in out


def test_show_takes_a_profile_and_long(run: Run) -> None:
    _, out, _ = run("show", "table2", "--profile", "smoke")
    assert "iterations 80;" in out
    assert "Claims:" not in out
    assert "Claims:" in run("show", "table2", "--long")[1]


def test_data_check_describes_the_embedded_digits(run: Run) -> None:
    code, out, _ = run("data", "check", "digits")
    assert code == 0
    assert "1,437 to train on, 360 to test" in out
    assert "no: errors on it are not comparable with the paper" in out


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("lst", "Unknown command 'lst'. Did you mean 'list'?"),
        ("show 2", "Unknown table '2'. Did you mean 'table2'?"),
        ("compare table2 --format md", "Unknown --format 'md'. Did you mean 'markdown'?"),
        ("run table2 --incompatible restrat", "Did you mean 'restart'?"),
        ("run table2 --precison=bf16", "Unknown option --precison. Did you mean '--precision'?"),
        ("compare table2 --result x", "Unknown option --result. Did you mean '--results'?"),
        ("--hlep", "Did you mean '--help'?"),
        ("run table2 --incompatible continue", "--incompatible continue has been removed. Resume with the versions"),
        (
            "plan table2 --budget 8h",
            "--budget has been removed. `paperbench plan TABLE` lists the runs that",
        ),
        (
            "compare table2 --noise per-cell",
            "--noise has been removed. Cells share their noise. To judge one by",
        ),
        ("models --batch-size 64 --memory", "--memory has been removed. `paperbench plan TABLE` and `paperbench"),
        ("schema mapping", "Unknown format 'mapping'. Mapping files have been removed. `paperbench evaluate"),
        ("run table2 --cells preakt", "No cell of table2 matches 'preakt'. Did you mean 'preact'?"),
        ("run table2", "CIFAR-10 not found in the directory data."),
        ("run table5", "ImageNet has no index in the directory data."),
        ("data convert . other.npz", "Name the new file cifar10.npz or cifar100.npz"),
        ("verify --data .", "--data needs --rerun. Add --rerun, or omit --data."),
        ("run", "Name a table first, such as `paperbench run table2`."),
        ("show table2 table3", "Unexpected argument 'table3'."),
        ("run table2 --stop-at 0", "--stop-at: must be a whole number of at least 1, not '0'"),
        ("run table2 --seeds 1001", "--seeds: must be at most 1000, not 1001"),
        (
            "run table2 --max-seconds 5x",
            "--max-seconds: must be a time such as 90 (seconds), 45m, 1h30m or 2d, not '5x'",
        ),
    ],
)
def test_mistakes_get_a_short_message_and_status_2(run: Run, arguments: str, message: str) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert message in err
    if "not found" not in err:  # which lists the ways to get the data
        assert len(err.splitlines()) <= 2


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


def test_own_tables_are_read(run: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    change_yaml(specs / "experiments/table2.yaml", (("title",), "My error (%)"))
    assert "My error (%)" in run("list", "--tables", specs)[1]
    change_yaml(specs / "experiments/table2.yaml", (("recipee",), "cifar"))
    code, _, err = run("list", "--tables", specs)
    assert code == 2
    assert "recipee: unknown key. Did you mean 'recipe'?" in err


def test_interrupt_prints_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_tables, "execute", interrupted)
    assert run("list") == (130, "", "paperbench: interrupted. What was saved is kept; repeat the command to go on.\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_lack_of_memory_prints_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def greedy(args: object) -> int:
        raise error

    monkeypatch.setattr(list_tables, "execute", greedy)
    code, out, err = run("list")
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: out of memory (")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("message", ["Resource temporarily unavailable", "can't start new thread"])
def test_limit_of_processes_prints_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def limited(args: object) -> int:
        raise RuntimeError(message)

    monkeypatch.setattr(list_tables, "execute", limited)
    code, _, err = run("list")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"paperbench: error: no more threads can start ({message}). Raise the limit of")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ImportError("a bug")])
def test_other_errors_keep_their_traceback(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def faulty(args: object) -> int:
        raise error

    monkeypatch.setattr(list_tables, "execute", faulty)
    with pytest.raises(type(error), match="a bug"):
        run("list")


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


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # the pipe breaks when the buffer is written
    command = [sys.executable, "-m", "paperbench", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=environment, cwd=tmp_path)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
