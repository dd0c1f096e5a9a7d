from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from paperbench.catalogue import FAMILIES, NETS, resolve
from paperbench.report.diagram import diagram
from tests.cli.conftest import Run
from tests.helpers import copy_of_specs, edit


@pytest.fixture
def models(run: Run) -> Run:
    """`paperbench models` as exit code, stdout and stderr."""
    return partial(run, "models")


def rows(out: str) -> dict[str, list[str]]:
    """The cells behind each name; what stands below the table is left out."""
    lines = out.split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {name: rest for name, *rest in cells}


def test_the_table_has_every_net_and_fits_160_columns(models: Run) -> None:
    code, out, err = models()
    assert (code, err) == (0, "")
    assert list(rows(out)) == list(NETS)
    assert max(map(len, out.splitlines())) <= 160
    assert "of 224 x 224 pixels for nets of four stages, else of 32 x 32." in out
    assert all(family.size == (224 if len(family.widths) == 4 else 32) for family in FAMILIES.values())
    assert list(rows(models("*_resnet110")[1])) == ["original_resnet110", "preact_resnet110"]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("preact_resnet110", "54 basic|4(e) full pre-activation|2(a) identity|110|1,727,962|252.9M"),
        ("preact_resnet164", "54 bottleneck|4(e) full pre-activation|2(a) identity|164|1,703,258|244.5M"),
        ("original_resnet1001", "333 bottleneck|4(a) original Residual Unit|2(a) identity|1001|10,328,602|1487.8M"),
        ("original_resnet110_1layer", "108 one-layer|4(a) original Residual Unit|2(a) identity|110|1,727,962|252.9M"),
        ("preact_resnet101", "3+4+23+3 bottleneck|4(e) full pre-activation|2(a) identity|101|44,541,480|7570.2M"),
    ],
)
def test_a_row_says_what_the_net_is_and_costs(models: Run, name: str, cells: str) -> None:
    assert rows(models(name)[1])[name][:6] == cells.split("|")


def test_a_row_says_which_tables_use_the_net(models: Run) -> None:
    found = rows(models()[1])
    for name in ("original_resnet110", "preact_resnet164", "resnet110_relu_only_preact"):
        assert "2" in found[name][6].split(", ")
    assert len(found["preact_resnet20"]) == 6, "no table has it"


@pytest.mark.parametrize(
    ("name", "shortcut"),
    [
        ("resnet110_constant_scaling", "2(b) constant scaling, 0.5x + F"),
        ("resnet110_exclusive_gating", "2(c) exclusive gating, b=-6"),
        ("resnet110_shortcut_only_gating", "2(d) shortcut-only gating, b=-6"),
        ("resnet110_conv_shortcut", "2(e) 1x1 conv shortcut"),
        ("resnet110_dropout_shortcut", "2(f) dropout shortcut"),
    ],
)
def test_shortcuts_are_named_with_what_is_chosen_in_them(models: Run, name: str, shortcut: str) -> None:
    assert rows(models(name)[1])[name][2] == shortcut


