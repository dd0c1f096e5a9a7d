from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from paperbench.catalogue import NETS, SHORTCUTS, resolve
from paperbench.report.diagram import diagram

TITLE = re.compile(r"== stage (\d+), units? (\d+)(?: to (\d+): (\d+) equal units)? =+")
SHAPE = re.compile(r"\d+ x \d+ x \d+$")
BOX = re.compile(r"\[ +(\S.*?) +\]")
SHORTCUT, SECOND, THIRD = 12, 38, 64
"""Columns that the paths run in; the second is the gate if there is one, else the residual function."""


def drawn(name: str, **kwargs: object) -> list[str]:
    return diagram(resolve(name, **kwargs)).splitlines()


def body(lines: list[str]) -> list[str]:
    """What is below the heading."""
    return lines[lines.index("") + 1 :]


def units(lines: list[str]) -> Iterator[tuple[tuple[int, int, int], list[str]]]:
    """(stage, first, last) of each picture of units, with its lines down to the shape of what comes out."""
    start = None
    for number, line in enumerate(lines):
        if TITLE.search(line):
            start = number
        elif start is not None and SHAPE.search(line):
            stage, first, last, _ = TITLE.search(lines[start]).groups()
            yield (int(stage), int(first), int(last or first)), lines[start : number + 1]
            start = None


def unit(lines: list[str], stage: int, number: int) -> list[str]:
    (found,) = [part for (where, first, last), part in units(lines) if where == stage and first <= number <= last]
    return found


def boxes(lines: list[str], column: int) -> list[str]:
    """Texts of the boxes on the path that runs in this column."""
    return [box[1] for line in lines for box in BOX.finditer(line) if box.start() < column < box.end()]


def split(part: list[str]) -> int:
    return next(number for number, line in enumerate(part) if line[SHORTCUT : SHORTCUT + 2] == "o-")


