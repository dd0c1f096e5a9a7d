"""`paperbench plan`; tests/printed/plan_*.txt has what it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from paperbench.specs.table import Table
from tests.cli.conftest import ONE_CELL, Run, validated
from tests.compare.judging import records
from tests.golden import assert_golden
from tests.report.stores import make_store
from tests.training.gpus import with_gpus

ONE = ("plan", "table2", "--cells", "preact/resnet110", "--rate", "preact_resnet110=2000")
CLAIMS = ("--claim", "preact/resnet110 < original/resnet110", "--claim", "original/resnet110<preact/resnet110 by 0.1")
SMOKE = ("--profile", "smoke", "--device", "cpu", "--rate", "preact_resnet110=100", "--rate", "preact_resnet164=100")


def command_after(out: str, heading: str) -> list[str]:
    """Return the command on the line after a heading."""
    lines = out.splitlines()
    command = shlex.split(lines[lines.index(heading) + 1])
    assert command[0] == "paperbench"
    return command[1:]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cpu", (*ONE, "--device", "cpu")),
        ("gpu_elsewhere", (*ONE, "--device", "cuda")),
        ("options", (*ONE, "--device", "cpu", "--seeds", "3", "--std", "0.25", "--long", "--results", "new")),
        ("smoke", ("plan", "table2", *SMOKE, "--seeds", "2", "--at-once", "2", "--cells", "original", "preact")),
        ("claim", (*ONE[:3], "*/resnet110", *ONE[4:], "--device", "cuda", *CLAIMS, "--workers", "8", "--at-once", "2")),
        ("unprinted", ("plan", "table1", "--cells", "dropout_shortcut", "--rate", "preact_resnet110=2000")),
    ],
)
def test_plan_is_printed_and_writes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    with_gpus(monkeypatch)
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert not list(tmp_path.iterdir())
    assert_golden(f"plan_{name}", re.sub(r"(?m)^(\S+/\S+ .* [\d,.]+ +)[\d.]+(  +[\d.]+)$", r"\1GB\2", out))


def test_costs_are_those_of_all_seeds(run: Run) -> None:
    row = run(*ONE, "--device", "cpu")[1].splitlines()[3].split()
    assert row[3:5] == ["320,000", f"{5 * 64_000 * 128 / 2000 / 3600:.2g}"]
    assert float(row[6]) == pytest.approx(5 * (3 * 4 * 1.73e6 + 1.5e6) / 1e9, rel=0.3)


def test_plan_as_json_has_what_the_text_has(run: Run) -> None:
    found = validated("plan", run(*ONE, "--device", "cpu", "--format", "json")[1])
    assert {(one["id"], one["status"], one["to_do"]) for one in found["runs"]} == {(None, "unknown", 64_000)}
    assert [one["seed"] for one in found["runs"]] == [0, 1, 2, 3, 4]
    assert found["time"]["seconds"] == pytest.approx(sum(one["cost"]["seconds"] for one in found["runs"]))
    assert "not found" in found["missing_data"][0]
    assert found["outlook"]["next_runs"][0]["cells"] == ["preact/resnet110"]
    smoke = validated("plan", run("plan", "table2", *SMOKE, "--cells", "preact", "--format", "json")[1])
    assert all(one["id"].endswith("-s0") for one in smoke["runs"])
    assert (smoke["outlook"], smoke["missing_data"]) == (None, [])


def test_gpu_without_a_stated_rate_or_that_is_not_here_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch)
    code, _, err = run(*ONE[:4], "--device", "cuda")
    assert code == 0
    assert "how long this takes: There is no GPU here for preact_resnet110. State the speed: `--rate preact" in err
    code, _, err = run(*ONE[:4], "--device", "cuda:3")
    assert code == 2
    assert "Device 'cuda:3': " in err


def test_runs_at_hand_count(run: Run, tmp_path: Path, table2: Table) -> None:
    make_store(tmp_path / "results", records(table2, "original/resnet110", (6.5, 6.7, 6.6, 6.6)))
    make_store(tmp_path / "results", records(table2, "preact/resnet164", (5.1, 5.9, 5.3, 5.7, 5.5)))
    _, out, err = run("plan", "table2", "--cells", "original/resnet110", "preact/resnet164", *SMOKE[4:], "--long")
    assert err == ""
    assert "(that of the runs at hand;" in " ".join(out.split())
    cells = {line.split()[0]: line.split()[1:4] for line in out.split("Next: ")[1].splitlines() if "/resnet" in line}
    assert cells["original/resnet110"] == ["1", "of", "5"]
    _, out, _ = run("plan", "table2", "--cells", "preact/resnet164", *SMOKE[-2:], "--std", 0.15)
    assert "\npreact/resnet164  5 of 10 " in out, "the extension"
    assert command_after(out, "Train the first of these:")[3:] == ["preact/resnet164", "--seeds", "10"]
    assert "Then compare" not in out


def test_step_is_measured_without_a_rate(run: Run) -> None:
    _, out, _ = run("plan", "table2", *SMOKE[:4], "--cells", "preact/resnet110", "--stop-at", 1)
    assert "\n1 run, 1 iteration to do, about " in out
    assert "going by one step of preact_resnet110(depth=14) on cpu (" in " ".join(out.split())


def test_more_runs_than_can_be_simulated_have_costs(run: Run) -> None:
    code, out, _ = run(*ONE, "--device", "cpu", "--seeds", 51)
    assert code == 0
    assert "\n51 runs, at most 3,264,000 iterations to do" in out
    assert "At most 50 runs per cell can be simulated, not 51" in out


def test_finished_table_has_no_costs(run: Run, trained: Path, quick_specs: Path) -> None:
    code, out, err = run("plan", "table2", "--tables", quick_specs, "--results", trained, *ONE_CELL)
    assert (code, err) == (0, "")
    assert "\n1 run, all finished.\n" in out
    assert "Time: " not in out


def test_finished_run_of_other_facts_is_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, trained: Path, quick_specs: Path
) -> None:
    monkeypatch.setattr("paperbench.runs.worker.other_fact", lambda *_: "net.code")
    _, out, _ = run("plan", "table2", "--tables", quick_specs, "--results", trained, *ONE_CELL)
    assert "  other facts " in out
    assert "\n1 run, 0 iterations to do, about " in out


def test_full_disk_is_a_warning(run: Run) -> None:
    code, out, err = run("plan", "table2", *SMOKE, "--results", "/proc/full", "--cells", "preact")
    assert code == 0
    assert err.startswith("paperbench: warning: The remaining runs need about")
    assert "in /proc/full, which has 0 kB left. Free some space" in err
    assert "Next, train them:" in out
