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
"""Columns of the paths. The second is the gate if the net has gates, else the residual function."""


def draw(name: str, **kwargs: object) -> list[str]:
    return diagram(resolve(name, **kwargs)).splitlines()


def body(lines: list[str]) -> list[str]:
    """The lines below the heading."""
    return lines[lines.index("") + 1 :]


def units(lines: list[str]) -> Iterator[tuple[tuple[int, int, int], list[str]]]:
    """Yield (stage, first unit, last unit) and the lines, up to the output shape, of each drawing of units."""
    start = None
    for number, line in enumerate(lines):
        if TITLE.search(line):
            start = number
        elif start is not None and SHAPE.search(line):
            stage, first, last, _ = TITLE.search(lines[start]).groups()
            yield (int(stage), int(first), int(last or first)), lines[start : number + 1]
            start = None


def unit(lines: list[str], stage: int, number: int) -> list[str]:
    (found,) = [part for (s, first, last), part in units(lines) if s == stage and first <= number <= last]
    return found


def boxes(lines: list[str], column: int) -> list[str]:
    """Texts of the boxes on the path in this column."""
    return [box[1] for line in lines for box in BOX.finditer(line) if box.start() < column < box.end()]


def split(part: list[str]) -> int:
    """Line where the paths split."""
    return next(number for number, line in enumerate(part) if line[SHORTCUT : SHORTCUT + 2] == "o-")


