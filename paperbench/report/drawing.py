"""Drawings of residual units and nets as plain shapes, which become SVG or go into axes of matplotlib.

Coordinates are points (1/72 inch) from the upper left corner. As in the paper's figures, the shortcut goes straight
down, and the residual path runs beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import compress, groupby, pairwise, takewhile, zip_longest
from math import ceil, hypot
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from paperbench.architecture import Unit, stem, units
from paperbench.catalogue import COMPONENTS, FAMILIES, Net, resolve
from paperbench.errors import count, one_line
from paperbench.report.description import Paths, begin, end, format_shape, heading, kinds, net_title, paths, unit_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paperbench.specs.experiment import DrawnUnit

_FONT, _SMALL = 8.0, 7.0
_BOX_HEIGHT, _ARROW, _RADIUS, _GAP, _THICK = 14.0, 9.0, 5.5, 14.0, 1.6
_TEXT_WIDTH = 560.0
_COLOURS = {"norm": "#e69f00", "activation": "#009e73"}  # of Okabe and Ito, for the colour-blind
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
        x0, y0 = x - back * dx, y - back * dy
        return (x, y), (x0 + side * dy, y0 - side * dx), (x0 - side * dy, y0 + side * dx)

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
    align: Literal["start", "middle"] = "middle"
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
    return _grid([drawings[k : k + per_row] for k in range(0, len(drawings), per_row)], _GAP)


def net_drawing(net: Net) -> Drawing:
    """Return the whole net as a strip, and below it a column for each stage with every kind of unit once."""
    facts, size = heading(net), stem(net).output_size(FAMILIES[net.family].size)
    columns: dict[int, list[Drawing]] = defaultdict(list)
    for equal in kinds(net):
        size = equal[0].output_size(size)
        titles = [*unit_title(equal).split(", "), f"to {format_shape(equal[0].out_channels, size)}"]
        columns[equal[0].stage].append(_titled(unit_drawing(net, equal[0]), titles))
    units_below = _grid([*zip_longest(*columns.values(), fillvalue=_EMPTY)], 2 * _GAP)
    strip = _titled(_strip(net), [net_title(net), facts["size"], facts["cost"]])
    whole = _grid([[strip], [units_below]], 0)
    description = f"{facts['size']}, {facts['cost']}.\n{units_below.description}"
    return replace(whole, title=net_title(net), description=description)


class _Path:
    """A path that is being drawn, down from node to node."""

    def __init__(self, shapes: list[Shape], points: Sequence[Point], width: float = 0.8) -> None:
        self.shapes, self.points, self.width = shapes, list(points), width

    @property
    def y(self) -> float:
        return self.points[-1][1]

    def to(self, x: float, y: float, *, arrow: bool = False) -> None:
        """Draw the line from the last node."""
        self.shapes.append(Line((*self.points, (x, y)), self.width, arrow))
        self.points = [(x, y)]

    def boxes(self, texts: Iterable[str]) -> None:
        x = self.points[-1][0]
        for text in (one.replace("times ", _TIMES + " ") for one in texts):
            fill = _colour(text) or (_WEIGHTS if "conv" in text or text == "weight" else "")
            y = self.y + _ARROW + _BOX_HEIGHT / 2
            self._node(Box(x, y, _box_width(text), _BOX_HEIGHT, text, fill), _BOX_HEIGHT / 2)

    def circle(self, text: str, y: float) -> None:
        self._node(Circle(self.points[-1][0], y, _RADIUS, text), _RADIUS)

    def _node(self, node: Box | Circle, half: float) -> None:
        self.to(node.x, node.y - half, arrow=True)
        self.shapes.append(node)
        self.points = [(node.x, node.y + half)]


def _chain(one: Paths, number: int, *, is_asymmetric: bool = False) -> Drawing:
    """Return equal units one below the other, with their borders if there are several.

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
    activation = 5 + _ARROW / 2 + sum(_ARROW + _BOX_HEIGHT for _ in takewhile(_colour, one.residual))
    borders = []
    for k in range(number):
        if k:
            shapes += _signal(-24, main.y + 10, k)
            main.to(0, main.y + 22)
        top = main.y
        _draw_unit(one, main, gate, residual)
        borders.append((top + activation, top + activation) if is_asymmetric else (top, main.y + 3))
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