def on_the_shortcut(part: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Boxes before the split, between it and the addition, and after that."""
    addition = next(number for number, line in enumerate(part) if "(+)<-" in line)
    parts = part[: split(part)], part[split(part) : addition], part[addition:]
    before, between, after = (boxes(lines, SHORTCUT) for lines in parts)
    return before, between, after


def shapes(lines: list[str]) -> list[str]:
    return [found[0] for line in body(lines) if (found := SHAPE.search(line))]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_every_net_is_drawn_in_ascii_within_100_columns_and_around_an_unbroken_line(name: str, shortcut: str) -> None:
    lines = drawn(name, shortcut=shortcut)
    assert all(line.isascii() and line.isprintable() and len(line) <= 100 for line in lines)
    for line in body(lines):
        is_box = any(box.start() < SHORTCUT < box.end() for box in BOX.finditer(line))
        assert is_box or line[SHORTCUT] in "|o+" or line[SHORTCUT - 2 :].startswith("image"), line


@pytest.mark.parametrize("name", NETS)
def test_every_unit_stands_in_one_picture(name: str) -> None:
    lines = drawn(name)
    numbers: dict[int, list[int]] = {}
    for (stage, first, last), part in units(lines):
        numbers.setdefault(stage, []).extend(range(first, last + 1))
        told = TITLE.search(part[0])[4]
        assert int(told or 1) == last - first + 1
    assert [numbers[stage + 1] for stage in range(len(numbers))] == [[*range(1, n + 1)] for n in NETS[name].units]


@pytest.mark.parametrize("name", ["original_resnet1001", "preact_resnet1001", "preact_resnet1202"])
def test_1001_layers_take_few_lines(name: str) -> None:
    assert len(drawn(name)) < 150


@pytest.mark.parametrize(
    ("name", "size", "cost"),
    [
        ("preact_resnet164", "164 layers, 54 units, 1,703,258 parameters", "244.5M|3 x 32 x 32"),
        ("original_resnet110_1layer", "110 layers, 108 units, 1,727,962 parameters", "252.9M|3 x 32 x 32"),
        ("original_resnet50", "50 layers, 16 units, 25,557,032 parameters", "3858.0M|3 x 224 x 224"),
    ],
)
def test_the_heading_says_how_large_the_net_is(name: str, size: str, cost: str) -> None:
    lines = drawn(name)
    assert f"  size        {size}" in lines
    assert f"  cost        {cost.replace('|', ' multiply-accumulates on an image of ')}" in lines


def test_the_heading_names_net_figures_and_initial_weights_of_gates() -> None:
    lines = drawn("resnet110_exclusive_gating")
    assert lines[:3] == [
        "resnet110_exclusive_gating",
        "  placement   original Residual Unit, Fig. 4(a) of arXiv:1603.05027",
        "  shortcut    exclusive gating, Fig. 2(c)",
    ]
    assert any(line.endswith("initial weights: He's") for line in lines)
    lines = drawn("resnet110_exclusive_gating", gate_init="gaussian")
    assert any(line.endswith("initial weights: Gaussian with deviation 0.01") for line in lines)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({}, "preact_resnet110"),
        ({"num_classes": 100, "in_chans": 1}, "preact_resnet110"),
        ({"depth": 20}, "preact_resnet20"),
        ({"placement": "original", "shortcut": "conv"}, "resnet110_conv_shortcut"),
        ({"depth": 26}, "ResNet-26"),
        ({"shortcut_option": "B"}, "ResNet-110"),
    ],
)
def test_a_net_is_called_what_the_catalogue_calls_it(kwargs: dict[str, object], name: str) -> None:
    assert drawn("preact_resnet110", **kwargs)[0] == name


@pytest.mark.parametrize(
    "name", ["preact_resnet110", "preact_resnet164", "preact_resnet1001", "preact_resnet110_1layer"]
)
def test_full_preactivation_feeds_both_paths_in_unit_1_and_where_dimensions_change_and_nowhere_else(name: str) -> None:
    for (_, first, _), part in units(drawn(name)):
        is_shared = first == 1
        assert on_the_shortcut(part)[0] == (["BN, ReLU"] if is_shared else [])
        assert part[split(part) + 1].split()[0] == ("activated" if is_shared else "raw")
        assert (boxes(part, SECOND)[0] == "BN, ReLU") is not is_shared


def test_shortcuts_that_change_dimensions_can_read_the_raw_signal() -> None:
    lines = drawn("preact_resnet164", transition_shortcut="raw")
    shared = [where[:2] for where, part in units(lines) if on_the_shortcut(part)[0]]
    assert shared == [(1, 1)]
    part = unit(lines, 2, 1)
    assert part[split(part) + 1].startswith("      raw x |")


@pytest.mark.parametrize(
    ("placement", "residual", "behind"),
    [
        ("original", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN"], ["ReLU"]),
        ("bn_after_addition", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16"], ["BN, ReLU"]),
        ("relu_before_addition", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN, ReLU"], []),
        ("relu_only_preact", ["ReLU", "3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN"], []),
        ("preact", ["BN, ReLU", "3x3 conv, 16", "BN, ReLU", "3x3 conv, 16"], []),
    ],
)
def test_units_are_those_of_figure_4(placement: str, residual: list[str], behind: list[str]) -> None:
    part = unit(drawn("original_resnet110", placement=placement), 1, 2)
    assert on_the_shortcut(part) == ([], [], behind)
    assert boxes(part, SECOND) == residual


def test_a_bottleneck_reduces_convolves_and_restores() -> None:
    part = unit(drawn("preact_resnet164"), 2, 1)
    assert boxes(part, SECOND) == ["1x1 conv, 32, /2", "BN, ReLU", "3x3 conv, 32", "BN, ReLU", "1x1 conv, 128"]
    part = unit(drawn("preact_resnet164", stride_in="middle"), 2, 1)
    assert boxes(part, SECOND) == ["1x1 conv, 32", "BN, ReLU", "3x3 conv, 32, /2", "BN, ReLU", "1x1 conv, 128"]


@pytest.mark.parametrize(
    ("name", "resizing"),
    [
        ("original_resnet164", [["1x1 conv, 64", "BN"], ["1x1 conv, 128, /2", "BN"], ["1x1 conv, 256, /2", "BN"]]),
        ("preact_resnet164", [["1x1 conv, 64"], ["1x1 conv, 128, /2"], ["1x1 conv, 256, /2"]]),
        (
            "original_resnet110",
            [[], ["every 2nd pixel", "+ 16 zero channels"], ["every 2nd pixel", "+ 32 zero channels"]],
        ),
    ],
)
def test_shortcuts_change_where_dimensions_do(name: str, resizing: list[list[str]]) -> None:
    for (stage, first, _), part in units(drawn(name)):
        assert on_the_shortcut(part)[1] == (resizing[stage - 1] if first == 1 else [])


def test_convolution_shortcuts_stand_in_every_unit() -> None:
    found = [on_the_shortcut(part)[1] for _, part in units(drawn("resnet110_conv_shortcut"))]
    assert found == [[f"1x1 conv, {c}", "BN"] for c in ("16", "32, /2", "32", "64, /2", "64")]


@pytest.mark.parametrize(
    ("shortcut", "residual", "wire"),
    [
        ("exclusive_gating", ["times g"], "(1 - g)    ]<-------------+------------->[       times g       ]"),
        ("shortcut_only_gating", [], "(1 - g)    ]<-------------'                         |"),
    ],
)
def test_a_gate_multiplies_the_shortcut_and_only_if_exclusive_the_residual_function(
    shortcut: str, residual: list[str], wire: str
) -> None:
    lines = drawn(f"resnet110_{shortcut}", gate_bias=-5.5)
    part = unit(lines, 2, 1)
    assert boxes(part, SECOND) == ["1x1 conv, 32, /2", "+ b, -5.5 initially", "sigmoid"]
    assert on_the_shortcut(part)[1] == ["every 2nd pixel", "+ 16 zero channels", "times (1 - g)"]
    assert boxes(part, THIRD) == ["3x3 conv, 32, /2", "BN, ReLU", "3x3 conv, 32", "BN", *residual]
    assert any(line.endswith(wire) for line in part)
    assert part[split(part)].count(".") == 2, "gate and residual function read the same signal"


@pytest.mark.parametrize(("scale", "residual"), [(1.0, []), (0.5, ["times 0.5"])])
def test_constant_scaling_multiplies_the_paths_whose_factor_is_not_1(scale: float, residual: list[str]) -> None:
    part = unit(drawn("resnet110_constant_scaling", residual_scale=scale), 1, 2)
    assert on_the_shortcut(part)[1] == ["times 0.5"]
    assert boxes(part, SECOND) == ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN", *residual]


@pytest.mark.parametrize(
    ("inverted", "told"),
    [
        (False, "passes unchanged; in testing, everything is halved"),
        (True, "is doubled; in testing, everything passes"),
    ],
)
def test_dropout_stands_on_the_shortcut_and_says_how_it_scales(inverted: bool, told: str) -> None:
    lines = drawn("resnet110_dropout_shortcut", inverted=inverted)
    assert on_the_shortcut(unit(lines, 1, 2))[1] == ["dropout 0.5"]
    assert f"  dropout     in training, what it keeps {told}" in lines


@pytest.mark.parametrize(
    ("name", "stem", "tail"),
    [
        ("original_resnet110", ["3x3 conv, 16", "BN, ReLU"], []),
        ("resnet110_bn_after_addition", ["3x3 conv, 16", "BN, ReLU"], []),
        ("resnet110_relu_before_addition", ["3x3 conv, 16", "BN, ReLU"], []),
        ("resnet110_relu_only_preact", ["3x3 conv, 16", "BN"], ["ReLU"]),
        ("preact_resnet110", ["3x3 conv, 16"], ["BN, ReLU"]),
        ("original_resnet50", ["7x7 conv, 64, /2", "BN, ReLU", "3x3 max pool, /2"], []),
        ("preact_resnet50", ["7x7 conv, 64, /2", "BN, ReLU", "3x3 max pool, /2"], ["BN, ReLU"]),
    ],
)
def test_stem_and_tail_have_what_first_and_last_unit_lack(name: str, stem: list[str], tail: list[str]) -> None:
    lines = drawn(name)
    parts = [part for _, part in units(lines)]
    assert boxes(lines[: lines.index(parts[0][0])], SHORTCUT) == stem
    end = lines[lines.index(parts[-1][0]) + len(parts[-1]) :]  # titles are unique
    assert boxes(end, SHORTCUT) == [*tail, "global average pool", f"classifier, {NETS[name].num_classes}"]


@pytest.mark.parametrize("name", ["original_resnet50", "preact_resnet50"])
def test_nets_for_imagenet_activate_before_the_first_unit(name: str) -> None:
    first = unit(drawn(name), 1, 1)
    assert on_the_shortcut(first)[0] == []
    assert first[split(first) + 1].startswith("          x |")
    assert boxes(first, SECOND)[0] == "1x1 conv, 64"


CIFAR, IMAGENET = ["3 x 32 x 32", "16 x 32 x 32"], ["3 x 224 x 224", "64 x 112 x 112", "64 x 56 x 56"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("preact_resnet110", [*CIFAR, "32 x 16 x 16", "64 x 8 x 8"]),
        ("preact_resnet164", [*CIFAR, "64 x 32 x 32", "128 x 16 x 16", "256 x 8 x 8"]),
        ("preact_resnet50", [*IMAGENET, "256 x 56 x 56", "512 x 28 x 28", "1024 x 14 x 14", "2048 x 7 x 7"]),
    ],
)
def test_shapes_along_the_nets(name: str, found: list[str]) -> None:
    assert list(dict.fromkeys(shapes(drawn(name)))) == found


def test_classes_and_channels_of_the_images_are_drawn() -> None:
    lines = drawn("preact_resnet20", num_classes=7, in_chans=1)
    assert boxes(lines, SHORTCUT)[-1] == "classifier, 7"
    assert shapes(lines)[0] == "1 x 32 x 32"
    assert boxes(drawn("preact_resnet20", num_classes=0), SHORTCUT)[-1] == "global average pool"
