"""Analyses as files: written and read again, rounded, and refused if they were changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench import api
from paperbench.analysis.record import Analysis, Passes, find_analysis, read_analyses, write_analysis
from paperbench.errors import PaperbenchError
from tests.helpers import json_with_hash

REMEDY = "Delete it; the same `paperbench analyze` makes it again."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Analysis]:
    """A results directory with an analysis."""
    root = tmp_path_factory.mktemp("made")
    settings = {"depth": 8, "shortcut": "conv"}
    options: dict[str, Any] = {"settings": settings, "dataset": "digits", "images": 2, "measures": ("channels",)}
    (found,) = api.analyze("original_resnet20", results=root, device="cpu", **options)
    return root, found


@pytest.fixture
def analysis(made: tuple[Path, Analysis]) -> Analysis:
    return made[1]


def test_written_analysis_is_read_again(analysis: Analysis, tmp_path: Path) -> None:
    path = write_analysis(tmp_path, analysis)
    assert path == tmp_path / "analysis" / f"{analysis.spec.digest[:12]}-s0.json"
    assert read_analyses(tmp_path) == ([analysis], [])
    assert find_analysis(tmp_path, analysis.spec, 0) == analysis
    assert json.loads(json_with_hash(json.loads(path.read_text()))) == json.loads(path.read_text())


def test_analyses_of_others_are_not_found(made: tuple[Path, Analysis]) -> None:
    root, analysis = made
    assert find_analysis(root, analysis.spec, 1) is None
    assert find_analysis(root, replace(analysis.spec, images=3), 0) is None
    assert find_analysis(root / "missing", analysis.spec, 0) is None


@pytest.mark.parametrize(
    "change",
    [
        {"net": {}},
        {"recipe": {}},
        {"data": "x"},
        {"run": "x"},
        {"iteration": 1},
        {"weights": "x"},
        {"initialisation": "orthogonal"},
        {"images": 3},
        {"batch_norm": "averages"},
        {"precision": "fp32"},
        {"measures": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_value_of_the_spec_makes_another_file(analysis: Analysis, change: dict[str, Any]) -> None:
    assert replace(analysis.spec, **change).digest != analysis.spec.digest


def test_numbers_have_six_digits_and_convolutions_no_predicted_product(analysis: Analysis) -> None:
    for row in analysis.passes.rows():
        assert all(value is None or float(f"{value:.6g}") == value for value in row.values())
    assert analysis.passes.predicted == (None, None, None)
    assert [len(channels) for channels in analysis.channels] == [16, 16, 32]


def test_columns_are_as_long_as_each_other(analysis: Analysis) -> None:
    with pytest.raises(ValueError, match="different lengths"):
        replace(analysis.passes, factor=(1.0,))


def test_rows_are_the_columns_of_each_unit(analysis: Analysis) -> None:
    rows = list(analysis.passes.rows())
    assert [row["signal_norm"] for row in rows] == list(analysis.passes.signal_norm)
    assert Passes.of(rows) == analysis.passes


def changed(path: Path, **values: Any) -> None:
    """Change values in a file, and update their hash."""
    path.write_text(json_with_hash({**json.loads(path.read_text()), **values}))


def test_unreadable_files_are_complained_about(analysis: Analysis, tmp_path: Path) -> None:
    path = write_analysis(tmp_path, analysis)
    changed(path, schema=2)
    assert read_analyses(tmp_path)[1] == [
        f"{path} has schema 2, and this version of paperbench reads 1. Use the version that wrote it, or move the file "
        "away."
    ]
    path.write_text("{")
    (complaint,) = read_analyses(tmp_path)[1]
    assert complaint.startswith(f"{path} is not JSON")
    assert complaint.endswith(REMEDY)
    with pytest.raises(PaperbenchError, match="is not JSON"):
        find_analysis(tmp_path, analysis.spec, 0)


def test_edited_and_renamed_files_are_refused(analysis: Analysis, tmp_path: Path) -> None:
    path = write_analysis(tmp_path, analysis)
    text = path.read_text()
    path.write_text(text.replace('"seed": 0', '"seed": 1'))
    assert "does not have the sha256" in read_analyses(tmp_path)[1][0]
    path.write_text(text)
    other = path.rename(path.with_name("000000000000-s0.json"))
    what = f"{other} holds what belongs in {path.name}: it was copied or renamed."
    assert read_analyses(tmp_path)[1] == [f"{what} Rename it back, or move it away."]


def test_nothing_is_written_through_a_link(analysis: Analysis, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "analysis").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PaperbenchError, match="is a link"):
        write_analysis(tmp_path, analysis)
    assert not [*(tmp_path / "elsewhere").iterdir()]


SPECTRUM = {"first": 0, "last": 0, "largest": [2.0], "residual": None, "rms": 1.0}
PATHS = {"number": [], "norm": [], "share": [], "longer_norm": 0.0, "longer_share": 0.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stages": []}, "different numbers of units"),
        ({"stages": [0] * 50}, "different numbers of units"),
        ({"channels": [[1.0]]}, "different numbers of units"),
        ({"left_out": {"whole": 10.0, "without": [1.0]}}, "different numbers of units"),
        ({"jacobians": {"steps": 1, "block": 1, "units": [SPECTRUM], "stages": [], "chains": []}}, "numbers of units"),
        (
            {"jacobians": {"steps": 1, "block": 1, "units": [], "stages": [], "chains": [{**SPECTRUM, "largest": []}]}},
            "no singular values",
        ),
        ({"paths": PATHS}, "its columns are empty"),
    ],
)
def test_contradictory_values_are_refused(
    analysis: Analysis, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    """With the right hash, as nobody's program but a forger's writes them."""
    changed(write_analysis(tmp_path, analysis), **values)
    found, (complaint,) = read_analyses(tmp_path)
    assert (found, message in complaint) == ([], True), complaint