def _draw_unit(unit: Paths, main: _Path, gate_x: float, residual_x: float) -> None:
    """Draw a unit at the end of `main`, which then goes on from it."""
    main.boxes(unit.shared)
    main.to(0, main.y + 5)
    gate, residual = _Path(main.shapes, main.points), _Path(main.shapes, main.points)
    if unit.gate and not unit.gates_branch:
        gate.to(gate_x, main.y)
        residual.points = gate.points
    residual.points = [*residual.points, (residual_x, main.y)]
    main.boxes(unit.shortcut)
    if not unit.gates_branch:
        gate.boxes(unit.gate)
    residual.boxes(unit.residual)
    if unit.gates_branch:
        residual.to(residual_x, residual.y + 5)
        gate.points = [*residual.points, (gate_x, residual.y)]
        gate.boxes(unit.gate)
    y = max(path.y for path in (main, gate, residual))
    if unit.gate:
        y += _ARROW + _BOX_HEIGHT / 2
        if all(unit.weighing):
            gate.to(gate_x, y)
        else:
            gate.points.append((gate_x, y))
        for path, x, side, text in ((residual, residual_x, 1, unit.weighing[1]), (main, 0.0, -1, unit.weighing[0])):
            branch = _Path(gate.shapes, gate.points)
            if "1 - g" in text:
                minus = Box((gate_x + x) / 2, y, 24, _BOX_HEIGHT, "1 \N{MINUS SIGN}")
                branch.to(minus.x - 12 * side, y, arrow=True)
                branch.shapes.append(minus)
                branch.points = [(minus.x + 12 * side, y)]
            if text:
                branch.to(x - _RADIUS * side, y, arrow=True)
                path.circle(_TIMES, y)
        y += _RADIUS
    elif any(unit.weighing):
        for path, text in zip((main, residual), unit.weighing, strict=True):
            path.points.append((path.points[0][0], y))
            path.boxes(filter(None, [text]))
        y += _ARROW + _BOX_HEIGHT
    y += _ARROW + _RADIUS
    main.circle("+", y)
    residual.points.append((residual_x, y))
    residual.to(_RADIUS, y, arrow=True)
    main.boxes(unit.after)


def _colour(text: str) -> str:
    """Return the colour of a component with this title; "" for other texts."""
    return next((_COLOURS[one.kind] for one in COMPONENTS.values() if one.title == text), "")


def _strip(net: Net) -> Drawing:
    """Return a net as a strip: stem, a bar for each unit as high as its feature maps have pixels, and the end."""
    size = stem(net).output_size(FAMILIES[net.family].size)
    bar, scale = min(18.0, 440 / sum(net.units)), 64 / size
    middle, below = 54.0, 96.0
    parts: list[tuple[list[str], int, list[Unit]]] = [(begin(net), size, [])]
    for stage, group in groupby(units(net), key=lambda unit: unit.stage):
        found = [*group]
        size = found[0].output_size(size)
        shape = format_shape(found[0].out_channels, size)
        parts.append(([f"stage {stage + 1}", count(len(found), "unit"), shape], size, found))
    parts.append((end(net), 1, []))
    shapes, x, last = list[Shape](), 0.0, 0.0
    for caption, size, found in parts:
        bars = len(found) * bar or 6.0
        width = max(bars, *(_text_width(line, _SMALL) for line in caption))
        left, top = x + (width - bars) / 2, middle - size * scale / 2
        if last:
            shapes.append(Line(((last, middle), (left - 1, middle)), _THICK, arrow=True))
        if not found:
            shapes.append(Box(left + 3, middle, 6, max(4, size * scale)))
        for number, unit in enumerate(found):
            centre = left + (number + 0.5) * bar
            shapes.append(Box(centre, middle, 0.85 * bar, size * scale, fill=_STAGES[unit.stage], border=""))
            resizes = unit.stride > 1 or unit.in_channels != unit.out_channels
            marks = compress((True, False), (resizes, unit.shortcut_reads == "activated"))
            shapes += [Circle(centre, top - 5 - 7 * k, 2.2, filled=filled) for k, filled in enumerate(marks)]
        shapes += [Text(x + width / 2, below + 10 * k, line, _SMALL) for k, line in enumerate(caption)]
        last, x = left + bars + 1, x + width + _GAP
    y = below + 10 * max(len(caption) for caption, _, _ in parts) + 4
    for filled, text, left in ((True, "changes dimensions", 4), (False, "its pre-activation feeds both paths", 120)):
        if any(isinstance(shape, Circle) and shape.filled == filled for shape in shapes):
            shapes += [Circle(left, y, 2.2, filled=filled), Text(left + 6, y, text, _SMALL, "start")]
    return Drawing("", "", x - _GAP, y + 5, tuple(shapes))


def _signal(x: float, y: float, number: int) -> list[Shape]:
    """Return x with its index: l, l+1, ..., the x in the middle."""
    index = f"l+{number}" if number else "l"
    return [Text(x, y, "x", _FONT + 2, bold=True), Text(x + 4, y + 4, index, _SMALL, "start")]


