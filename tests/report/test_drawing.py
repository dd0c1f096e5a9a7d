from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from math import hypot
from xml.etree import ElementTree

import pytest

from paperbench.architecture import units
from paperbench.catalogue import PLACEMENTS, SHORTCUTS, resolve
from paperbench.report.drawing import (
    Box,
    Circle,
    Drawing,
    Line,
    Point,
    Text,
    as_svg,
    figure,
    net_drawing,
    unit_drawing,
    units_drawing,
)
from paperbench.specs.experiment import DrawnUnit
from paperbench.specs.table import Table

SVG = "{http://www.w3.org/2000/svg}"
SIGNS = {ord("\N{MULTIPLICATION SIGN}"): "times", ord("\N{MINUS SIGN}"): "-"}

FIGURE_4 = {
    "original": ("", "W BN ReLU W BN", "ReLU"),
    "bn_after_addition": ("", "W BN ReLU W", "BN ReLU"),
    "relu_before_addition": ("", "W BN ReLU W BN ReLU", ""),
    "relu_only_preact": ("ReLU", "W BN ReLU W BN", ""),
    "preact": ("BN ReLU", "W BN ReLU W", ""),
}
"""What comes before the first weight layer, on the residual path from there, and after the addition."""


def on_border(point: Point, node: Box | Circle) -> bool:
    dx, dy = point[0] - node.x, point[1] - node.y
    if isinstance(node, Circle):
        return abs(hypot(dx, dy) - node.radius) < 0.01
    across, down = abs(dx) - node.width / 2, abs(dy) - node.height / 2
    return max(across, down) < 0.01 and max(across, down) > -0.01


def walks(drawing: Drawing) -> set[str]:
    """Follow the lines from x_l in every way; return the texts on each."""
    lines = [shape for shape in drawing.shapes if isinstance(shape, Line)]
    nodes = [shape for shape in drawing.shapes if isinstance(shape, Box | Circle) and shape.text]

    def follow(line: Line) -> Iterator[str]:
        end = line.points[-1]
        node = next((node for node in nodes if on_border(end, node)), None)
        plain = node.text.translate(SIGNS) if node else ""
        text = re.sub(r"3x3 conv, \d+(, /2)?|weight", "W", plain) + " " if node else ""
        following = [
            one
            for one in lines
            if (on_border(one.points[0], node) if node else hypot(*minus(one.points[0], end)) < 0.01)
        ]
        assert following or line.arrow, "only the last line ends nowhere"
        for one in following:
            yield from (text + rest for rest in follow(one))
        if not following:
            yield text

    (start,) = [line for line in lines if not any(hypot(*minus(line.points[0], one.points[-1])) < 0.01 for one in lines)
                and not any(on_border(line.points[0], node) for node in nodes)]  # fmt: skip
    return {walk.strip() for walk in follow(start)}


def minus(a: Point, b: Point) -> Point:
    return a[0] - b[0], a[1] - b[1]


def expected(placement: str, shortcut: str, kind: str) -> set[str]:
    """The walks through a unit of a basic net for CIFAR, by Sec. 3.1, Figs. 2 and 4 and the Appendix."""
    before, residual, after = FIGURE_4[placement]
    shared, own = ("", before) if kind == "inner" else (before, "")
    resizing = "every 2nd pixel + 16 zero channels" if kind == "changing" else ""
    stride, channels = (", /2", 32) if kind == "changing" else ("", 16)
    conv = f"1x1 conv, {channels}{stride}"
    if shortcut == "conv":
        resizing = conv + (" BN" if placement in ("original", "relu_before_addition", "relu_only_preact") else "")
    branches = {"h": resizing, "F": f"{own} {residual}"}
    if shortcut == "constant_scaling":
        branches["h"] += " times 0.5"
    if shortcut == "dropout":
        branches["h"] += " dropout 0.5"
    if "gating" in shortcut:
        gate = f"{conv} + b, -6 initially sigmoid"
        branches |= {"h": f"{resizing} times", "1-g": f"{gate} 1 - times"}
        if shortcut == "exclusive_gating":
            branches |= {"F": f"{own} {residual} times", "g": f"{gate} times"}
    return {" ".join(f"{shared} {branch} + {after}".split()) for branch in branches.values()}


