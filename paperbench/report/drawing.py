"""Drawings of residual units and nets as plain shapes, which become SVG or go into axes of matplotlib.

Coordinates are points (1/72 inch) from the upper left corner. As in the paper's figures, the shortcut goes straight
down, and the residual path runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise, takewhile, zip_longest
from math import ceil, hypot
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, TypeAlias

from paperbench.architecture import Unit, macs, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, Net, resolve
from paperbench.errors import count, one_line
from paperbench.report.diagram import Paths, component_names, format_conv, format_shape, kinds, net_title, paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paperbench.specs.experiment import DrawnUnit

_FONT, _SMALL = 8.0, 7.0
_BOX_HEIGHT, _ARROW, _RADIUS, _GAP, _THICK = 14.0, 9.0, 5.5, 14.0, 1.6
_TEXT_WIDTH, _PAGE_WIDTH, _STRIP_HEIGHT, _MAX_CELL = 560.0, 720.0, 64.0, 18.0
_COLOURS = {"BN": "#e69f00", "ReLU": "#009e73"}  # of Okabe and Ito, for the colour-blind
_WEIGHTS = "#0072b2"
_BASELINE = 0.35  # of the font size, below the middle of a line
_TIMES = "\N{MULTIPLICATION SIGN}"
_STAGES = "#a3cdea", "#5c9fcf", "#3a78ad", "#2f5a82"

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle around a centre, with a text in it.

    Attributes:
        fill: A colour, pale behind a text; "" for none.
        border: "" for none.
    """

    x: float
    y: float
    width: float
    height: float
    text: str = ""
    fill: str = ""
    border: Literal["solid", "dashed", ""] = "solid"


@dataclass(frozen=True)
class Circle:
    """A circle around a centre, with a sign in it, or filled."""

    x: float
    y: float
    radius: float
    text: str = ""
    filled: bool = False


@dataclass(frozen=True)
class Line:
    """A line through some points. The head of an arrow ends at the last."""

    points: tuple[Point, ...]
    width: float = 0.8
    arrow: bool = False

    @property
    def head(self) -> tuple[Point, Point, Point]:
        """The corners of the head: its tip, and those of its back."""
        (x0, y0), (x, y) = self.points[-2:]
        length = hypot(x - x0, y - y0)
        dx, dy = (x - x0) / length, (y - y0) / length
        back, side = 4 + self.width / 2, 1.6 + self.width / 2
        return (
            (x, y),
            (x - back * dx + side * dy, y - back * dy - side * dx),
            (x - back * dx - side * dy, y - back * dy + side * dx),
        )

    @property
    def shaft(self) -> tuple[Point, ...]:
        """The points of the line, up to the back of the head."""
        if not self.arrow:
            return self.points
        _, left, right = self.head
        return (*self.points[:-1], ((left[0] + right[0]) / 2, (left[1] + right[1]) / 2))


@dataclass(frozen=True)
class Text:
    """A line of text, centred on height y."""

    x: float
    y: float
    text: str
    size: float = _FONT
    align: Literal["start", "middle", "end"] = "middle"
    bold: bool = False


Shape: TypeAlias = Box | Circle | Line | Text


@dataclass(frozen=True)
class Drawing:
    """Shapes on a page.

    Attributes:
        title, description: For those who cannot see it.
    """

    title: str
    description: str
    width: float
    height: float
    shapes: tuple[Shape, ...]

    def __repr__(self) -> str:
        return f"<drawing {self.title!r}: {self.width:.0f} x {self.height:.0f} points>"


_EMPTY = Drawing("", "", 0, 0, ())


def unit_drawing(net: Net, unit: Unit) -> Drawing:
    """Return the drawing of a unit of a net."""
    return _chain(paths(net, unit), 1)


def units_drawing(drawn: Sequence[DrawnUnit]) -> Drawing:
    """Return the units of a figure of the paper side by side under their titles, at most as wide as its text."""
    titles = [wrap(one.title, 18, break_on_hyphens=False) or [""] for one in drawn]
    drawings = []
    for one, title in zip(drawn, titles, strict=True):
        net = resolve(one.net)
        inner = paths(net, next(unit for unit in units(net) if unit.index), plain=True)
        drawing = _chain(inner, 1 if one.form == "unit" else 2, is_asymmetric=one.form == "asymmetric")
        padding = [""] * (max(map(len, titles)) - len(title))
        drawings.append(_titled(drawing, [*title, *padding], bold=len(title)))
    rows = ceil(sum(one.width + _GAP for one in drawings) / _TEXT_WIDTH)
    per_row = ceil(len(drawings) / rows)
    return _grid([drawings[k : k + per_row] for k in range(0, len(drawings), per_row)], _GAP, "Residual units")


