"""The wheel, installed outside the checkout: tables and nets must come with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the installed wheel; its dependencies are those of the test environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("paperbench_resnets-*.whl")
    target = ["install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([*pip, *target], check=True, capture_output=True)
    return folder / "site"


def python(installed: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=installed, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_package_runs_from_the_wheel_and_not_from_the_checkout(installed: Path) -> None:
    assert Path(python(installed, "import paperbench; print(paperbench.__file__)")).is_relative_to(installed)


def test_tables_and_expected_numbers_are_in_the_wheel(installed: Path) -> None:
    main = "from paperbench.cli.main import main; raise SystemExit(main({}))"
    assert "table2" in python(installed, main.format(["list"]))
    shown = python(installed, main.format(["show", "table2"]))
    assert "original Residual Unit    4(a)        6.61        5.93" in shown
    assert "iterations: 64000" in shown


def test_tables_are_judged_from_the_wheel(installed: Path) -> None:
    code = (
        "import json, pathlib, paperbench; from paperbench.report.json_format import ComparisonDocument;"
        "from paperbench.typed import json_schema;"
        "pathlib.Path('results').mkdir(exist_ok=True);"
        "judged = paperbench.load_table('table1').compare('results');"
        "print(sorted(json.loads(judged.render('json'))) == sorted(json_schema(ComparisonDocument)['required']))"
    )
    assert python(installed, code).strip() == "True"


def test_nets_are_registered_from_the_wheel(installed: Path) -> None:
    code = "import paperbench, timm; print(sum(p.numel() for p in timm.create_model('preact_resnet164').parameters()))"
    assert python(installed, code).strip() == "1703258"


def test_the_wheel_ships_its_licence_and_types(installed: Path) -> None:
    assert (installed / "paperbench" / "py.typed").exists()
    assert list(installed.glob("paperbench_resnets-*.dist-info/licenses/LICENSE"))
