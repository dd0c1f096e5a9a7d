"""Training curves as pictures by matplotlib, as the paper prints them, in sizes that fit a paper's column."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter, NullLocator

from paperbench.errors import one_line
from paperbench.report.curves import MAX_LOSS, Curve, CurveMeasure, CurvePanel, RunCurve, XAxis
from paperbench.report.depth import DepthPoint
from paperbench.report.drawing import Drawing, draw

COLUMN, PAGE = 3.3, 6.9
"""Widths in inches of a column and of a page of a paper."""
COLOURS = ("#000000", "#bb5566", "#004488", "#ddaa33", "#44aa99")
"""Paul Tol's high-contrast colours, which the colour-blind and grey prints tell apart, and one more."""
MARKERS = ("", "o", "s", "^", "D")
N_MARKERS = 8
DASHES = (0, (3, 1.5))
STYLE: dict[str, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize"), 8),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "text.parse_math": False,  # texts of strangers
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "paperbench",
    "savefig.dpi": 150,
}


def draw_curves(
    panels: Sequence[CurvePanel], notes: Sequence[str] = (), x: XAxis = "iterations", units: Drawing | None = None
) -> Figure:
    """Draw training losses, dashed, and test errors, solid. Panels with many curves are split.

    Args:
        notes: Texts below the panels.
        units: What to draw at their left, as in the paper's Fig. 1.
    """
    panels = [part for panel in panels for part in panel.split(len(COLOURS))]
    columns = 1 if units else min(2, len(panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    left = COLUMN if units else 0.0
    width = left + COLUMN if columns == 1 else PAGE
    heights = [2.15 + 0.15 * max(map(_lines_beside, row)) for row in rows]
    with style.context([STYLE], after_reset=True):
        figure = figure_of(width, sum(heights), [*notes, _key(panels)], left)
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
        for i, row in enumerate(rows):
            for j, panel in enumerate(row):
                _draw_panel(figure.add_subplot(grid[i, j]), panel, x)
        if units:
            draw(units, figure.add_axes((0.01, 0.01, left / width - 0.04, 0.98)))
    return figure


def draw_depth(points: Sequence[DepthPoint], notes: Sequence[str] = ()) -> Figure:
    """Draw errors and, below, gains against depth, in panels for each data set and recipe.

    Args:
        notes: Texts below the panels.
    """
    panels, nets = (list(dict.fromkeys(getattr(point, name) for point in points)) for name in ("panel", "net"))
    looks: dict[str, dict[str, Any]] = {
        net: {"color": (*COLOURS, "#88ccee")[i % 6], "marker": "osD^vX"[(i + i // 6) % 6], "ms": 4}
        for i, net in enumerate(nets)
    }
    columns, rows = min(2, len(panels)), math.ceil(len(panels) / 2)
    key = ["Hollow, dashed: published."] * any(point.published is not None for point in points)
    key += ["Filled, solid: median of our runs; dots: each run."] * any(point.runs for point in points)
    key += ["At the top edge: failed, or diverged."] * any(math.inf in (p.published, *p.runs) for p in points)
    height = 3.4 * rows + 0.16 * sum(wrapped(net).count("\n") + 1 for net in nets[::columns])
    with style.context([STYLE], after_reset=True):
        figure = figure_of(PAGE if columns == 2 else COLUMN, height, [" ".join([*notes, *key])])
        grid = figure.add_gridspec(2 * rows, columns, height_ratios=[2, 1.3] * rows)
        for i, panel in enumerate(panels):
            errors = figure.add_subplot(grid[i // 2 * 2, i % 2])
            gains = figure.add_subplot(grid[i // 2 * 2 + 1, i % 2], sharex=errors)
            _draw_depths(errors, gains, [point for point in points if point.panel == panel], looks)
        handles = [Line2D([], [], **look) for look in looks.values()]
        figure.legend(handles, map(wrapped, nets), loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _draw_depths(errors: Axes, gains: Axes, points: Sequence[DepthPoint], looks: Mapping[str, dict[str, Any]]) -> None:
    finite = [e for point in points for e in (point.published, *point.runs) if e is not None and math.isfinite(e)]
    low, high = min(finite, default=0.0), max(finite, default=100.0)
    bottom, top = max(0.0, 1.2 * low - 0.2 * high), 1.1 * high - 0.1 * low + 0.1
    errors.set(title=wrapped(points[0].panel), xscale="log", ylabel="test error in %", ylim=(bottom, top))
    errors.tick_params(labelbottom=False)
    gains.set(xlabel="depth", ylabel="gain over original\nunit (points)")
    depths = sorted({point.depth for point in points})
    close = [False, *(one < 1.25 * other for other, one in pairwise(depths))]
    gains.set_xticks(depths, ["\n" * lower + str(depth) for depth, lower in zip(depths, close, strict=True)])
    gains.xaxis.set_minor_locator(NullLocator())
    gains.axhline(0, color="0.75", linewidth=0.6, zorder=0)
    for net, look in looks.items():
        found = [point for point in points if point.net == net]
        for name in ("published", "ours", "published_gain", "our_gain"):
            how = {**look, "ls": DASHES, "mfc": "white", "ms": 5} if name.startswith("published") else look
            values = [getattr(point, name) for point in found]
            ys = [math.nan if value is None else min(value, top) for value in values]  # a gap in the line
            if not all(map(math.isnan, ys)):  # an empty line would have no bounds for the layout
                axes = gains if name.endswith("gain") else errors
                axes.plot([point.depth for point in found], ys, clip_on=False, gid=f"{name} of {net}", **how)
        for point in [point for point in found if point.runs]:
            dots = {**look, "ls": "", "marker": ".", "alpha": 0.5, "gid": f"runs of {net}"}
            errors.plot([point.depth] * len(point.runs), [min(e, top) for e in point.runs], clip_on=False, **dots)
    if len(gains.lines) == 1:
        gains.set(yticks=(), ylabel="no original unit\nof equal depth")


def figure_of(width: float, height: float, notes: Sequence[str], left: float = 0.0) -> Figure:
    """Return a figure with notes below, and room at its left; sizes in inches, the height without the notes."""
    characters = round(20 * (width - left))
    lines = [line for one in notes for line in textwrap.wrap(one_line(one)[:1000], characters, break_on_hyphens=False)]
    figure = Figure((width, height + 0.13 * len(lines)))
    figure.set_layout_engine("constrained", rect=(left / width, 0, 1 - left / width, 1))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.3", x=left / width + 0.01, ha="left", linespacing=1.3)
    return figure


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return a picture as a file's contents, which are the same each time."""
    stream = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with style.context([STYLE], after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # in names of data sets
        figure.savefig(stream, format=form, metadata=dates.get(form))
    return stream.getvalue()


def _key(panels: Sequence[CurvePanel]) -> str:
    curves = [curve for panel in panels for curve in panel.curves]
    records = [run.record for curve in curves for run in curve.runs]
    key = "Dashed: training loss. Solid: test error."
    key += " Bold: median of the runs; faint: each run." * any(len(curve.runs) > 1 for curve in curves)
    key += " Cross: end of a diverged run." * any(record.status == "diverged" for record in records)
    key += " Circle: end of a prefix." * any(record.status == "partial" for record in records)
    reported = [(curve.reported, panel.max_error) for panel in panels for curve in panel.curves if curve.reported]
    is_marked = any(error <= highest for error, highest in reported)
    key += " Triangle: the reported error, with batch norm re-estimated." * is_marked
    errors_cut = any(error > highest for error, highest in reported) or any(
        value > panel.max_error for panel in panels for value in _values(panel, "test_error")
    )
    losses_cut = any(value > MAX_LOSS for panel in panels for value in _values(panel, "train_loss"))
    cut = ["test errors above the axis, as in the paper"] * errors_cut + [f"losses above {MAX_LOSS:g}"] * losses_cut
    if cut:
        key += f" Cut off: {' and '.join(cut)}."
    return key + " Vertical lines: the learning rate drops." * any(curve.drops for curve in curves)


def _values(panel: CurvePanel, measure: CurveMeasure) -> Iterator[float]:
    return (value for curve in panel.curves for run in curve.runs for _, value in run.points(measure))


def wrapped(text: str, characters: int = 48) -> str:
    """Break a title or a name in the legend so that it fits a column."""
    return textwrap.fill(one_line(text)[:200], characters)


def _lines_beside(panel: CurvePanel) -> int:
    """Return the number of lines of text above and below a panel."""
    return sum(wrapped(text).count("\n") + 1 for text in (panel.title, *panel.legend))


def _draw_panel(axes: Axes, panel: CurvePanel, x: XAxis) -> None:
    errors = axes.twinx()
    low, high = panel.loss_limits
    last = panel.extent(x)
    axes.set(title=wrapped(panel.title), xlim=(0, last), yscale="log", ylim=(low / 1.2, high * 1.2))
    is_long = x == "iterations" and last >= 20_000
    axes.set(ylabel="training loss (dashed)", xlabel=f"{x} (\N{MULTIPLICATION SIGN}10⁴)" if is_long else x)
    axes.xaxis.set_major_locator(MaxNLocator(7 if is_long else 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 10_000 if is_long else value:,g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(0.2, 0.5, 1.0) if high / low < 100 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    errors.set(ylabel="test error in % (solid)", ylim=(0, panel.max_error))
    errors.yaxis.set_major_locator(MultipleLocator(panel.max_error / 4))
    for drop in {drop * curve.unit(x) for curve in panel.curves for drop in curve.drops}:
        if drop < last:
            axes.axvline(drop, color="0.75", linewidth=0.6, zorder=0, gid="drop")
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, "train_loss", number, x)
        _draw_curve(errors, curve, "test_error", number, x)
        if curve.reported is not None and curve.reported <= panel.max_error:
            end = min(last, curve.iterations * curve.unit(x))
            (mark,) = errors.plot(end, curve.reported, "<", clip_on=False, zorder=5, gid=f"reported of {curve.name}")
            mark.set(markerfacecolor="white", markeredgecolor=COLOURS[number], markersize=4)
    handles = [Line2D([], [], color=COLOURS[number], marker=MARKERS[number]) for number, _ in enumerate(panel.curves)]
    legend = axes.legend(handles, map(wrapped, panel.legend), loc="upper center", bbox_to_anchor=(0.5, -0.24))
    legend.set(frame_on=False)


def _draw_curve(axes: Axes, curve: Curve, measure: CurveMeasure, number: int, x: XAxis) -> None:
    colour, dashes = COLOURS[number], DASHES if measure == "train_loss" else "solid"
    unit = curve.unit(x)
    for run in curve.runs if len(curve.runs) > 1 else ():
        gid = f"{measure} of {run.record.run}"
        axes.plot(*_line(run.points(measure), unit), color=colour, linestyle=dashes, linewidth=0.5, alpha=0.35, gid=gid)
    for run in curve.runs:
        if run.record.status != "finished":
            _mark_end(axes, run, measure, unit, colour)
    xs, ys = _line(curve.median(measure), unit)
    marks = markers(number, len(xs)) if measure == "test_error" else {}
    axes.plot(xs, ys, color=colour, linestyle=dashes, gid=f"{measure} of {curve.name}", **marks)


def markers(number: int, points: int) -> dict[str, Any]:
    """Return how to mark a line of so many points, at other points than lines of other numbers."""
    step = max(1, points // N_MARKERS)
    return {"marker": MARKERS[number], "markevery": (number * step // len(COLOURS), step)}


def _mark_end(axes: Axes, run: RunCurve, measure: CurveMeasure, unit: float, colour: str) -> None:
    """Mark where a run diverged, or where a prefix ends."""
    if points := [(i, value) for i, value in run.points(measure) if math.isfinite(value)]:
        low, high = axes.get_ylim()
        y = min(max(points[-1][1], low), high)
        marker: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": colour}
        if run.record.status == "diverged":
            marker = {"marker": "X", "mfc": colour, "mec": "white", "markersize": 6, "mew": 0.5}
        axes.plot([points[-1][0] * unit], [y], linestyle="none", clip_on=False, zorder=5, gid="end", **marker)


def _line(points: Sequence[tuple[int, float]], unit: float) -> tuple[list[float], list[float]]:
    return [iteration * unit for iteration, _ in points], [value for _, value in points]
