"""`paperbench models`; tests/printed/models*.txt has its lists."""

from __future__ import annotations

import shutil
from pathlib import Path

from paperbench.catalogue import FAMILIES, NETS
from tests.cli.conftest import Run
from tests.golden import FOLDER
from tests.helpers import change_yaml, copy_of_specs


def test_long_list_has_every_net_at_the_size_that_it_says() -> None:
    names = [line.split()[0] for line in (FOLDER / "models_long.txt").read_text().split("\n\n")[0].splitlines()[2:]]
    assert names == list(NETS)
    assert all(family.size == (224 if len(family.widths) == 4 else 32) for family in FAMILIES.values())


def test_own_tables_are_listed(run: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    for directory in ("experiments", "expected"):
        shutil.copy(specs / directory / "table2.yaml", specs / directory / "mine.yaml")
        change_yaml(specs / directory / "mine.yaml", (("table",), "mine"))
    change_yaml(specs / "experiments" / "mine.yaml", (("rows", 4, "cells", "resnet110"), "original_resnet110"))
    original, preact = run("models", "*_resnet110", "--tables", specs)[1].splitlines()[2:4]
    assert original.split()[3:] == ["mine,", "1,", "2,", "3,", "4"]
    assert preact.split()[3:] == ["2,", "3"]
