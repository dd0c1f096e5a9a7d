"""`paperbench compare` on records on disk: formats, exit status, and what is left out."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paperbench.api import load_table
from paperbench.compare.against import Changes
from paperbench.runs.external import write_external
from paperbench.specs.table import Table, read_table
from paperbench.typed import from_json
from tests.compare.judging import external, record, records
from tests.golden import assert_golden
from tests.helpers import ROOT, change_yaml, copy_of_specs, edit
from tests.report.stores import make_store

Run = Callable[..., tuple[int, str, str]]
MATCHING = (6.30, 6.40, 6.35, 6.45, 6.38)  # preact/resnet110 is published as 6.37
ALONE = ("--cells", "preact/resnet110")


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
def test_exit_status_depends_on_differences_and_requirement(
    run: Run, tmp_path: Path, table2: Table, errors: tuple[float, ...], code: int, strict_code: int
) -> None:
    make_store(tmp_path, records(table2, "preact/resnet110", errors))
    command = ["compare", "table2", "--results", tmp_path, *ALONE]
    assert run(*command)[0] == code
    assert run(*command, "--require", "reproduced")[0] == strict_code


@pytest.mark.parametrize(
    ("form", "start", "verdict"),
    [
        ("table", "Table 2 of arXiv:1603.05027", "6.38 (+0.01)  reproduced"),
        ("markdown", "## Table 2", "| reproduced |"),
        ("json", "{\n", '"verdict": "reproduced"'),
        ("csv", "table,profile,", ",reproduced,"),
        ("junit", "<?xml", 'skipped="0"'),
        ("latex", "% Needs", "6.38"),
    ],
)
def test_every_format_has_the_verdict(
    run: Run, tmp_path: Path, table2: Table, form: str, start: str, verdict: str
) -> None:
    make_store(tmp_path, records(table2, "preact/resnet110", MATCHING))
    code, out, err = run("compare", "table2", "--results", tmp_path, *ALONE, "--format", form)
    assert (code, err) == (0, "")
    assert out.startswith(start)
    assert verdict in out
    assert out.rstrip("\n") == out[:-1]


def test_requirement_applies_to_junit(run: Run, tmp_path: Path) -> None:
    command = ["compare", "table2", "--results", tmp_path, *ALONE, "--format", "junit"]
    _, out, _ = run(*command)
    assert ElementTree.fromstring(out).get("failures") == "0"
    code, out, _ = run(*command, "--require", "reproduced")
    assert code == 1
    assert ElementTree.fromstring(out).get("failures") == "1"


def test_number_of_planned_runs_is_an_option(run: Run, tmp_path: Path, table2: Table) -> None:
    make_store(tmp_path, records(table2, "preact/resnet110", MATCHING[:3]))
    command = ["compare", "table2", "--results", tmp_path, *ALONE]
    assert "n=3" in run(*command)[1]
    _, out, _ = run(*command, "--seeds", 3)
    assert "Profile paper; 3 runs per cell, fixed beforehand by --seeds; the table says 5" in " ".join(out.split())
    assert "reproduced" in out


def test_rows_on_request_are_shown(run: Run, tmp_path: Path) -> None:
    assert "ResNet-1202" in run("compare", "table4", "--results", tmp_path)[1]


def test_without_runs_the_command_that_trains_them_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    out = run("compare", "table2", "--results", "r", "--seeds", 3, *ALONE)[1]
    assert out.endswith("\n\nNext: `paperbench run table2 --cells preact/resnet110 --seeds 3 --results r`\n")
    assert "--long" not in out
    assert "Next" not in run("compare", "table2", "--results", "r", "--format", "markdown")[1]


def test_runs_of_other_profiles_are_mentioned(run: Run, tmp_path: Path, table2: Table) -> None:
    make_store(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    for options in ((), ("--cite",)):
        _, _, err = run("compare", "table2", "--profile", "smoke", "--results", tmp_path, *options)
        assert "has runs of other profiles: --profile paper shows them." in err


def complaint(run: Run, tmp_path: Path, *arguments: object) -> str:
    """Return the message about the only record or result, which is left out."""
    code, out, err = run("compare", "table2", "--results", tmp_path, *ALONE, *arguments)
    assert code == 0
    assert "n=" not in out.split("ours: ")[0]
    assert "Left out: 1 of the records and results" in out
    assert err.startswith("paperbench: left out: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("record_file", lambda file: file.write_text("{"), "is not JSON"),
        ("record_file", lambda file: edit(file, '"test_error": 9.25', '"test_error": 6.25'), "edited or damaged"),
        ("history_file", lambda file: file.unlink(), "was cut short"),
    ],
    ids=["record is not JSON", "record edited", "history missing"],
)
def test_damaged_file_is_named(
    run: Run, tmp_path: Path, table2: Table, name: str, damage: Callable[[Path], object], problem: str
) -> None:
    (directory,) = make_store(tmp_path, records(table2, "preact/resnet110", (9.25,))).directories()
    damage(getattr(directory, name))
    err = complaint(run, tmp_path)
    assert str(getattr(directory, name)) in err
    assert problem in err


def test_runs_of_other_tables_are_ignored(run: Run, tmp_path: Path, table2: Table) -> None:
    table3 = read_table("table3", ROOT)
    make_store(tmp_path, [record(table3, "cifar10_resnet164_no_warm_up/preact", 5.5)])
    assert run("compare", "table2", "--results", tmp_path)[2] == ""


def test_external_results_are_listed_and_damaged_ones_named(run: Run, tmp_path: Path, table2: Table) -> None:
    files = [
        write_external(tmp_path, external(table2, "preact/resnet110", error, seed=seed, source="a letter"))
        for seed, error in enumerate(MATCHING)
    ]
    _, out, err = run("compare", "table2", "--results", tmp_path, *ALONE)
    assert err == ""
    assert "preact/resnet110: 6.38 (+0.01), n=5, reported by a letter: reproduced" in out
    edit(files[0], "6.3", "6.1")
    _, out, err = run("compare", "table2", "--results", tmp_path, *ALONE)
    assert "n=4, reported by" in out
    assert str(files[0]) in err


def test_changed_recipe_is_named_despite_a_broken_table(run: Run, tmp_path: Path, table2: Table) -> None:
    specs = copy_of_specs(tmp_path / "specs")
    make_store(tmp_path, records(table2, "preact/resnet110", MATCHING[:1]))
    change_yaml(specs / "experiments" / "recipes" / "cifar.yaml", (("momentum",), 0.8))
    (specs / "experiments" / "zz.yaml").write_text("table: [")
    (specs / "expected" / "zz.yaml").write_text("table: [")
    assert "recipe.momentum was 0.9 and is 0.8" in complaint(run, tmp_path, "--tables", specs)


def test_characters_unknown_to_the_terminal_are_escaped(run: Run, tmp_path: Path) -> None:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")) as stream:
        assert run("compare", "table4", "--results", tmp_path)[0] == 0
    assert b"4.62\\u2020" in stream.buffer.getvalue()


def test_changes_against_a_baseline_are_told_in_every_format(run: Run, tmp_path: Path, table2: Table) -> None:
    same = records(table2, "original/resnet110", (6.61, 6.6, 6.58))
    unlike = [records(table2, "preact/resnet110", errors) for errors in ((6.3, 6.4), (6.3, 6.41))]
    other = [
        records(table2, "relu_only_preact/resnet164", (shift + 5.9, shift + 5.8, shift + 6.0), numerics=numerics)
        for shift, numerics in ((0.0, 1), (0.1, 2))
    ]
    few = records(table2, "original/resnet164", (5.9,))
    (mixed,) = records(table2, "preact/resnet164", (5.4,), precision="bf16")
    for name, runs in (("old", [*unlike[0], *other[0], *few]), ("new", [*unlike[1], *other[1], mixed])):
        make_store(tmp_path / name, [*same, *runs])
    command = ("compare", "table2", "--results", "new", "--against", "old", "--margin", 0.5)
    code, out, err = run(*command)
    assert (code, err) == (1, "")
    assert_golden("against", out)
    code, out, _ = run(*command, "--format", "junit")
    assert code == 1
    assert_golden("against_junit", out)
    changes = load_table("table2").compare_against("old", "new", margin=0.5)
    assert from_json(Changes, run(*command, "--format", "json")[1]) == changes
    assert run(*command, "--cells", "original/resnet110", "relu_only_preact")[0] == 0
    assert run(*command, "--cells", "original")[0] == 3
    code, out, _ = run(*command, "--profile", "smoke")
    assert (code, out.split()[:2]) == (3, ["Profile", "smoke:"])


def test_runs_without_counterpart_and_unused_files_are_named(run: Run, tmp_path: Path, table2: Table) -> None:
    fp32 = records(table2, "preact/resnet110", (6.3, 6.4))
    make_store(tmp_path / "new", [*fp32, *records(table2, "preact/resnet110", (6.3,), precision="bf16")])
    old = make_store(tmp_path / "old", [*fp32, record(table2, "original/resnet110", 6.6)])
    damaged = old.directory(record(table2, "original/resnet110", 6.6).run).record_file
    damaged.write_text("{")
    code, out, err = run("compare", "table2", "--results", "new", "--against", "old")
    assert (code, "2 runs equal bit for bit" in out) == (0, True)
    assert f"left out: {damaged.relative_to(tmp_path)} is not JSON" in err
    assert "left out: new: preact/resnet110: not compared: <1 run: CIFAR-10, bf16, numerics 1>" in err


def test_trained_run_is_identical_to_its_copy(run: Run, trained_once: Path, trained: Path, quick_specs: Path) -> None:
    where = ("--tables", quick_specs, "--profile", "smoke", "--results", trained)
    code, out, _ = run("compare", "table2", *where, "--against", trained_once)
    assert (code, "1 run equal bit for bit" in out) == (0, True)
