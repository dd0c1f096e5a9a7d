"""Nets of functions that a table names: trained, resumed, compared and checked; their code is run only where needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paperbench.catalogue import own_net
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Recipe
from paperbench.training.facts import facts_of
from tests.cli.conftest import Run
from tests.conftest import ROOT
from tests.helpers import change_yaml, copy_of_tiny_specs, edit, paperbench_process

SMOKE = ("--profile", "smoke", "--device", "cpu")
HELPER = "def width(): return 8\n"
CODE = """import torch
from helper_of_nets import width
{above}
def net(num_classes):
    torch.rand(1)
    layers = [torch.nn.Conv2d(3, width(), 3, stride=4), torch.nn.BatchNorm2d(width()), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * width(), num_classes))
"""


def write_code(specs: Path, above: str = "") -> None:
    (specs / "nets.py").write_text(CODE.format(above=above))


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """Table 2 whose ResNet-110 with ReLU-only pre-activation is replaced by a net of one's own."""
    specs = copy_of_tiny_specs(tmp_path / "specs")
    change_yaml(specs / "experiments/table2.yaml", (("rows", 3, "cells", "resnet110"), "nets.py:net"))
    write_code(specs)
    (specs / "helper_of_nets.py").write_text(HELPER)
    return specs


@pytest.fixture
def own(run: Run, specs: Path, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Gives a command for the net, in a results directory."""

    def call(command: str, *options: str, results: str = "results") -> tuple[int, str, str]:
        what = () if command == "verify" else ("table2", *SMOKE[: 4 if command == "run" else 2])
        cells = () if command == "verify" else ("--cells", "relu_only_preact/resnet110")
        return run(command, *what, *cells, "--tables", specs, "--results", tmp_path / results, *options)

    return call


def record_of(results: Path) -> dict[str, object]:
    (file,) = results.glob("runs/*/record.json")
    return dict(json.loads(file.read_text()))


def test_net_is_trained_resumed_verified_and_compared(own: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    assert own("run", "--stop-at", "3")[0] == 0
    assert own("run")[0] == 0
    assert own("run", results="whole")[0] == 0
    resumed, whole = (record_of(tmp_path / name) for name in ("results", "whole"))
    assert resumed["result"] == whole["result"]
    assert resumed["facts"] == whole["facts"]
    assert resumed["facts"]
    assert "nets.py:net" in own("compare", "--long")[1]
    status, out, _ = own("verify", "--rerun", "1")
    assert (status, out.count("bit for bit")) == (0, 2)


def test_other_code_is_another_experiment(own: Callable[..., tuple[int, str, str]], specs: Path) -> None:
    assert own("run", "--stop-at", "1")[0] == 0
    write_code(specs, "# another text")
    assert 'net.code was "' in own("compare")[2]


@pytest.mark.full
def test_what_the_code_imports_is_seen_in_its_facts(
    own: Callable[..., tuple[int, str, str]], specs: Path, tmp_path: Path
) -> None:
    assert own("run", "--stop-at", "1")[0] == 0
    edit(specs / "helper_of_nets.py", "8", "16")
    cell = ("table2", *SMOKE, "--cells", "relu_only_preact/resnet110", "--tables", str(specs), "--results", "results")
    again = paperbench_process("run", *cell, cwd=tmp_path)
    assert again.returncode == 2
    assert "was trained with other facts: " in again.stderr


@pytest.mark.parametrize("command", ["list", "show", "status", "compare", "report"])
def test_code_is_not_run_by_commands_that_only_look(
    own: Callable[..., tuple[int, str, str]], run: Run, specs: Path, tmp_path: Path, command: str
) -> None:
    assert own("run", "--stop-at", "1")[0] == 0
    write_code(specs, "raise SystemExit('was run')")
    options = {
        "list": (),
        "show": ("table2",),
        "status": (),
        "compare": ("table2",),
        "report": ("table2", "--out", "page"),
    }
    results = () if command in ("list", "show") else ("--results", tmp_path / "results")
    status, out, err = run(command, *options.get(command, ()), "--tables", specs, *results)
    assert (status, "was run" in out + err) == (0, False)


def test_code_that_a_record_names_is_not_run(
    own: Callable[..., tuple[int, str, str]], specs: Path, tmp_path: Path
) -> None:
    assert own("run")[0] == 0
    (tmp_path / "nets.py").write_text("raise SystemExit('was run')")
    found = paperbench_process("verify", "results", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert "holds a net of nets.py:net" in found.stdout


def test_argument_that_no_record_could_hold_is_refused(run: Run, specs: Path) -> None:
    cell = {"model": "nets.py:net", "kwargs": {"rate": float("nan")}}
    change_yaml(specs / "experiments/table2.yaml", (("rows", 3, "cells", "resnet110"), cell))
    code, _, err = run("show", "table2", "--tables", specs)
    assert (code, "must be finite" in err) == (2, True)


def test_net_of_a_function_is_drawn_or_else_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("plot", "own_nets.py:residual", "--tables", ROOT / "tests")[1].startswith("ResNet-8\n")
    monkeypatch.chdir(ROOT / "tests")
    assert "1,290 parameters" in run("plot", "own_nets.py:mixed")[1]
    code, _, err = run("plot", "own_nets.py:mixed", "--format", "svg")
    assert (code, "has no residual units" in err) == (2, True)


@settings(max_examples=25)
@given(st.integers(0, 400), st.integers(1, 30), st.sampled_from(["", "return", "1", "raise OSError\n", "\0", "é"]))
@example(0, 400, "")
@example(0, 0, "raise SystemExit\n")
def test_broken_code_is_an_error_of_one_line(
    tmp_path_factory: pytest.TempPathFactory, paper_recipe: Recipe, at: int, length: int, instead: str
) -> None:
    root = tmp_path_factory.mktemp("broken")
    whole = CODE.format(above="").replace("from helper_of_nets import width", "def width(): return 8")
    (root / "nets.py").write_text(whole[:at] + instead + whole[at + length :], encoding="utf-8")
    message = "nets.py"
    try:
        facts_of(own_net("nets.py:net", {}, 10, 32, root), paper_recipe)
    except PaperbenchError as error:
        message = str(error)
    assert "nets.py" in message
    assert "\n" not in message