@pytest.mark.parametrize(("index", "kind"), [(0, "first"), (1, "inner"), (3, "changing")])
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_unit_is_drawn_as_the_paper_defines_it(placement: str, shortcut: str, index: int, kind: str) -> None:
    net = resolve("original_resnet20", placement=placement, shortcut=shortcut)
    assert walks(unit_drawing(net, [*units(net)][index])) == expected(placement, shortcut, kind)


def test_residual_dropout_leaves_a_shortcut_that_shares_the_activation() -> None:
    net = resolve("preact_resnet110_1layer", residual_dropout=0.3)
    assert walks(unit_drawing(net, next(units(net)))) == {"BN ReLU +", "BN ReLU dropout 0.3 W +"}


def test_projections_of_bottlenecks_are_drawn() -> None:
    net = resolve("preact_resnet164")
    residual = "1x1 conv, 32, /2 BN ReLU W BN ReLU 1x1 conv, 128"
    shared = "BN ReLU"
    assert walks(unit_drawing(net, [*units(net)][18])) == {f"{shared} 1x1 conv, 128, /2 +", f"{shared} {residual} +"}


def test_constant_scaling_draws_both_factors() -> None:
    net = resolve("resnet110_constant_scaling", shortcut_scale=0.0, residual_scale=0.25)
    assert walks(unit_drawing(net, [*units(net)][1])) == {"times 0 + ReLU", "W BN ReLU W BN times 0.25 + ReLU"}


def test_asymmetric_units_are_preactivation_units_with_other_borders() -> None:
    drawings = [
        units_drawing([DrawnUnit("", net, form)])  # type: ignore[arg-type]
        for net, form in (("preact_resnet110", "chain"), ("preact_resnet110", "asymmetric"))
    ]
    walked = [walks(drawing) for drawing in drawings]
    unit = "BN ReLU W BN ReLU W + "
    assert walked[0] == walked[1] == {"+ +", f"{unit}+", f"+ {unit}".strip(), f"{unit}{unit}".strip()}
    chain, asymmetric = ([s for s in d.shapes if isinstance(s, Box) and s.border == "dashed"] for d in drawings)
    assert (len(chain), len(asymmetric)) == (2, 1)
    inside = [
        shape.text
        for shape in sorted((s for s in drawings[1].shapes if isinstance(s, Box | Circle)), key=lambda s: s.y)
        if shape.text and abs(shape.y - asymmetric[0].y) < asymmetric[0].height / 2
    ]
    assert " ".join(inside) == "weight BN ReLU weight + BN ReLU", "the activation after the addition is inside"


@pytest.mark.parametrize(
    ("table", "figure_id", "count"), [("table1", "fig2", 6), ("table2", "fig4", 5), ("table3", "fig1", 2)]
)
def test_figures_of_the_paper_fit_a_page(tables: dict[str, Table], table: str, figure_id: str, count: int) -> None:
    (found,) = [one for one in tables[table].experiment.figures if one.id == figure_id]
    drawing = units_drawing(found.units)
    assert drawing.width <= 7.8 * 72
    assert sum(isinstance(shape, Circle) and shape.text == "+" for shape in drawing.shapes) == count


