from __future__ import annotations

import functools
import shlex
from pathlib import Path

import pytest

from paperbench import api
from paperbench.compare.power import assess_outlook
from paperbench.specs.table import Table
from tests.cli.conftest import ONE_CELL, Run
from tests.cli.test_compare import write
from tests.compare.judging import records
from tests.training.gpus import with_gpus


@pytest.fixture(autouse=True)
def _few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few simulated tables, and a step that takes a second."""
    monkeypatch.setattr(api, "assess_outlook", functools.partial(assess_outlook, tables=100))
    monkeypatch.setattr("paperbench.bench.cost._measure_step", lambda *_: (64, 1.0))


def command_after(out: str, heading: str) -> list[str]:
    """Return the command on the line after a heading."""
    lines = out.splitlines()
    command = shlex.split(lines[lines.index(heading) + 1])
    assert command[0] == "paperbench"
    return command[1:]


def test_plan_is_deterministic_and_needs_no_results(run: Run, tmp_path: Path) -> None:
    code, out, err = run("plan", "table2")
    assert (code, err) == (0, "")
    assert out.startswith("Table 2: what its runs cost\n")
    assert max(map(len, out.split("CIFAR-10 not found")[0].splitlines())) <= 80
    assert "\nTable 2: what 5 runs per cell would decide, or 10 where 5 are too few." in out
    assert command_after(out, "Train the first of these:") == ["run", "table2", "--cells", "original/resnet110"]
    assert "Then compare" not in out
    assert run("plan", "table2") == (0, out, "")
    assert not list(tmp_path.iterdir())


def test_results_directory_may_be_new_but_no_file(run: Run) -> None:
    code, out, _ = run("plan", "table2", "--results", "new", "--cells", "preact/resnet110")
    assert code == 0
    assert command_after(out, "Train the first of these:")[-2:] == ["--results", "new"]
    Path("file").touch()
    code, out, err = run("plan", "table2", "--results", "file")
    assert (code, out) == (2, "")
    assert "file is not a directory" in err


def test_gpu_that_is_not_here_can_be_planned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch)
    options = ("plan", "table2", "--device", "cuda", "--cells", "preact/resnet110")
    code, out, err = run(*options, "--rate", "preact_resnet110=2000")
    assert (code, err) == (0, "")
    hours = 5 * 64_000 * 128 / 2000 / 3600
    assert out.splitlines()[3].split()[3:5] == ["320,000", f"{hours:.2g}"]
    assert "\nDevice cuda, precision tf32, engine graph.\n" in out
    assert "GB of GPU memory" in " ".join(out.split())
    assert "--device" in command_after(out, "Train the first of these:")
    code, _, err = run(*options)
    assert code == 0
    assert "how long this takes: There is no GPU here for preact_resnet110. State the speed: `--rate preact" in err
    code, _, err = run(*options[:2], "--device", "cuda:3")
    assert code == 2
    assert "Device 'cuda:3': " in err


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
    code, out, err = run("plan", "table2", *options, "--seeds", 3, "--std", 0.25)
    assert (code, err) == (0, "")
    assert "0.25 points between runs (as given by `--std`), and judged" in " ".join(out.split())
    (_, _, _, cell, *others) = command_after(out, "Train the first of these:")
    assert cell.endswith("/resnet110")
    assert others == ["--seeds", "3", "--results", "r"]
    assert command_after(out, "Then compare with the options that you planned with:") == [
        *("compare", "table2", "--cells", "*/resnet110", "--seeds", "3", "--results", "r")
    ]


def test_each_cell_has_its_costs(run: Run, tmp_path: Path) -> None:
    options = ("--cells", "preact/resnet110", "--device", "cpu", "--rate", "preact_resnet110=1000")
    code, out, err = run("plan", "table2", *options)
    assert (code, err) == (0, "")
    hours = 5 * 64_000 * 128 / 1000 / 3600
    row = out.splitlines()[3].split()
    assert row[:5] == ["preact/resnet110", "0-4", "unknown", "320,000", f"{hours:.0f}"]
    assert float(row[6]) == pytest.approx(5 * (3 * 4 * 1.73e6 + 1.5e6) / 1e9, rel=0.3)
    assert "`paperbench data download cifar10 " in out
    assert not list(tmp_path.iterdir())


def test_smaller_profiles_have_costs_and_no_simulation(run: Run) -> None:
    code, out, err = run("plan", "table2", "--profile", "smoke", "--seeds", 2, "--device", "cpu")
    assert (code, err) == (0, "")
    rows = [row.split() for row in out.splitlines()[3:13]]
    assert rows[0][:5] == ["original/resnet110", "0-1", "not", "started", "160"]
    assert len({row[0] for row in rows}) == 10
    assert "\n20 runs, 1,600 iterations to do, about 5" in out
    assert "Claims" not in out
    assert command_after(out, "Next, train them:")[:4] == ["run", "table2", "--profile", "smoke"]
    _, out, _ = run("plan", "table2", "--profile", "smoke", "--cells", "preact/resnet110", "--stop-at", 1)
    assert "\n1 run, 1 iteration to do, about " in out


def test_cells_without_a_printed_error_have_costs(run: Run) -> None:
    code, out, _ = run("plan", "table1", "--cells", "dropout_shortcut")
    assert code == 0
    assert "Not simulated: these cells show no published error" in out


def test_more_runs_than_can_be_simulated_have_costs(run: Run) -> None:
    code, out, _ = run("plan", "table2", "--cells", "preact/resnet110", "--device", "cpu", "--seeds", 51)
    assert code == 0
    assert "\n51 runs, at most 3,264,000 iterations to do" in out
    assert "At most 50 runs per cell can be simulated, not 51" in out


def test_finished_table_is_not_measured(
    run: Run, trained: Path, quick_specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paperbench.bench.cost._measure_step", None)
    code, out, err = run("plan", "table2", "--tables", quick_specs, "--results", trained, *ONE_CELL)
    assert (code, err) == (0, "")
    assert "\n1 run, all finished.\n" in out


def test_full_disk_is_a_warning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paperbench.runs.disk_space.free_bytes", lambda _: 1)
    code, out, err = run("plan", "table2", "--profile", "smoke", "--device", "cpu")
    assert code == 0
    assert "paperbench: warning: The remaining runs need about" in err
    assert "Next, train them:" in out
