from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from paperbench.runs.external import ExternalResult, read_externals
from paperbench.specs.table import read_table
from tests.cli.conftest import Run
from tests.helpers import ROOT

SWEEP = ("table1", "exclusive_gating_0_to_5/resnet110")
ENTRY = ("--seed", "3", "--error", "6.41", "--source", "A. Author")


@pytest.fixture
def record(run: Run) -> Run:
    """Run `paperbench record`; returns exit status, stdout and stderr."""
    return partial(run, "record")


def only_result(results: Path) -> ExternalResult:
    (result,), complaints = read_externals(results)
    assert complaints == []
    return result


def test_result_is_recorded_as_external(record: Run) -> None:
    code, out, err = record("table2", "original/resnet164", *ENTRY)
    assert (code, err) == (0, "")
    (path,) = Path("results/external").iterdir()
    assert out == (
        f"Recorded table2 original/resnet164, seed 3: 6.41 %\nin {path}\nNext: `paperbench compare table2`\n"
    )
    table = read_table("table2", ROOT)
    cell = table.cell("original/resnet164")
    digest = table.experiment_digest(cell, cell.settings[0])
    assert only_result(Path("results")) == ExternalResult(
        1, "external", "table2", cell.id, "", digest, 3, 6.41, "A. Author"
    )


def test_result_can_be_repeated_but_not_changed(record: Run) -> None:
    where = ("table2", "original/resnet164", "--seed", "3", "--source", "A. Author")
    assert record(*where, "--error", "6.41") == record(*where, "--error", "6.410")
    code, out, err = record(*where, "--error", "6.5")
    assert (code, out) == (2, "")
    assert "6.41 %" in err
    assert "6.5 %" in err
    assert only_result(Path("results")).error == 6.41


def test_cell_with_several_nets_takes_a_result_for_each(record: Run) -> None:
    where = (*SWEEP, *ENTRY)
    for label in ("gate_bias=0", "gate_bias=-2"):
        code, out, _ = record(*where, "--setting", label)
        assert code == 0
        assert out.startswith(f"Recorded table1 exclusive_gating_0_to_5/resnet110 ({label}), seed 3: ")
    table = read_table(SWEEP[0], ROOT)
    cell = table.cell(SWEEP[1])
    found = {result.setting: result.experiment for result in read_externals(Path("results"))[0]}
    labels = {setting.label: table.experiment_digest(cell, setting) for setting in cell.settings}
    assert found == {label: labels[label] for label in ("gate_bias=0", "gate_bias=-2")}


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [("0.0641", ["--below-1-percent"], 0.0641), ("0", [], 0), ("1", [], 1), ("diverged", [], None)],
)
def test_unambiguous_error_is_recorded(record: Run, error: str, options: list[str], expected: float | None) -> None:
    where = ("table2", "original/resnet164", "--seed", "3", "--source", " A. Author ")
    assert record(*where, "--error", error, *options)[0] == 0
    result = only_result(Path("results"))
    assert (result.error, result.source) == (expected, "A. Author")