def test_tables_of_ones_own_are_named_once_each(models: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    for folder in ("experiments", "expected"):
        shutil.copy(specs / folder / "table2.yaml", specs / folder / "mine.yaml")
        edit(specs / folder / "mine.yaml", "table: table2", "table: mine")
    edit(specs / "experiments" / "mine.yaml", "resnet110: preact_resnet110", "resnet110: original_resnet110")
    found = rows(models("*_resnet110", "--tables", specs)[1])
    original, preact = (found[name][6].split(", ") for name in ("original_resnet110", "preact_resnet110"))
    assert (original.count("mine"), original.count("2")) == (1, 1)
    assert "mine" not in preact


def test_a_net_is_drawn(models: Run) -> None:
    assert models("preact_resnet164", "--diagram") == (0, diagram(NETS["preact_resnet164"]) + "\n", "")
    assert models("preact_resnet164*", "--diagram")[1].startswith("preact_resnet164\n"), (
        "a pattern that one name matches"
    )


@pytest.mark.parametrize(
    ("name", "settings", "arguments"),
    [
        (
            "preact_resnet110",
            ["depth=20", "shortcut=exclusive_gating", "gate_bias=-5.5"],
            {"depth": 20, "shortcut": "exclusive_gating", "gate_bias": -5.5},
        ),
        ("preact_resnet110", ["shortcut=conv", "shortcut_bn=true"], {"shortcut": "conv", "shortcut_bn": True}),
        (
            "original_resnet110",
            ["shortcut=constant_scaling", "shortcut_scale=5e-1"],
            {"shortcut": "constant_scaling", "shortcut_scale": 0.5},
        ),
    ],
)
def test_settings_reach_the_net_that_is_drawn(
    models: Run, name: str, settings: list[str], arguments: dict[str, object]
) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    assert models(name, "--diagram", *given) == (0, diagram(resolve(name, **arguments)) + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("preact_resnet11", "No net matches 'preact_resnet11'. Did you mean 'preact_resnet1"),
        ("preact_resnet11 --diagram", "No net matches 'preact_resnet11'. Did you mean 'preact_resnet1"),
        ("preact_resnet164.cifar1", "has no tag 'cifar1'. Did you mean 'cifar10'"),
        ("--diagram", f"draws one net, and '*' matches {len(NETS)}. Name one: original_resnet20, "),
        ("*_resnet110 --diagram", "matches 2. Name one: original_resnet110, preact_resnet110."),
        ("preact_resnet110 --diagram --set depth=21", "no depth 21: depths are 6n+2. Nearest: 20 or 26."),
        ("preact_resnet110 --diagram --set dept=20", "no argument 'dept'. Did you mean 'depth'?"),
        ("preact_resnet110 --diagram --set gate_bias=-6", "would ignore gate_bias"),
        ("preact_resnet110 --diagram --set depth=8 --set depth=14", "--set gives an argument twice. Give it once."),
        ("preact_resnet110 --set depth=20", "--set needs --diagram. Add that, or leave --set out."),
        ("preact_resnet20 --batch-size 8", "--batch-size needs --memory."),
        ("preact_resnet20 --device cpu", "--device needs --memory."),
        ("preact_resnet20 --diagram --tables here", "--tables is for the list of nets."),
        ("preact_resnet110 --diagram --set depth", "--set takes KEY=VALUE, such as depth=20 or shortcut=conv, not 'd"),
        ("preact_resnet110 --diagram --set =20", "--set takes KEY=VALUE"),
        ("preact_resnet110 --diagram --set depth=", "--set takes KEY=VALUE"),
    ],
)
def test_what_cannot_be_shown_is_explained(models: Run, arguments: str, message: str) -> None:
    code, out, err = models(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert message in err


@pytest.mark.parametrize(
    "value",
    ["[", '["preact"]', "null", "020", "2e1", "deep", "9" * 5000, "[" * 100_000],
    ids=range(8),
)
def test_values_of_other_kinds_are_refused(models: Run, value: str) -> None:
    code, out, err = models("preact_resnet110", "--diagram", "--set", f"depth={value}")
    assert (code, out) == (2, "")
    assert "depth of preact_resnet110: must be a whole number" in err


def test_names_may_have_tags(models: Run) -> None:
    code, out, _ = models("preact_resnet164.cifar100")
    assert code == 0
    (row,) = rows(out).values()
    assert "1,726,388" in row
    assert "[   classifier, 100   ]" in models("preact_resnet164.cifar100", "--diagram")[1]


def test_memory_of_a_step_is_said_to_be_counted_where_there_is_no_gpu(models: Run) -> None:
    code, out, _ = models("*_resnet20", "--memory", "--batch-size", "256", "--device", "cpu")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:4]]
    assert [row[0] for row in rows] == ["original_resnet20", "preact_resnet20"]
    for row in rows:
        fp32, recomputed, bf16, recomputed_bf16 = map(float, row[1:])
        assert fp32 > recomputed > recomputed_bf16
        assert fp32 > bf16 > recomputed_bf16
    assert "GB for a training step on 256 images at once; counted" in out
