from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench.cli.main import main
from paperbench.runs.external import ExternalResult, read_externals
from paperbench.specs.table import load_table
from tests.helpers import ROOT, python

Run = Callable[..., tuple[int, str, str]]

SWEEP = ("table1", "exclusive_gating_0_to_5/resnet110")
ENTRY = ("--seed", "3", "--error", "6.41", "--source", "A. Author")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`paperbench record` in an empty folder, as exit code, stdout and stderr."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main(["record", *map(str, arguments)])
        except SystemExit as end:  # argparse
            code = int(str(end.code or 0))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def only_result(results: Path) -> ExternalResult:
    (result,), complaints = read_externals(results)
    assert complaints == []
    return result


def test_a_result_is_taken_in_and_marked_as_external(run: Run) -> None:
    code, out, err = run("table2", "original/resnet164", *ENTRY)
    assert (code, err) == (0, "")
    (path,) = Path("results/external").iterdir()
    assert out == (
        f"table2 original/resnet164, seed 3: 6.41 % from 'A. Author' is in {path}, marked as external: it is never "
        "pooled with runs of your own.\n"
    )
    table = load_table("table2", ROOT)
    cell = table.cell("original/resnet164")
    digest = table.experiment_digest(cell, cell.settings[0])
    assert only_result(Path("results")) == ExternalResult(
        1, "external", "table2", cell.id, "", digest, 3, 6.41, "A. Author"
    )


def test_a_run_that_diverged_is_taken_in_without_an_error(run: Run) -> None:
    code, out, _ = run("table2", "original/resnet164", "--seed", "0", "--error", "diverged", "--source", " A. Author ")
    assert code == 0
    assert "seed 0: diverged from 'A. Author'" in out
    assert only_result(Path("results")).error is None


def test_the_same_again_is_fine_and_another_error_is_refused(run: Run) -> None:
    where = ("table2", "original/resnet164", "--seed", "3", "--source", "A. Author")
    assert run(*where, "--error", "6.41") == run(*where, "--error", "6.410")
    code, out, err = run(*where, "--error", "6.5")
    assert (code, out) == (2, "")
    assert "already: 6.41 %, where you enter 6.5 %. If that was wrong, delete the file" in err
    assert only_result(Path("results")).error == 6.41


def test_a_cell_of_several_nets_takes_a_result_for_each(run: Run) -> None:
    where = (*SWEEP, *ENTRY)
    for label in ("gate_bias=0", "gate_bias=-2"):
        code, out, _ = run(*where, "--setting", label)
        assert code == 0
        assert out.startswith(f"table1 exclusive_gating_0_to_5/resnet110 ({label}), seed 3: ")
    table = load_table(SWEEP[0], ROOT)
    cell = table.cell(SWEEP[1])
    found = {result.setting: result.experiment for result in read_externals(Path("results"))[0]}
    labels = {setting.label: table.experiment_digest(cell, setting) for setting in cell.settings}
    assert found == {label: labels[label] for label in ("gate_bias=0", "gate_bias=-2")}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ((), "stands for several nets: say which (`--setting LABEL`), of gate_bias=0, gate_bias=-1, gate_bias=-2, "),
        (("--setting", "gate_bias=-6"), "has no net 'gate_bias=-6'. Did you mean 'gate_bias="),
        (("--setting", "x"), "has no net 'x'. Known: gate_bias=-1, gate_bias=-2, gate_bias=-3, gate_bias=-4,"),
    ],
)
def test_a_cell_of_several_nets_needs_to_know_which(run: Run, setting: tuple[str, ...], message: str) -> None:
    code, out, err = run(*SWEEP, *ENTRY, *setting)
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("table2 original/resnet164 --setting x", "Cell original/resnet164 stands for one net: leave --setting out."),
        ("table2 original/resnet16", "table2 has no cell 'original/resnet16'. Did you mean 'original/resnet164'?"),
        ("table2 original", "table2 has no cell 'original'. "),
        ("table2 */resnet164", "table2 has no cell '*/resnet164'. "),
        ("tabel2 original/resnet164", "Unknown table 'tabel2'. Did you mean 'table2'?"),
    ],
)
def test_a_cell_that_is_not_there_is_told(run: Run, arguments: str, message: str) -> None:
    code, out, err = run(*arguments.split(), *ENTRY)
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert message in err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed", "-1", "seed: Input should be greater than or equal to 0, not -1."),
        ("--seed", "1.5", "argument --seed: invalid int value: '1.5'"),
        ("--seed", "9" * 19, "seed: Input should be less than 9223372036854775808"),
        ("--error", "101", "error: Input should be less than or equal to 100, not 101.0."),
        ("--error", "-1", "error: Input should be greater than or equal to 0"),
        ("--error", "nan", "error: Input should be a finite number, not nan."),
        ("--error", "6.41%", "argument --error: must be a percentage, or 'diverged', not '6.41%'"),
        ("--error", "Diverge", "argument --error: must be a percentage"),
        ("--source", " ", "source must be one line of text without space around it, not ''."),
        ("--source", "a\nb", "source must be one line of text"),
        ("--source", "a\x1bb", "source: String should match pattern"),
    ],
)
def test_a_value_of_no_result_is_refused(run: Run, option: str, value: str, message: str) -> None:
    entry = dict(zip(ENTRY[::2], ENTRY[1::2], strict=True)) | {option: value}
    code, out, err = run("table2", "original/resnet164", *(part for pair in entry.items() for part in pair))
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("results").exists()


@pytest.mark.parametrize("option", ["--seed", "--error", "--source"])
def test_seed_error_and_source_must_be_given(run: Run, option: str) -> None:
    at = ENTRY.index(option)
    code, _, err = run("table2", "original/resnet164", *ENTRY[:at], *ENTRY[at + 2 :])
    assert code == 2
    assert f"the following arguments are required: {option}" in err


def test_it_does_without_torch_and_timm(tmp_path: Path) -> None:
    arguments = ["record", "table2", "original/resnet164", *ENTRY, "--results", str(tmp_path)]
    program = (
        f"import sys; from paperbench.cli.main import main; code = main({arguments!r});"
        "print(code, [name for name in ('torch', 'timm', 'sklearn') if name in sys.modules], file=sys.stderr)"
    )
    assert python("-c", program).stderr == "0 []\n"
