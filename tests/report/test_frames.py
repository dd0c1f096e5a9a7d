"""Data frames have the values of the JSON, the CSV and the files of the runs."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import paperbench
from paperbench.errors import PaperbenchError
from paperbench.runs.record import DataFacts
from paperbench.specs.table import Table
from tests.compare.judging import record, records
from tests.golden import assert_golden
from tests.report.conftest import SWEEP
from tests.report.stores import make_store

FORMULA = DataFacts("=1+1", "nowhere", True, "a" * 64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def judged(table2: Table, root: Path) -> paperbench.JudgedTable:
    make_store(
        root,
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60)),
            *records(table2, "bn_after_addition/resnet110", (8.1, 8.2, inf), iteration=20_000),
            record(table2, "bn_after_addition/resnet110", 8.4, precision="bf16"),
            record(table2, "preact/resnet164", None, iteration=8_000, data=FORMULA),
        ],
    )
    return paperbench.load_table("table2").compare(root)


def of(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows with some values."""
    for column, value in values.items():
        frame = frame[frame[column] == value]
    return frame


def same(one: Any, other: Any) -> bool:
    """Whether a value of a frame is that of a JSON file, where null is missing."""
    return bool(pd.isna(one)) if other is None else bool(one == other)


def test_nets_have_the_values_of_the_json(judged: paperbench.JudgedTable) -> None:
    frame, document = judged.to_frame(), json.loads(judged.render("json"))
    assert len(frame) == 10
    for cell in document["cells"]:
        (row,) = of(frame, cell=cell["id"]).to_dict("records")
        (net,) = cell["nets"]
        for column in ("row", "column", "verdict", "reason", "difference", "p_value", "differs"):
            assert same(row[column], cell[column]), column
        assert (row["published"], row["tolerance"]) == (cell["published"]["value"], cell["published"]["tolerance"])
        for column in ("low", "high", "level"):
            assert same(row[column], (cell["interval"] or {}).get(column)), column
        assert same(row["median"], (net["shown"] or {}).get("median"))
        assert same(row["n"], (net["failures"] or {}).get("runs"))
        assert same(row["failed"], (net["failures"] or {}).get("failed"))


def test_published_failures_are_a_flag_beside_numbers(tmp_path: Path) -> None:
    frame = paperbench.load_table("table1").compare(tmp_path).to_frame()
    assert frame["published"].dtype == "float64"
    assert len(of(frame, cell=SWEEP)) == 6
    assert all(of(frame, cell=SWEEP)["published_fails"])
    assert all(math.isnan(number) for number in of(frame, cell=SWEEP)["published"])
    assert of(frame, cell="original/resnet110")[["published", "published_fails"]].values.tolist() == [[6.61, False]]


def test_runs_have_the_values_of_the_csv_and_their_records(judged: paperbench.JudgedTable, root: Path) -> None:
    frame = judged.runs()
    lines = [line for line in csv.DictReader(io.StringIO(judged.render("csv"))) if line["run"]]
    assert len(frame) == len(lines) == 10
    for row, line in zip(frame.to_dict("records"), lines, strict=True):
        for column in ("cell", "net", "run", "status", "precision", "fingerprint", "numerics"):
            assert row[column] == line[column], column
        for column in ("group", "seed", "iteration", "error", "median"):
            assert same(row[column], float(line[column]) if line[column] else None), column
        assert (row["counted"], row["canonical"]) == (line["counted"] == "true", line["canonical"] == "true")
        written = json.loads((root / "runs" / row["run"] / "record.json").read_text())
        result = written["result"] or {}
        assert same(row["test_loss"], result.get("test_loss"))
        assert same(row["best_test_error"], result.get("best_test_error"))
        assert row["seconds"] == sum(session["seconds"] for session in written["sessions"])
        assert row["sessions"] == len(written["sessions"])
        assert row["torch"] == written["sessions"][0]["environment"]["torch"]


def test_histories_have_the_values_of_the_files(judged: paperbench.JudgedTable, root: Path) -> None:
    frame = judged.histories()
    shown = of(judged.runs(), group=1)
    assert set(frame["run"]) == set(shown["run"])
    for run in shown["run"]:
        file = root / "runs" / run / "history.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        rows = of(frame, run=run).to_dict("records")
        assert len(rows) == len(lines)
        assert all(same(row[name], line[name]) for row, line in zip(rows, lines, strict=True) for name in line)
        (facts,) = of(shown, run=run).to_dict("records")
        for column in ("profile", "cell", "setting", "net", "data", "precision", "seed", "status"):
            assert rows[-1][column] == facts[column], column


def test_numbers_are_no_objects_even_without_runs(judged: paperbench.JudgedTable, tmp_path: Path) -> None:
    empty = paperbench.load_table("table2").compare(tmp_path)
    frames = [frame for one in (judged, empty) for frame in (one.to_frame(), one.runs(), one.histories())]
    texts = (f"{column}: {kind}" for frame in frames for column, kind in [("", len(frame)), *frame.dtypes.items()])
    assert_golden("types_of_frames", "\n".join(texts))


def test_formulas_are_escaped_in_csv_only(judged: paperbench.JudgedTable) -> None:
    assert set(of(judged.runs(), cell="preact/resnet164")["data"]) == {"=1+1"}
    assert ",'=1+1," in judged.render("csv")


def test_without_pandas_the_message_says_what_to_install(
    judged: paperbench.JudgedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (judged.to_frame, judged.runs, judged.histories):
        with pytest.raises(PaperbenchError, match="pip install pandas"):
            frame()
