from __future__ import annotations

import functools
import shlex
from pathlib import Path

import pytest

from paperbench import api
from paperbench.cli.main import build_parser
from paperbench.compare.power import assess_outlook
from paperbench.specs.table import Table
from tests.cli.conftest import Run
from tests.cli.test_compare import write
from tests.compare.judging import records


@pytest.fixture(autouse=True)
def _few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "assess_outlook", functools.partial(assess_outlook, tables=100))


def command_after(out: str, heading: str) -> list[str]:
    """Return the command on the line after a heading; it parses."""
    lines = out.splitlines()
    command = shlex.split(lines[lines.index(heading) + 1])
    assert command[0] == "paperbench"
    build_parser().parse_args(command[1:])
    return command[1:]


def test_plan_is_deterministic_and_needs_no_results(run: Run, tmp_path: Path) -> None:
    code, out, err = run("plan", "table2")
    assert (code, err) == (0, "")
    assert out.startswith("Table 2: what 5 runs per cell would decide, or 10 where 5 are too few.")
    assert command_after(out, "Train the first of these:") == ["run", "table2", "--cells", "original/resnet110"]
    assert "Then compare" not in out
    assert run("plan", "table2") == (0, out, "")
    assert not list(tmp_path.iterdir())


def test_named_results_directory_must_exist(run: Run) -> None:
    code, out, err = run("plan", "table2", "--results", "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere does not exist" in err


def test_runs_at_hand_count(run: Run, tmp_path: Path, table2: Table) -> None:
    write(tmp_path / "results", records(table2, "original/resnet110", (6.5, 6.7, 6.6, 6.6)))
    write(tmp_path / "results", records(table2, "preact/resnet164", (5.1, 5.9, 5.3, 5.7, 5.5)))
    assert "(that of the runs at hand;" in " ".join(run("plan", "table2")[1].split())
    code, out, err = run("plan", "table2", "--long", "--std", 0.15)
    assert (code, err) == (0, "")
    cells = {line.split()[0]: line.split()[1:4] for line in out.split("Next: ")[1].splitlines() if "/resnet" in line}
    assert cells["original/resnet110"] == ["1", "of", "5"]
    assert cells["preact/resnet164"] == ["5", "of", "10"]  # the extension
    _, out, _ = run("plan", "table2", "--cells", "preact/resnet164", "--std", 0.15)
    assert command_after(out, "Train the first of these:") == [
        *("run", "table2", "--cells", "preact/resnet164", "--seeds", "10")
    ]
    assert "Then compare" not in out


def test_options_reach_the_simulation_and_the_commands(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    options = ("--cells", "*/resnet110", "--results", "r")
    code, out, err = run("plan", "table2", *options, "--seeds", 3, "--std", 0.25, "--noise", "per-cell")
    assert (code, err) == (0, "")
    assert "0.25 points between runs (as given by `--std`), and judged with each cell's own noise" in " ".join(
        out.split()
    )
    (_, _, _, cell, *others) = command_after(out, "Train the first of these:")
    assert cell.endswith("/resnet110")
    assert others == ["--seeds", "3", "--results", "r"]
    assert command_after(out, "Then compare with the options that you planned with:") == [
        *("compare", "table2", "--cells", "*/resnet110", "--seeds", "3", "--results", "r", "--noise", "per-cell")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan tabel2", "Did you mean 'table2'?"),
        ("plan table1 --cells dropout_shortcut", "Nothing to plan"),
        ("plan table2 --std 0", "--std: must be a positive number of percentage points, not '0'"),
        ("plan table2 --std abc", "not 'abc'"),
        ("plan table2 --seeds 51", "At most 50 runs per cell can be simulated, not 51"),
        ("plan table2 --noise row", "Unknown --noise 'row'"),
    ],
)
def test_mistakes_are_errors(run: Run, arguments: str, message: str) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