def net_drawing(net: Net) -> Drawing:
    """Return the whole net as a strip, and below it a column for each stage with every kind of unit once."""
    family = FAMILIES[net.family]
    size = stem(net).output_size(family.size)
    rows: list[list[Drawing]] = []
    for equal in kinds(net):
        first, last = equal[0], equal[-1]
        which = f"unit {first.index + 1}"
        if len(equal) > 1:
            which = f"units {first.index + 1} to {last.index + 1} (x {len(equal)})"
        size = first.output_size(size)
        titles = [f"stage {first.stage + 1}", which, f"to {format_shape(first.out_channels, size)}"]
        row = next((row for row in rows if len(row) == first.stage), None)
        if row is None:
            rows.append(row := [_EMPTY] * first.stage)
        row.append(_titled(unit_drawing(net, first), titles))
    heading = (
        f"{net.depth} layers, {sum(net.units)} units, {parameters(net):,} parameters, "
        f"{macs(net) / 1e6:,.1f}M multiply-accumulates on an image of {format_shape(net.in_chans, family.size)}"
    )
    strip = _titled(_strip(net), [net_title(net), heading], align="start")
    grid = _grid(rows, 2 * _GAP, "", strip.width)
    y = strip.height + 2 * _GAP
    shapes = (*_moved(strip.shapes, max(0, grid.width - strip.width) / 2, 0), *_moved(grid.shapes, 0, y))
    description = f"{heading}. {grid.description}"
    return Drawing(net_title(net), description, max(strip.width, grid.width), y + grid.height, shapes)


class _Path:
    """A path under construction, which leads down from node to node."""

    def __init__(self, shapes: list[Shape], points: Sequence[Point], width: float = 0.8) -> None:
        self.shapes, self.points, self.width = shapes, list(points), width

    @property
    def y(self) -> float:
        return self.points[-1][1]

    def to(self, x: float, y: float, *, arrow: bool = False) -> None:
        """Draw the line from the last node."""
        self.shapes.append(Line((*self.points, (x, y)), self.width, arrow))
        self.points = [(x, y)]

    def box(self, text: str) -> None:
        x = self.points[-1][0]
        text = text.replace("times ", _TIMES + " ")
        fill = _COLOURS.get(text) or (_WEIGHTS if "conv" in text or text == "weight" else "")
        y = self.y + _ARROW + _BOX_HEIGHT / 2
        self._node(Box(x, y, _box_width(text), _BOX_HEIGHT, text, fill), _BOX_HEIGHT / 2)

    def circle(self, text: str, y: float) -> None:
        self._node(Circle(self.points[-1][0], y, _RADIUS, text), _RADIUS)

    def _node(self, node: Box | Circle, half: float) -> None:
        self.to(node.x, node.y - half, arrow=True)
        self.shapes.append(node)
        self.points = [(node.x, node.y + half)]


