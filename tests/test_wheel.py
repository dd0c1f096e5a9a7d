"""The wheel, installed outside the checkout: it contains the tables, the examples and the nets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel alone; its dependencies are those of the test environment."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("paperbench_resnets-*.whl")
    target = ["install", "--no-deps", "--no-index", "--target", str(directory / "site"), str(wheel)]
    subprocess.run([*pip, *target], check=True, capture_output=True)
    return directory / "site"


def python(installed: Path, code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=installed,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_wheel_lists_shows_and_judges_tables_without_the_extras(installed: Path) -> None:
    lines = python(
        installed,
        """
import json, pathlib, sys, paperbench
sys.modules.update(matplotlib=None, pandas=None)
from paperbench.cli.init import EXAMPLES
from paperbench.cli.main import main
print(paperbench.__file__)
assert main(["list"]) == main(["show", "table2"]) == main(["init", "mine"]) == 0
for example in EXAMPLES:
    assert main(["init", example, "--from", example]) == 0
pathlib.Path("results").mkdir()
print(len(json.loads(paperbench.load_table("table1").compare("results").render("json"))["cells"]), "cells")
smoke = ["--profile", "smoke", "--results", sys.argv[1]]
assert main(["report", "table2", "--out", "page", *smoke]) == 0
page = pathlib.Path("page/index.html").read_text()
print("<style" in page, "<script" in page)
for words in (["compare", "table2"], ["plot", "table2", "--format", "text"], ["plot", "table2", "--format", "csv"]):
    assert main([*words, *smoke]) == 0
assert main(["plot", "table2", "--out", "x.svg", *smoke]) == 2
""",
        str(ROOT / "results" / "smoke"),
    ).splitlines()
    assert Path(lines[0]).is_relative_to(installed)
    assert {"original Residual Unit    4(a)        6.61        5.93", "11 cells", "True True"} <= set(lines)
    assert any(line.startswith("table2 ") for line in lines)


@pytest.mark.full
def test_wheel_registers_nets_also_with_a_timm_that_is_imported_first(installed: Path) -> None:
    names = "print('preact_resnet1001' in timm.list_models())"
    count = "print(sum(p.numel() for p in timm.create_model('preact_resnet164').parameters()))"
    assert python(installed, f"import timm; {names}; import paperbench; {names}; {count}").split() == [
        *("False", "True", "1703258")
    ]


def test_wheel_contains_licence_and_type_marker(installed: Path) -> None:
    assert (installed / "paperbench" / "py.typed").exists()
    assert list(installed.glob("paperbench_resnets-*.dist-info/licenses/LICENSE"))