@pytest.mark.parametrize(
    ("name", "cells", "resized", "shared"),
    [
        ("original_resnet20", 9, 2, 0),
        ("resnet110_exclusive_gating", 54, 2, 0),
        ("preact_resnet164", 54, 3, 3),
        ("preact_resnet1001", 333, 3, 3),
        ("preact_resnet200", 66, 4, 3),  # the stem activates before unit 1
    ],
)
def test_a_strip_has_a_cell_for_each_unit(name: str, cells: int, resized: int, shared: int) -> None:
    shapes = net_drawing(resolve(name)).shapes
    bars = [shape for shape in shapes if isinstance(shape, Box) and not shape.border]
    assert len(bars) == cells
    assert bars[-1].x - bars[0].x < 600
    legend = (1, 1 if shared else 0)
    marks = [
        sum(isinstance(s, Circle) and not s.text and s.filled == filled for s in shapes) for filled in (True, False)
    ]
    assert marks == [resized + legend[0], shared + legend[1]]


@pytest.mark.parametrize("name", ["preact_resnet20", "resnet110_exclusive_gating", "original_resnet50"])
def test_boxes_stay_inside_and_apart(name: str) -> None:
    drawing = net_drawing(resolve(name))
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box)]
    for number, a in enumerate(boxes):
        assert 0 <= a.x - a.width / 2 < a.x + a.width / 2 <= drawing.width
        assert 0 <= a.y - a.height / 2 < a.y + a.height / 2 <= drawing.height
        for b in boxes[:number]:
            apart = abs(a.x - b.x) >= (a.width + b.width) / 2, abs(a.y - b.y) >= (a.height + b.height) / 2
            assert any(apart), (a, b)


def test_svg_and_matplotlib_have_the_same_boxes() -> None:
    from matplotlib.patches import Rectangle

    drawing = net_drawing(resolve("preact_resnet20"))
    wanted = [(s.x - s.width / 2, s.y - s.height / 2, s.width, s.height) for s in drawing.shapes if isinstance(s, Box)]
    svg = ElementTree.fromstring(as_svg(drawing))
    in_svg = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height")) for rect in svg.iter(f"{SVG}rect")
    ]
    (axes,) = figure(drawing).axes
    drawn = [(*p.get_xy(), p.get_width(), p.get_height()) for p in axes.patches if isinstance(p, Rectangle)]
    assert in_svg == [pytest.approx(box, abs=0.006) for box in wanted]
    assert drawn == [pytest.approx(box) for box in wanted]
    texts = sorted(text.text or "" for text in svg.iter(f"{SVG}text"))
    assert texts == sorted(text.get_text() for text in axes.texts)


def test_texts_keep_their_size_in_the_drawing_when_axes_shrink() -> None:
    from matplotlib.figure import Figure

    from paperbench.report.drawing import draw

    drawing = Drawing("", "", 72, 72, (Text(36, 36, "x", size=10),))
    axes = Figure((0.5, 1)).add_axes((0, 0, 1, 1))
    draw(drawing, axes)
    assert axes.texts[0].get_fontsize() == pytest.approx(5)


def test_texts_of_strangers_are_escaped() -> None:
    text = "<script>alert(1)</script> $x_{$ & \u202e"
    drawing = Drawing(text, text, 72, 72, (Text(36, 36, text),))
    svg = as_svg(drawing)
    escaped = "<script>alert(1)</script> $x_{$ & \\u202e"
    assert [element.text for element in ElementTree.fromstring(svg)] == [escaped] * 3
    made = figure(drawing)
    made.savefig(BytesIO())  # would raise an error if $ began a formula
    assert made.axes[0].texts[0].get_text() == escaped


def test_svg_describes_itself_without_ids() -> None:
    svg = ElementTree.fromstring(as_svg(net_drawing(resolve("preact_resnet110"))))
    assert svg.get("role") == "img"
    assert not any(element.get("id") for element in svg.iter())
    assert (svg.findtext(f"{SVG}title"), svg[0].tag) == ("preact_resnet110", f"{SVG}title")
    description = svg.findtext(f"{SVG}desc") or ""
    assert "\\" not in description, "no escaped line break"
    assert description.startswith("110 layers, 54 units, 1,727,962 parameters")
    assert "On both paths: BN, ReLU. Shortcut: every 2nd pixel, + 16 zero channels. Residual path: 3x3" in description