def boxes_on_shortcut(part: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Boxes before the split, between split and addition, and after the addition."""
    addition = next(number for number, line in enumerate(part) if "(+)<-" in line)
    parts = part[: split(part)], part[split(part) : addition], part[addition:]
    before, between, after = (boxes(lines, SHORTCUT) for lines in parts)
    return before, between, after


def shapes(lines: list[str]) -> list[str]:
    return [found[0] for line in body(lines) if (found := SHAPE.search(line))]


def test_diagrams_fit_100_ascii_columns_with_an_unbroken_shortcut() -> None:
    for name in NETS:
        for shortcut in SHORTCUTS:
            lines = draw(name, shortcut=shortcut)
            assert all(line.isascii() and line.isprintable() and len(line) <= 100 for line in lines), (name, shortcut)
            for line in body(lines):
                is_box = any(box.start() < SHORTCUT < box.end() for box in BOX.finditer(line))
                is_image = line[SHORTCUT - 2 :].startswith("image")
                assert is_box or is_image or line[SHORTCUT] in "|o+", (name, shortcut, line)


def test_every_unit_is_drawn_once() -> None:
    for name, net in NETS.items():
        numbers: dict[int, list[int]] = {}
        lines = draw(name)
        for (stage, first, last), part in units(lines):
            numbers.setdefault(stage, []).extend(range(first, last + 1))
            assert int(TITLE.search(part[0])[4] or 1) == last - first + 1
        assert [numbers[stage + 1] for stage in range(len(numbers))] == [[*range(1, n + 1)] for n in net.units]
        assert len(lines) < 150


@pytest.mark.parametrize(
    ("name", "size", "cost"),
    [
        ("original_resnet110_1layer", "110 layers, 108 units, 1,727,962 parameters", "252.9M|3 x 32 x 32"),
        ("original_resnet50", "50 layers, 16 units, 25,557,032 parameters", "3858.0M|3 x 224 x 224"),
    ],
)
def test_heading_gives_size_and_cost(name: str, size: str, cost: str) -> None:
    lines = draw(name)
    assert f"  size        {size}" in lines
    assert f"  cost        {cost.replace('|', ' multiply-accumulates on an image of ')}" in lines


def test_heading_gives_name_figures_and_gate_initialisation() -> None:
    lines = draw("resnet110_exclusive_gating")
    assert lines[:3] == [
        "resnet110_exclusive_gating",
        "  placement   original Residual Unit, Fig. 4(a) of arXiv:1603.05027",
        "  shortcut    exclusive gating, Fig. 2(c)",
    ]
    assert any(line.endswith("initial weights: He's") for line in lines)
    lines = draw("resnet110_exclusive_gating", gate_init="gaussian")
    assert any(line.endswith("initial weights: Gaussian with standard deviation 0.01") for line in lines)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"num_classes": 100, "in_chans": 1}, "preact_resnet110"),
        ({"placement": "original", "shortcut": "conv"}, "resnet110_conv_shortcut"),
        ({"depth": 26}, "ResNet-26"),
    ],
)
def test_heading_uses_the_catalogue_name(kwargs: dict[str, object], name: str) -> None:
    assert draw("preact_resnet110", **kwargs)[0] == name


def test_cifar_nets_share_preactivation_in_unit_1_and_where_dimensions_change() -> None:
    for (_, first, _), part in units(draw("preact_resnet110")):
        is_shared = first == 1
        assert boxes_on_shortcut(part)[0] == (["BN, ReLU"] if is_shared else [])
        assert part[split(part) + 1].split()[0] == ("activated" if is_shared else "raw")
        assert (boxes(part, SECOND)[0] == "BN, ReLU") is not is_shared


def test_transition_shortcuts_can_read_the_raw_signal() -> None:
    lines = draw("preact_resnet164", transition_shortcut="raw")
    assert [position[:2] for position, part in units(lines) if boxes_on_shortcut(part)[0]] == [(1, 1)]
    part = unit(lines, 2, 1)
    assert part[split(part) + 1].startswith("      raw x |")


@pytest.mark.parametrize(
    ("placement", "residual", "after"),
    [
        ("original", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN"], ["ReLU"]),
        ("bn_after_addition", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16"], ["BN, ReLU"]),
        ("relu_before_addition", ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN, ReLU"], []),
        ("relu_only_preact", ["ReLU", "3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN"], []),
        ("preact", ["BN, ReLU", "3x3 conv, 16", "BN, ReLU", "3x3 conv, 16"], []),
    ],
)
def test_placements_of_figure_4(placement: str, residual: list[str], after: list[str]) -> None:
    part = unit(draw("original_resnet110", placement=placement), 1, 2)
    assert boxes_on_shortcut(part) == ([], [], after)
    assert boxes(part, SECOND) == residual


@pytest.mark.parametrize(
    ("stride_in", "first", "middle"),
    [("first", "1x1 conv, 32, /2", "3x3 conv, 32"), ("middle", "1x1 conv, 32", "3x3 conv, 32, /2")],
)
def test_bottleneck_unit(stride_in: str, first: str, middle: str) -> None:
    part = unit(draw("preact_resnet164", stride_in=stride_in), 2, 1)
    assert boxes(part, SECOND) == [first, "BN, ReLU", middle, "BN, ReLU", "1x1 conv, 128"]


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
def test_shortcuts_that_change_dimensions(name: str, resizing: list[list[str]]) -> None:
    for (stage, first, _), part in units(draw(name)):
        assert boxes_on_shortcut(part)[1] == (resizing[stage - 1] if first == 1 else [])


def test_convolution_shortcuts_are_in_every_unit() -> None:
    found = [boxes_on_shortcut(part)[1] for _, part in units(draw("resnet110_conv_shortcut"))]
    assert found == [[f"1x1 conv, {c}", "BN"] for c in ("16", "32, /2", "32", "64, /2", "64")]


@pytest.mark.parametrize(
    ("shortcut", "residual", "wire"),
    [
        ("exclusive_gating", ["times g"], "(1 - g)    ]<-------------+------------->[       times g       ]"),
        ("shortcut_only_gating", [], "(1 - g)    ]<-------------'                         |"),
    ],
)
def test_gates_of_figure_2(shortcut: str, residual: list[str], wire: str) -> None:
    part = unit(draw(f"resnet110_{shortcut}", gate_bias=-5.5), 2, 1)
    assert boxes(part, SECOND) == ["1x1 conv, 32, /2", "+ b, -5.5 initially", "sigmoid"]
    assert boxes_on_shortcut(part)[1] == ["every 2nd pixel", "+ 16 zero channels", "times (1 - g)"]
    assert boxes(part, THIRD) == ["3x3 conv, 32, /2", "BN, ReLU", "3x3 conv, 32", "BN", *residual]
    assert any(line.endswith(wire) for line in part)
    assert part[split(part)].count(".") == 2, "gate and residual function read the same signal"


@pytest.mark.parametrize(("scale", "residual"), [(1.0, []), (0.5, ["times 0.5"])])
def test_constant_scaling_omits_factors_of_1(scale: float, residual: list[str]) -> None:
    part = unit(draw("resnet110_constant_scaling", residual_scale=scale), 1, 2)
    assert boxes_on_shortcut(part)[1] == ["times 0.5"]
    assert boxes(part, SECOND) == ["3x3 conv, 16", "BN, ReLU", "3x3 conv, 16", "BN", *residual]


@pytest.mark.parametrize(
    ("inverted", "explanation"),
    [
        (False, "training drops half of the values; testing halves all values"),
        (True, "training drops half of the values and doubles the others; testing changes nothing"),
    ],
)
def test_dropout_is_on_the_shortcut_and_explained(inverted: bool, explanation: str) -> None:
    lines = draw("resnet110_dropout_shortcut", inverted=inverted)
    assert boxes_on_shortcut(unit(lines, 1, 2))[1] == ["dropout 0.5"]
    assert f"  dropout     {explanation}" in lines


def test_residual_dropout_is_before_the_last_convolution_and_explained() -> None:
    lines = draw("preact_resnet164", residual_dropout=0.3)
    assert boxes(unit(lines, 1, 1), SECOND)[-3:] == ["BN, ReLU", "dropout 0.3", "1x1 conv, 64"]
    fact = "training drops 0.3 of the values and divides the others by 0.7; testing none"
    assert f"  dropout (F) {fact}" in lines


@pytest.mark.parametrize(
    ("name", "stem", "tail"),
    [
        ("resnet110_relu_only_preact", ["3x3 conv, 16", "BN"], ["ReLU"]),
        ("preact_resnet110", ["3x3 conv, 16"], ["BN, ReLU"]),
        ("original_resnet50", ["7x7 conv, 64, /2", "BN, ReLU", "3x3 max pool, /2"], []),
        ("preact_resnet50", ["7x7 conv, 64, /2", "BN, ReLU", "3x3 max pool, /2"], ["BN, ReLU"]),
    ],
)
def test_stem_and_tail(name: str, stem: list[str], tail: list[str]) -> None:
    lines = draw(name)
    parts = [part for _, part in units(lines)]
    assert boxes(lines[: lines.index(parts[0][0])], SHORTCUT) == stem
    end = lines[lines.index(parts[-1][0]) + len(parts[-1]) :]  # titles are unique
    assert boxes(end, SHORTCUT) == [*tail, "global average pool", f"classifier, {NETS[name].num_classes}"]


def test_imagenet_nets_activate_before_the_first_unit() -> None:
    first = unit(draw("preact_resnet50"), 1, 1)
    assert boxes_on_shortcut(first)[0] == []
    assert first[split(first) + 1].startswith("          x |")
    assert boxes(first, SECOND)[0] == "1x1 conv, 64"


CIFAR, IMAGENET = ["3 x 32 x 32", "16 x 32 x 32"], ["3 x 224 x 224", "64 x 112 x 112", "64 x 56 x 56"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("preact_resnet164", [*CIFAR, "64 x 32 x 32", "128 x 16 x 16", "256 x 8 x 8"]),
        ("preact_resnet50", [*IMAGENET, "256 x 56 x 56", "512 x 28 x 28", "1024 x 14 x 14", "2048 x 7 x 7"]),
    ],
)
def test_shapes(name: str, expected: list[str]) -> None:
    assert list(dict.fromkeys(shapes(draw(name)))) == expected


def test_numbers_of_classes_and_image_channels() -> None:
    lines = draw("preact_resnet20", num_classes=7, in_chans=1)
    assert boxes(lines, SHORTCUT)[-1] == "classifier, 7"
    assert shapes(lines)[0] == "1 x 32 x 32"
    assert boxes(draw("preact_resnet20", num_classes=0), SHORTCUT)[-1] == "global average pool"