def _chain(one: Paths, number: int, *, is_asymmetric: bool = False) -> Drawing:
    """Return equal units in a row, with their borders if there are several.

    Args:
        is_asymmetric: Draw the borders after each activation of the residual path instead of after each addition.
    """
    factors = ("", "") if one.gate else one.weighing
    main_width = max(map(_box_width, (*one.shared, *one.shortcut, *one.after, factors[0])))
    gate_width = max(map(_box_width, one.gate), default=0)
    residual_width = max(map(_box_width, (*one.residual, factors[1])))
    gate = main_width / 2 + _GAP + gate_width / 2
    residual = (gate + gate_width / 2 if one.gate else main_width / 2) + _GAP + residual_width / 2
    shapes: list[Shape] = _signal(0, 5, 0)
    main = _Path(shapes, [(0, 13)], _THICK)
    borders = []
    for k in range(number):
        if k:
            shapes += _signal(-24, main.y + 10, k)
            main.to(0, main.y + 22)
        top = main.y
        activated = _unit(one, main, (gate, residual))
        borders.append((activated, activated) if is_asymmetric else (top, main.y + 3))
    main.to(0, main.y + 18, arrow=True)
    shapes += _signal(0, main.y + 7, number)
    left, right = -main_width / 2 - 2, residual + residual_width / 2 + 2
    if number > 1:
        left, right = min(left, -28) - 4, right + 4
        if is_asymmetric:
            borders = [(top, bottom) for (top, _), (bottom, _) in pairwise(borders)]
        for top, bottom in borders:
            shapes.append(Box((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, border="dashed"))
    return Drawing("Residual unit", one.sentence, right - left + 2, main.y + 15, _moved(shapes, 1 - left, 0))


def _unit(unit: Paths, main: _Path, columns: tuple[float, float]) -> float:
    """Draw a unit below the end of the path that leads to it.

    Args:
        main: Leads to the unit, and afterwards away from it.
        columns: Where gate and residual path run.

    Returns:
        The height where the activation at the beginning of the residual path ends.
    """
    for text in unit.shared:
        main.box(text)
    main.to(0, main.y + 5)
    (x, y), shapes, (gate_x, residual_x) = main.points[0], main.shapes, columns
    activation = y + sum(_ARROW + _BOX_HEIGHT for _ in takewhile(lambda text: text in _COLOURS, unit.residual))
    fork = (x, y)
    if unit.gate:
        _Path(shapes, [fork]).to(gate_x, y)
        fork = (gate_x, y)
    gate, residual = (_Path(shapes, [fork, (column, y)] if column != fork[0] else [fork]) for column in columns)
    for path, texts in ((main, unit.shortcut), (gate, unit.gate), (residual, unit.residual)):
        for text in texts:
            path.box(text)
    y = max(path.y for path in (main, gate, residual))
    if unit.gate:
        y += _ARROW + _BOX_HEIGHT / 2
        _multiply(main, gate, residual, y, is_exclusive=bool(unit.weighing[1]))
        y += _RADIUS
    elif any(unit.weighing):
        for path, text in zip((main, residual), unit.weighing, strict=True):
            path.points.append((path.points[0][0], y))
            if text:
                path.box(text)
        y += _ARROW + _BOX_HEIGHT
    y += _ARROW + _RADIUS
    main.circle("+", y)
    residual.points.append((residual_x, y))
    residual.to(_RADIUS, y, arrow=True)
    for text in unit.after:
        main.box(text)
    return activation + _ARROW / 2


def _multiply(main: _Path, gate: _Path, residual: _Path, y: float, *, is_exclusive: bool) -> None:
    """Multiply the shortcut by 1 - g and, in exclusive gating, the residual path by g."""
    x = gate.points[-1][0]
    if is_exclusive:
        gate.to(x, y)
        _Path(gate.shapes, [(x, y)]).to(residual.points[-1][0] - _RADIUS, y, arrow=True)
        residual.circle(_TIMES, y)
    else:
        gate.points.append((x, y))
    width = 24.0
    gate.to(x / 2 + width / 2, y, arrow=True)
    gate.shapes.append(Box(x / 2, y, width, _BOX_HEIGHT, "1 \N{MINUS SIGN}"))
    _Path(gate.shapes, [(x / 2 - width / 2, y)]).to(_RADIUS, y, arrow=True)
    main.circle(_TIMES, y)


@dataclass(frozen=True)
class _Slot:
    """A part of a strip: the stem, a stage, or the end of the net.

    Attributes:
        size: Side of its feature maps, in pixels.
        units: None of them in the stem and at the end.
    """

    caption: Sequence[str]
    size: int
    units: Sequence[Unit] = ()

    def width(self, cell: float) -> float:
        return max(self.cells(cell), *(_text_width(line, _SMALL) for line in self.caption))

    def cells(self, cell: float) -> float:
        return len(self.units) * cell or 6.0


def _strip(net: Net) -> Drawing:
    """Return a net as a strip: stem, one cell per unit as high as its feature maps have pixels, and the end."""
    slots = [*_slots(net)]
    x, cell = 44.0, _MAX_CELL
    while cell > 0.5 and x + sum(slot.width(cell) + _GAP for slot in slots) > _PAGE_WIDTH:
        cell *= 0.98
    scale, middle = _STRIP_HEIGHT / slots[0].size, 22 + _STRIP_HEIGHT / 2
    top, bottom = middle - _STRIP_HEIGHT / 2, middle + _STRIP_HEIGHT / 2
    shapes: list[Shape] = [Line(((x - 8, y), (x - 2, y))) for y in (top, bottom)]
    shapes += [Line(((x - 5, top), (x - 5, bottom))), Text(x - 11, middle, f"{slots[0].size} px", _SMALL, "end")]
    end = 0.0
    for slot in slots:
        height, left = slot.size * scale, x + (slot.width(cell) - slot.cells(cell)) / 2
        if end:
            shapes.append(Line(((end, middle), (left - 1, middle)), _THICK, arrow=True))
        if not slot.units:
            shapes.append(Box(left + 3, middle, 6, height))
        for number, unit in enumerate(slot.units):
            centre = left + (number + 0.5) * cell
            shapes.append(Box(centre, middle, 0.85 * cell, height, fill=_STAGES[unit.stage], border=""))
            marks = [_changes_dimensions(unit), unit.shortcut_reads == "activated"]
            for k, is_filled in enumerate(
                [is_filled for is_filled, given in zip((True, False), marks, strict=True) if given]
            ):
                shapes.append(Circle(centre, middle - height / 2 - 5 - 7 * k, 2.2, filled=is_filled))
        for k, line in enumerate(slot.caption):
            shapes.append(Text(x + slot.width(cell) / 2, bottom + 10 + 10 * k, line, _SMALL))
        end = left + slot.cells(cell) + 1
        x += slot.width(cell) + _GAP
    y = bottom + 10 + 10 * max(len(slot.caption) for slot in slots) + 4
    legend = [(True, "changes dimensions"), (False, "its pre-activation feeds both paths")]
    for (is_filled, text), left in zip(legend, (44.0, 160.0), strict=True):
        if any(isinstance(shape, Circle) and shape.filled == is_filled for shape in shapes):
            shapes += [Circle(left, y, 2.2, filled=is_filled), Text(left + 6, y, text, _SMALL, "start")]
    return Drawing("", "", x - _GAP, y + 5, tuple(shapes))


def _slots(net: Net) -> Iterator[_Slot]:
    first = stem(net)
    size = first.output_size(FAMILIES[net.family].size)
    begin = [format_conv(first.convolution), *component_names(first.components), *["3x3 max pool, /2"] * first.pools]
    yield _Slot(begin, size)
    for stage, found in groupby(units(net), key=lambda unit: unit.stage):
        of_stage = [*found]
        size = of_stage[0].output_size(size)
        caption = [f"stage {stage + 1}", count(len(of_stage), "unit"), format_shape(of_stage[0].out_channels, size)]
        yield _Slot(caption, size, of_stage)
    end = [
        *component_names(tail(net)),
        "global average pool",
        *[f"classifier, {net.num_classes}"] * (net.num_classes > 0),
    ]
    yield _Slot(end, 1)


def _changes_dimensions(unit: Unit) -> bool:
    return unit.stride > 1 or unit.in_channels != unit.out_channels


def _signal(x: float, y: float, number: int) -> list[Shape]:
    """Return x with its index: l, l+1, ..., the x in the middle."""
    index = f"l+{number}" if number else "l"
    return [Text(x, y, "x", _FONT + 2, bold=True), Text(x + 4, y + 4, index, _SMALL, "start")]


def _box_width(text: str) -> float:
    return max(_text_width(text) + 8, 40.0) if text else 20.0


def _text_width(text: str, size: float = _FONT) -> float:
    """Return about how wide a text is, in a wide font such as DejaVu Sans."""
    return 0.6 * size * len(text)


def _titled(
    drawing: Drawing, lines: Sequence[str], align: Literal["start", "middle"] = "middle", bold: int = 1
) -> Drawing:
    """Return a drawing below some lines of text, the first of them bold."""
    width = max(drawing.width, *(_text_width(line) * (1.1 if k < bold else 1) for k, line in enumerate(lines)))
    x, indent = (width / 2, (width - drawing.width) / 2) if align == "middle" else (0.0, 0.0)
    texts = [Text(x, 6 + 11 * k, line, _FONT, align, bold=k < bold) for k, line in enumerate(lines) if line]
    below = 11 * len(lines) + 8
    description = f"{', '.join(filter(None, (' '.join(lines[:bold]), *lines[bold:])))}. {drawing.description}"
    shapes = (*texts, *_moved(drawing.shapes, indent, below))
    return Drawing(" ".join(filter(None, lines)), description, width, drawing.height + below, shapes)


def _grid(rows: Sequence[Sequence[Drawing]], gap: float, title: str, width: float = 0) -> Drawing:
    """Return drawings in rows and columns, which are spread over a width if they need less."""
    widths = [max(one.width for one in column) for column in zip_longest(*rows, fillvalue=_EMPTY)]
    gap = max(gap, (width - sum(widths)) / len(widths))
    shapes, y = list[Shape](), 0.0
    for row in rows:
        x = gap / 2
        for one, wide in zip(row, widths, strict=False):
            shapes += _moved(one.shapes, x + (wide - one.width) / 2, y)
            x += wide + gap
        y += max(one.height for one in row) + 2 * _GAP
    description = "\n".join(one.description for row in rows for one in row if one.description)
    return Drawing(title, description, sum(widths) + gap * len(widths), y - 2 * _GAP, tuple(shapes))


def _moved(shapes: Iterable[Shape], dx: float, dy: float) -> tuple[Shape, ...]:
    return tuple(
        replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points))
        if isinstance(shape, Line)
        else replace(shape, x=shape.x + dx, y=shape.y + dy)
        for shape in shapes
    )