def _box_width(text: str) -> float:
    return max(_text_width(text) + 8, 40.0) if text else 20.0


def _text_width(text: str, size: float = _FONT) -> float:
    """Return about how wide a text is, in a wide font such as DejaVu Sans."""
    return 0.6 * size * len(text)


def _titled(drawing: Drawing, lines: Sequence[str], bold: int = 1) -> Drawing:
    """Return a drawing below some lines of text, the first of them bold."""
    width = max(drawing.width, *(_text_width(line) * (1.1 if k < bold else 1) for k, line in enumerate(lines)))
    texts = [Text(width / 2, 6 + 11 * k, line, bold=k < bold) for k, line in enumerate(lines) if line]
    below = 11 * len(lines) + 8
    description = f"{', '.join(filter(None, (' '.join(lines[:bold]), *lines[bold:])))}. {drawing.description}"
    shapes = (*texts, *_moved(drawing.shapes, (width - drawing.width) / 2, below))
    return Drawing(" ".join(filter(None, lines)), description, width, drawing.height + below, shapes)


def _grid(rows: Sequence[Sequence[Drawing]], gap: float) -> Drawing:
    """Return drawings in rows and columns."""
    widths = [max(one.width for one in column) for column in zip_longest(*rows, fillvalue=_EMPTY)]
    shapes, y = list[Shape](), 0.0
    for row in rows:
        x = gap / 2
        for one, wide in zip(row, widths, strict=False):
            shapes += _moved(one.shapes, x + (wide - one.width) / 2, y)
            x += wide + gap
        y += max(one.height for one in row) + 2 * _GAP
    description = "\n".join(one.description for row in rows for one in row if one.description)
    return Drawing("Residual units", description, sum(widths) + gap * len(widths), y - 2 * _GAP, tuple(shapes))


def _moved(shapes: Iterable[Shape], dx: float, dy: float) -> tuple[Shape, ...]:
    return tuple(
        replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points))
        if isinstance(shape, Line)
        else replace(shape, x=shape.x + dx, y=shape.y + dy)
        for shape in shapes
    )


def as_svg(drawing: Drawing) -> str:
    """Return a drawing as an SVG element for a page of HTML, in the page's colour of text."""
    title, description = (escape(one_line(" ".join(text.split()))) for text in (drawing.title, drawing.description))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
        f' viewBox="0 0 {drawing.width:.2f} {drawing.height:.2f}" font-family="sans-serif" fill="currentColor"'
        f' stroke="none"><title>{title}</title><desc>{description}</desc>'
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
            parts.append(f'<text {where} font-size="{label.size:g}"{look}>{escape(one_line(label.text))}</text>')
    return "\n".join([*parts, "</svg>"])


def _texts(shape: Shape) -> Iterator[Text]:
    """Yield the text of a shape, if it has any."""
    if isinstance(shape, Text):
        yield shape
    elif isinstance(shape, Box | Circle) and shape.text:
        yield Text(shape.x, shape.y, shape.text, _FONT if isinstance(shape, Box) else _FONT + 2)


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def figure(drawing: Drawing) -> Figure:
    """Return a figure of matplotlib with a drawing in its own size."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context({}, after_reset=True):
        made = Figure(figsize=(drawing.width / 69, drawing.height / 69))
        draw(drawing, made.add_axes((0.02, 0.02, 0.96, 0.96)))
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
                look: dict[str, Any] = {"facecolor": (fill, 0.25 if text else 1) if fill else "none"}
                look |= {"edgecolor": "black" if border else "none", "linestyle": border or "solid"}
                look |= {"linewidth": 0.8 * scale, "snap": bool(border)}  # snapping makes hundreds of bars uneven
                axes.add_patch(patches.Rectangle((x - width / 2, y - height / 2), width, height, **look))
            case Circle(x, y, radius, _, filled):
                face = "black" if filled else "none"
                axes.add_patch(patches.Circle((x, y), radius, facecolor=face, edgecolor="black", linewidth=0.8 * scale))
            case Line(_, width, arrow):
                points = zip(*shape.shaft, strict=True)
                axes.plot(*points, color="black", linewidth=width * scale, solid_capstyle="butt")
                if arrow:
                    axes.add_patch(patches.Polygon(shape.head, facecolor="black", edgecolor="none"))
        for label in _texts(shape):
            font = {"fontsize": label.size * scale, "fontweight": "bold" if label.bold else "normal"}
            align = "left" if label.align == "start" else "center"
            y = label.y + _BASELINE * label.size
            axes.text(label.x, y, one_line(label.text), font, horizontalalignment=align, parse_math=False)
