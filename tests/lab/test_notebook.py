"""The notebook of the lesson: its cells run, on a shortened table, as they stand in the file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT


@pytest.mark.full
def test_cells_of_the_notebook_run(tmp_path: Path) -> None:
    lab = shutil.copytree(ROOT / "examples" / "lab", tmp_path / "examples" / "lab")
    (tmp_path / "results").symlink_to(ROOT / "results")
    for file in (lab / "experiments" / "recipes").iterdir():
        recipe = yaml.safe_load(file.read_text()) | {"iterations": 4, "warm_up": None}
        file.write_text(yaml.safe_dump(recipe | {"drops": {"at": [2, 3], "factor": 0.1}}))
    cells = json.loads((lab / "lab.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (lab / "cells.py").write_text("\n".join(code))
    done = subprocess.run([sys.executable, "cells.py"], cwd=lab, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
