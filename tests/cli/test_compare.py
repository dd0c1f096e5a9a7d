"""`paperbench compare` from records on disk: formats, exit status, and what is left out."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paperbench.runs.external import write_external
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.table import Table, load_table
from tests.compare.judging import ORIGINAL, external, record, records
from tests.helpers import ROOT, copy_of_specs, edit, write_record

Run = Callable[..., tuple[int, str, str]]
MATCHING = (6.30, 6.40, 6.35, 6.45, 6.38)  # preact/resnet110 is published as 6.37
ALONE = ("--cells", "preact/resnet110")


def write(root: Path, runs: Iterable[Record]) -> list[RunDirectory]:
    """Records with histories that they vouch for."""
    return [_write(root, run) for run in runs]


def _write(root: Path, run: Record) -> RunDirectory:
    data = history_bytes([HistoryLine(run.iteration, 1.0, 0.1, 0.5, 10.0, 0.3, 8.0, 10.0)])
    files = replace(run.files, history_lines=1, history_sha256=hashlib.sha256(data).hexdigest())
    directory = write_record(Store(root), replace(run, files=files))
    directory.history_file.write_bytes(data)
    return directory


def test_without_runs_it_says_so(run: Run, tmp_path: Path) -> None:
    code, out, err = run("compare", "table2", "--results", tmp_path)
    assert (code, err) == (0, "")
    assert "No run of this table in this profile yet." in out
    assert "6.61" in out


@pytest.mark.parametrize(
    ("errors", "code", "strict_code"),
    [
        (MATCHING, 0, 0),
        ((8.3, 8.4, 8.35, 8.45, 8.38), 1, 1),  # worse
        ((4.3, 4.4, 4.35, 4.45, 4.38), 1, 1),  # better is a difference too
        (MATCHING[:3], 0, 1),  # underpowered
        ((), 0, 1),  # not run
        ((6.0, 7.6, 5.5, 6.4, 7.0), 0, 1),  # noise
    ],
)
def test_the_exit_status_tells_whether_a_cell_differs_or_lacks(
    run: Run, tmp_path: Path, table2: Table, errors: tuple[float, ...], code: int, strict_code: int
) -> None:
    write(tmp_path, records(table2, "preact/resnet110", errors))
    command = ["compare", "table2", "--results", tmp_path, *ALONE]
    assert run(*command)[0] == code
    assert run(*command, "--require", "reproduced")[0] == strict_code


def test_every_format_holds_the_verdict(run: Run, tmp_path: Path, table2: Table) -> None:
    write(tmp_path, records(table2, "preact/resnet110", MATCHING))

    def output(form: str) -> str:
        code, out, err = run("compare", "table2", "--results", tmp_path, *ALONE, "--format", form)
        assert (code, err) == (0, "")
        assert out.endswith("\n")
        assert not out.endswith("\n\n")
        return out

    assert "6.38 (+0.01)  reproduced" in output("table")
    assert "| reproduced |" in output("markdown")
    (cell,) = json.loads(output("json"))["cells"]
    assert (cell["id"], cell["verdict"]) == ("preact/resnet110", "reproduced")
    lines = list(csv.DictReader(io.StringIO(output("csv"))))
    assert [(line["verdict"], float(line["error"])) for line in lines] == [("reproduced", error) for error in MATCHING]
    cases = ElementTree.fromstring(output("junit")).findall(".//testcase")
    assert [(case.get("name"), case.find("failure"), case.find("skipped")) for case in cases] == [
        ("preact/resnet110", None, None)
    ]
    assert r"\toprule" in output("latex")


def test_junits_verdict_is_that_of_the_exit_status(run: Run, tmp_path: Path) -> None:
    command = ["compare", "table2", "--results", tmp_path, *ALONE, "--format", "junit"]
    _, out, _ = run(*command)
    assert ElementTree.fromstring(out).get("failures") == "0"
    code, out, _ = run(*command, "--require", "reproduced")
    assert code == 1
    assert ElementTree.fromstring(out).get("failures") == "1"


def test_the_number_of_runs_fixed_beforehand_can_be_said(run: Run, tmp_path: Path, table2: Table) -> None:
    write(tmp_path, records(table2, "preact/resnet110", MATCHING[:3]))
    command = ["compare", "table2", "--results", tmp_path, *ALONE]
    assert "n=3" in run(*command)[1]
    _, out, _ = run(*command, "--seeds", 3)
    assert "Profile paper; 3 runs per cell, fixed beforehand" in out
    assert "reproduced" in out


def test_rows_on_request_are_shown_without_being_asked_for(run: Run, tmp_path: Path) -> None:
    assert "ResNet-1202" in run("compare", "table4", "--results", tmp_path)[1]


def test_runs_of_other_profiles_are_pointed_at(run: Run, tmp_path: Path, table2: Table) -> None:
    write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    _, _, err = run("compare", "table2", "--profile", "smoke", "--results", tmp_path)
    assert "has runs of other profiles: --profile paper shows them." in err


def complaint(run: Run, tmp_path: Path, *arguments: object) -> str:
    """What a comparison of the one cell says it left out; nothing is counted in the cell."""
    code, out, err = run("compare", "table2", "--results", tmp_path, *ALONE, *arguments)
    assert code == 0
    assert "n=" not in out.split("ours: ")[0]
    assert err.startswith("paperbench: left out: ")
    assert len(err.splitlines()) == 1
    return err


def test_a_record_that_is_none_is_named(run: Run, tmp_path: Path) -> None:
    directory = Store(tmp_path).directory("damaged-s0")
    directory.path.mkdir(parents=True)
    directory.record_file.write_text("{")
    assert f"{directory.record_file} is not JSON" in complaint(run, tmp_path)


def test_a_record_of_another_schema_is_named(run: Run, tmp_path: Path, table2: Table) -> None:
    (directory,) = write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    edit(directory.record_file, '"schema": 1', '"schema": 5')
    told = complaint(run, tmp_path)
    assert "has schema 5, and this version of paperbench reads 1" in told
    assert "Use the version that wrote it" in told


def test_a_record_edited_by_hand_is_named(run: Run, tmp_path: Path, table2: Table) -> None:
    (directory,) = write(tmp_path, records(table2, "preact/resnet110", (9.25,)))
    edit(directory.record_file, '"test_error": 9.25', '"test_error": 6.25')
    assert "it was edited or damaged" in complaint(run, tmp_path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: edit(file, '"train_loss":0.5', '"train_loss":0.1'), "was edited"),
        (lambda file: file.write_text("no line\n"), "was edited"),
        (lambda file: file.write_text(""), "was cut short"),
        (lambda file: file.unlink(), "was cut short"),
    ],
    ids=["a value", "another text", "empty", "gone"],
)
def test_a_history_that_is_not_the_runs_own_is_named(
    run: Run, tmp_path: Path, table2: Table, damage: Callable[[Path], object], told: str
) -> None:
    (directory,) = write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    damage(directory.history_file)
    err = complaint(run, tmp_path)
    assert str(directory.history_file) in err
    assert told in err


def test_a_copied_run_is_not_counted_twice(run: Run, tmp_path: Path, table2: Table) -> None:
    (directory,) = write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    copy = directory.path.with_name("another-s1")
    copy.mkdir()
    for file in directory.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    _, out, err = run("compare", "table2", "--results", tmp_path, *ALONE)
    assert "n=1" in out
    assert f"{copy} holds the record of run {directory.path.name}." in err


def test_a_run_by_yesterdays_recipe_is_named_with_what_changed(run: Run, tmp_path: Path, table2: Table) -> None:
    specs = copy_of_specs(tmp_path / "specs")
    write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    edit(specs / "experiments" / "recipes" / "cifar.yaml", "weight_decay: 0.0001", "weight_decay: 0.0002")
    told = complaint(run, tmp_path, "--tables", specs)
    assert "the closest is preact/resnet110, but recipe.weight_decay was 0.0001 and is 0.0002." in told


def test_runs_of_other_tables_are_not_complained_of(run: Run, tmp_path: Path, table2: Table) -> None:
    table3 = load_table("table3", ROOT)
    write(tmp_path, [record(table3, "cifar10_resnet164_no_warm_up/preact", 5.5)])
    assert run("compare", "table2", "--results", tmp_path)[2] == ""


def test_results_from_elsewhere_are_marked_and_damaged_ones_named(run: Run, tmp_path: Path, table2: Table) -> None:
    files = [
        write_external(tmp_path, external(table2, "preact/resnet110", error, seed=seed, source="a letter"))
        for seed, error in enumerate(MATCHING)
    ]
    _, out, err = run("compare", "table2", "--results", tmp_path, *ALONE)
    assert err == ""
    assert "reproduced [a]" in out
    assert "preact/resnet110: 6.38 (+0.01), n=5, reported by a letter: reproduced" in out
    edit(files[0], "6.3", "6.1")
    _, out, err = run("compare", "table2", "--results", tmp_path, *ALONE)
    assert "n=4, reported by" in out
    assert str(files[0]) in err


def test_the_nearest_experiment_is_told_of_a_run_of_none(run: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path / "specs")
    table4 = load_table("table4", specs)
    write(tmp_path, [record(table4, "preact_resnet1001_batch64/cifar10", 4.6)])
    edit(specs / "experiments" / "recipes" / "cifar_torch.yaml", "94531]", "94500]")
    _, _, err = run("compare", "table4", "--results", tmp_path, "--tables", specs)
    assert "the closest is preact_resnet1001_batch64/cifar10, but recipe.drops.at was [62500,94531] and is" in err


def test_unprinted_rows_and_rows_on_request_are_not_required(run: Run, tmp_path: Path) -> None:
    table3 = load_table("table3", ROOT)
    for cell in table3.cells():
        assert cell.number is not None
        errors = [cell.number + shift for shift in (-0.04, -0.02, 0.0, 0.02, 0.04)]
        data = ORIGINAL if cell.dataset == "cifar10" else replace(ORIGINAL, name="CIFAR-100", fingerprint="e" * 64)
        write(tmp_path, [record(table3, cell.id, error, seed=seed, data=data) for seed, error in enumerate(errors)])
    command = ["compare", "table3", "--results", tmp_path, "--require", "reproduced"]
    code, out, _ = run(*command)
    assert code == 0
    assert out.count("  reproduced") == 12
    code, out, _ = run(*command, "--format", "junit")
    assert ElementTree.fromstring(out).findall(".//testsuite[1]//failure") == []


def test_a_broken_table_of_another_name_is_no_obstacle(run: Run, tmp_path: Path, table2: Table) -> None:
    specs = copy_of_specs(tmp_path / "specs")
    write(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    edit(specs / "experiments" / "recipes" / "cifar.yaml", "momentum: 0.9", "momentum: 0.8")
    (specs / "experiments" / "zz.yaml").write_text("table: [")
    (specs / "expected" / "zz.yaml").write_text("table: [")
    assert "recipe.momentum was 0.9 and is 0.8" in complaint(run, tmp_path, "--tables", specs)


def test_a_terminal_without_daggers_gets_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paperbench", "compare", "table4", "--results", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"4.62\\u2020" in done.stdout


def test_a_results_directory_that_is_a_file_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file is not a directory. Name a results directory" in run("compare", "table2", "--results", "file")[2]


def test_the_claims_of_a_profile_whose_cells_are_one_training_are_undecided(run: Run, tmp_path: Path) -> None:
    table3 = load_table("table3", ROOT)
    cells = ("cifar10_resnet164/original", "cifar10_resnet1001/original")
    runs = [record(table3, cells[0], 40.0 + seed, seed=seed, profile="shallow") for seed in range(5)]
    write(tmp_path, runs)
    _, out, _ = run("compare", "table3", "--results", tmp_path, "--profile", "shallow", "--seeds", 5, "--long")
    told = " ".join(out.split())
    assert f"in profile shallow, {cells[0]} and {cells[1]} train the same" in told
    assert "what holds here need not hold for the paper's" in told
