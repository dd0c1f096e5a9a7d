from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from paperbench.runs.external import ExternalResult, read_externals
from paperbench.specs.table import load_table
from tests.cli.conftest import Run
from tests.helpers import ROOT

SWEEP = ("table1", "exclusive_gating_0_to_5/resnet110")
ENTRY = ("--seed", "3", "--error", "6.41", "--source", "A. Author")


@pytest.fixture
def record(run: Run) -> Run:
    """`paperbench record` as exit code, stdout and stderr."""
    return partial(run, "record")


def only_result(results: Path) -> ExternalResult:
    (result,), complaints = read_externals(results)
    assert complaints == []
    return result


def test_a_result_is_taken_in_and_marked_as_external(record: Run) -> None:
    code, out, err = record("table2", "original/resnet164", *ENTRY)
    assert (code, err) == (0, "")
    (path,) = Path("results/external").iterdir()
    assert out == (
        f"Recorded: table2 original/resnet164, seed 3, 6.41 % (source: 'A. Author'), in {path}. It is marked as "
        "external and never pooled with runs of your own.\n"
    )
    table = load_table("table2", ROOT)
    cell = table.cell("original/resnet164")
    digest = table.experiment_digest(cell, cell.settings[0])
    assert only_result(Path("results")) == ExternalResult(
        1, "external", "table2", cell.id, "", digest, 3, 6.41, "A. Author"
    )


def test_a_run_that_diverged_is_taken_in_without_an_error(record: Run) -> None:
    code, out, _ = record(
        "table2", "original/resnet164", "--seed", "0", "--error", "diverged", "--source", " A. Author "
    )
    assert code == 0
    assert "seed 0, diverged (source: 'A. Author'), in " in out
    assert only_result(Path("results")).error is None


def test_the_same_again_is_fine_and_another_error_is_refused(record: Run) -> None:
    where = ("table2", "original/resnet164", "--seed", "3", "--source", "A. Author")
    assert record(*where, "--error", "6.41") == record(*where, "--error", "6.410")
    code, out, err = record(*where, "--error", "6.5")
    assert (code, out) == (2, "")
    assert "already: 6.41 %, where you enter 6.5 %. If that was wrong, delete the file" in err
    assert only_result(Path("results")).error == 6.41


def test_a_cell_of_several_nets_takes_a_result_for_each(record: Run) -> None:
    where = (*SWEEP, *ENTRY)
    for label in ("gate_bias=0", "gate_bias=-2"):
        code, out, _ = record(*where, "--setting", label)
        assert code == 0
        assert out.startswith(f"Recorded: table1 exclusive_gating_0_to_5/resnet110 ({label}), seed 3, ")
    table = load_table(SWEEP[0], ROOT)
    cell = table.cell(SWEEP[1])
    found = {result.setting: result.experiment for result in read_externals(Path("results"))[0]}
    labels = {setting.label: table.experiment_digest(cell, setting) for setting in cell.settings}
    assert found == {label: labels[label] for label in ("gate_bias=0", "gate_bias=-2")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("table2 original/resnet164 --setting x", "Cell original/resnet164 stands for one net: leave --setting out."),
        ("table2 original/resnet16", "table2 has no cell 'original/resnet16'. Did you mean 'original/resnet164'?"),
        ("table2 */resnet164", "table2 has no cell '*/resnet164'. "),
        ("tabel2 original/resnet164", "Unknown table 'tabel2'. Did you mean 'table2'?"),
        (" ".join(SWEEP), "stands for several nets: say which (`--setting LABEL`), of gate_bias=0, gate_bias=-1, "),
        (" ".join(SWEEP) + " --setting gate_bias=-6", "has no net 'gate_bias=-6'. Did you mean 'gate_bias="),
    ],
)
def test_a_cell_or_net_that_is_not_there_is_refused(record: Run, arguments: str, message: str) -> None:
    code, out, err = record(*arguments.split(), *ENTRY)
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert message in err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed", "-1", "error: --seed must be at least 0, not -1."),
        ("--seed", "1.5", "argument --seed: invalid int value: '1.5'"),
        ("--seed", "9" * 19, "error: --seed must be below 9223372036854775808"),
        ("--error", "101", "error: --error must be at most 100, not 101."),
        ("--error", "-1", "error: --error must be at least 0"),
        ("--error", "nan", "error: --error must be a finite number, not nan."),
        ("--error", "6.41%", "argument --error: must be a percentage, or 'diverged', not '6.41%'"),
        ("--error", "Diverge", "argument --error: must be a percentage"),
        ("--source", " ", "error: --source must be one line of text without leading or trailing spaces, not ''."),
        ("--source", "a\nb", "error: --source must be one line of text"),
        ("--source", "a\x1bb", "error: --source must be text without control characters"),
    ],
)
def test_a_value_of_no_result_is_refused(record: Run, option: str, value: str, message: str) -> None:
    entry = dict(zip(ENTRY[::2], ENTRY[1::2], strict=True)) | {option: value}
    code, out, err = record("table2", "original/resnet164", *(part for pair in entry.items() for part in pair))
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("results").exists()
