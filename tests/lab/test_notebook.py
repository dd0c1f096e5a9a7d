"""The notebook of the lesson: its cells run as they stand, with all runs at hand but one that is trained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.full
def test_cells_of_the_notebook_run(tmp_path: Path) -> None:
    lab = shutil.copytree(ROOT / "examples" / "lab", tmp_path / "examples" / "lab")
    (tmp_path / "results").symlink_to(ROOT / "results")
    runs = shutil.copytree(ROOT / "results" / "lab" / "runs", lab / "my-results" / "runs")
    records = map(json.loads, (file.read_text() for file in runs.glob("*/record.json")))
    for one in [r["run"] for r in records if (r["net"], r["seed"]) == ("preact_resnet110(depth=20)", 0)]:
        shutil.rmtree(runs / one)
    cells = json.loads((lab / "lab.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (lab / "cells.py").write_text("\n".join(code))
    done = subprocess.run([sys.executable, "cells.py"], cwd=lab, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