def as_svg(drawing: Drawing) -> str:
    """Return a drawing as an SVG element for a page of HTML, in the page's colour of text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
        f' viewBox="0 0 {drawing.width:.2f} {drawing.height:.2f}" font-family="sans-serif" fill="currentColor"'
        f' stroke="none"><title>{_escape(drawing.title)}</title><desc>{_escape(drawing.description)}</desc>'
    ]
    for shape in drawing.shapes:
        match shape:
            case Box(x, y, width, height, text, fill, border):
                where = f'x="{x - width / 2:.2f}" y="{y - height / 2:.2f}" width="{width:.2f}" height="{height:.2f}"'
                look = f'fill="{fill}"' + ' fill-opacity="0.25"' * bool(text) if fill else 'fill="none"'
                look += ' stroke="currentColor" stroke-width="0.8"' * bool(border)
                look += ' stroke-dasharray="3 2"' * (border == "dashed")
                parts.append(f"<rect {where} {look}/>")
            case Circle(x, y, radius, text, filled):
                look = "" if filled else ' fill="none" stroke="currentColor" stroke-width="0.8"'
                parts.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}"{look}/>')
            case Line(_, width, arrow):
                look = f'fill="none" stroke="currentColor" stroke-width="{width:.2f}"'
                parts.append(f'<polyline points="{_points(shape.shaft)}" {look}/>')
                if arrow:
                    parts.append(f'<polygon points="{_points(shape.head)}"/>')
        for label in _texts(shape):
            look = ' font-weight="bold"' * label.bold
            where = f'x="{label.x:.2f}" y="{label.y + _BASELINE * label.size:.2f}" text-anchor="{label.align}"'
            parts.append(f'<text {where} font-size="{label.size:g}"{look}>{_escape(label.text)}</text>')
    return "\n".join([*parts, "</svg>"])


def _texts(shape: Shape) -> Iterator[Text]:
    """Yield the text of a shape, if it has any."""
    if isinstance(shape, Text):
        yield shape
    elif isinstance(shape, Box | Circle) and shape.text:
        yield Text(shape.x, shape.y, shape.text, _FONT if isinstance(shape, Box) else _FONT + 2)


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _escape(text: str) -> str:
    return escape(one_line(text))


def figure(drawing: Drawing) -> Figure:
    """Return a figure of matplotlib with a drawing in its own size."""
    from matplotlib.figure import Figure

    margin = 6.0
    made = Figure(figsize=((drawing.width + 2 * margin) / 72, (drawing.height + 2 * margin) / 72))
    inside = drawing.width / (drawing.width + 2 * margin), drawing.height / (drawing.height + 2 * margin)
    draw(drawing, made.add_axes(((1 - inside[0]) / 2, (1 - inside[1]) / 2, *inside)))
    return made


def draw(drawing: Drawing, axes: Axes) -> None:
    """Draw into axes of matplotlib, as large as they are now, with texts and lines in proportion."""
    from matplotlib import patches

    axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0), aspect="equal", anchor="N")
    axes.axis("off")
    scale = min(axes.bbox.width / drawing.width, axes.bbox.height / drawing.height) * 72 / axes.figure.dpi
    for shape in drawing.shapes:
        match shape:
            case Box(x, y, width, height, text, fill, border):
                rectangle = patches.Rectangle((x - width / 2, y - height / 2), width, height)
                rectangle.set(facecolor=(fill, 0.25 if text else 1) if fill else "none", linewidth=0.8 * scale)
                rectangle.set(edgecolor="black" if border else "none", linestyle=border or "solid")
                rectangle.set_snap(bool(border))  # hundreds of cells would get uneven gaps
                axes.add_patch(rectangle)
            case Circle(x, y, radius, _, filled):
                face = "black" if filled else "none"
                axes.add_patch(patches.Circle((x, y), radius, facecolor=face, edgecolor="black", linewidth=0.8 * scale))
            case Line(_, width, arrow):
                axes.plot(
                    *zip(*shape.shaft, strict=True), color="black", linewidth=width * scale, solid_capstyle="butt"
                )
                if arrow:
                    axes.add_patch(patches.Polygon(shape.head, facecolor="black", edgecolor="none"))
        for label in _texts(shape):
            axes.text(
                label.x,
                label.y + _BASELINE * label.size,
                one_line(label.text),
                fontsize=label.size * scale,
                fontweight="bold" if label.bold else "normal",
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[label.align],
                verticalalignment="baseline",
                parse_math=False,
            )
