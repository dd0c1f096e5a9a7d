from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from paperbench.catalogue import FAMILIES, NETS
from tests.cli.conftest import Run
from tests.helpers import change_yaml, copy_of_specs


@pytest.fixture
def models(run: Run) -> Run:
    """Run `paperbench models`; returns exit status, stdout and stderr."""
    return partial(run, "models")


def rows(out: str) -> dict[str, list[str]]:
    """The texts behind each net of the list."""
    lines = out.split("\n\n")[0].splitlines()[2:]
    texts = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {name: rest for name, *rest in texts}


ROWS = {
    "preact_resnet110": "54 basic|4(e) full pre-activation|2(a) identity|110|1,727,962|252.9M|2, 3",
    "preact_resnet164": "54 bottleneck|4(e) full pre-activation|2(a) identity|164|1,703,258|244.5M|2, 3, 4",
    "original_resnet1001": "333 bottleneck|4(a) original Residual Unit|2(a) identity|1001|10,328,602|1487.8M|3, 4",
    "original_resnet110_1layer": "108 one-layer|4(a) original Residual Unit|2(a) identity|110|1,727,962|252.9M|3",
    "preact_resnet101": "3+4+23+3 bottleneck|4(e) full pre-activation|2(a) identity|101|44,541,480|7570.2M",
    "preact_resnet20": "9 basic|4(e) full pre-activation|2(a) identity|20|269,722|40.6M",
}

SHORTCUTS = {
    "resnet110_constant_scaling": "2(b) constant scaling, 0.5x + F",
    "resnet110_exclusive_gating": "2(c) exclusive gating, b=-6",
    "resnet110_shortcut_only_gating": "2(d) shortcut-only gating, b=-6",
    "resnet110_conv_shortcut": "2(e) 1x1 conv shortcut",
    "resnet110_dropout_shortcut": "2(f) dropout shortcut",
}


def test_long_list_has_every_net_with_all_columns(models: Run) -> None:
    code, out, err = models("--long")
    assert (code, err) == (0, "")
    found = rows(out)
    assert list(found) == list(NETS)
    assert {name: found[name] for name in ROWS} == {name: row.split("|") for name, row in ROWS.items()}
    assert {name: found[name][2] for name in SHORTCUTS} == SHORTCUTS
    assert "224 x 224 pixels for nets with four stages, else of 32 x 32." in " ".join(out.split())
    assert all(family.size == (224 if len(family.widths) == 4 else 32) for family in FAMILIES.values())


def test_short_list_has_the_main_columns_of_matching_nets(models: Run) -> None:
    _, out, _ = models()
    assert rows(out)["preact_resnet164"] == ["164", "1,703,258", "2, 3, 4"]
    assert "`--long` adds units" in out
    assert list(rows(models("*_resnet110")[1])) == ["original_resnet110", "preact_resnet110"]


def test_own_tables_are_listed(models: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    for directory in ("experiments", "expected"):
        shutil.copy(specs / directory / "table2.yaml", specs / directory / "mine.yaml")
        change_yaml(specs / directory / "mine.yaml", (("table",), "mine"))
    change_yaml(specs / "experiments" / "mine.yaml", (("rows", 4, "cells", "resnet110"), "original_resnet110"))
    found = rows(models("*_resnet110", "--tables", specs)[1])
    original, preact = (found[name][-1].split(", ") for name in ("original_resnet110", "preact_resnet110"))
    assert (original.count("mine"), original.count("2")) == (1, 1)
    assert "mine" not in preact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("preact_resnet11", "No net matches 'preact_resnet11'. Did you mean 'preact_resnet1"),
        ("preact_resnet164.cifar1", "has no tag 'cifar1'. Did you mean 'cifar10'"),
        ("preact_resnet20 --memory", "--memory has been removed. `paperbench plan TABLE` and `paperbench doctor`"),
    ],
)
def test_wrong_arguments_are_explained(models: Run, arguments: str, message: str) -> None:
    code, out, err = models(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert message in err


def test_name_may_have_a_tag(models: Run) -> None:
    code, out, _ = models("preact_resnet164.cifar100")
    assert code == 0
    (row,) = rows(out).values()
    assert "1,726,388" in row
