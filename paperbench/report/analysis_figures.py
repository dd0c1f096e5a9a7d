"""Analyses of nets as pictures by matplotlib: norms by unit, channels, singular values, paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from paperbench.analysis.record import Analysis
from paperbench.errors import PaperbenchError
from paperbench.report.analyses import SINGULAR, Analyses, AnalysisGroup, by_unit, singular
from paperbench.report.figures import COLOURS, DASHES, MARKERS, PAGE, STYLE, figure_of, markers, to_bytes, wrapped

__all__ = ["draw", "to_bytes"]

ROW = 1.75
"""Height of a row of panels in inches."""
_CHARACTERS = 42  # of a line of a title or of the legend
_LENGTH = "length in units"

Values = Sequence[float | None]
Block = tuple[float, Callable[[SubFigure], None]]
"""A part of a figure: its height in inches, and what draws it."""


@dataclass(frozen=True)
class _Panel:
    """A panel with a line for each net.

    Attributes:
        gid: Names the lines.
        values: Returns what is drawn of one analysis, from one unit, chain or length to the next.
        x: The horizontal axis; stages are marked in "unit l".
    """

    gid: str
    title: str
    values: Callable[[Analysis], Values]
    x: str = "unit l"
    scales: tuple[str, str] = ("linear", "log")


def draw(analyses: Analyses, minus: Analyses | None = None) -> Figure:
    """Draw norms by unit, and what else was measured. Nets that are too many for one panel are split.

    Args:
        minus: Analyses of a second net, whose channels are subtracted from those of the first.
    """
    everything = Analyses([*analyses, *(minus or ())])
    groups = everything.groups
    if minus is not None and not len(analyses.groups) == len(minus.groups) == len(groups) - 1 == 1:
        raise PaperbenchError("The difference is that of two nets. Name one net, and another one (`--minus NET`).")
    blocks = [_lines(groups[i : i + len(COLOURS)]) for i in range(0, len(groups), len(COLOURS))]
    if maps := [(group, channels_of(group)) for group in groups if group.analyses[0].channels]:
        blocks.append(_channels(maps))
    if minus is not None:
        blocks.append(_difference(*maps))
    notes = [everything.conditions[:900], "Vertical lines: a new stage begins."]
    notes += ["Bold: median; faint: each seed."] if any(len(group.analyses) > 1 for group in groups) else []
    notes += ["Dashed: error of the whole net."] if any(one.left_out for one in everything) else []
    heights = [height for height, _ in blocks]
    with style.context([STYLE], after_reset=True):
        figure = figure_of(PAGE, sum(heights), [" ".join(notes)])
        parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, (_, draw_on) in zip(parts, blocks, strict=True):
            draw_on(part)
    return figure


def _panels(groups: Sequence[AnalysisGroup]) -> Iterator[_Panel]:
    """Yield the panels for what was measured in any of some nets."""
    for column, title in (
        ("signal_norm", "signal, norm of x_l"),
        ("residual_norm", "residual, norm of F(x_l)"),
        ("gradient_norm", "gradient, norm of dE/dx_l"),
        ("direct_norm", "its part by shortcuts alone, norm"),
    ):
        yield _Panel(column, title, partial(by_unit, column=column))
    measured = [one for group in groups for one in group.analyses]
    for name, title in SINGULAR:
        units, chains = (partial(_of_spectra, of=of, name=name) for of in ("units", "chains"))
        if any(map(_has_numbers, map(units, measured))):
            yield _Panel(f"{name} of units", f"units: {title}", units)
        if any(map(_has_numbers, map(chains, measured))):
            yield _Panel(f"{name} of chains", f"chains up to x_L: {title}", chains, _LENGTH, ("log", "log"))
    for name, scale in (("norm", "log"), ("share", "linear")) if any(one.paths for one in measured) else ():
        parts = partial(_of, part="paths", name=name)
        yield _Panel(f"path {name}s", f"gradient by path length, {name}", parts, "path length", ("linear", scale))
    if any(one.left_out for one in measured):
        without = partial(_of, part="left_out", name="without")
        yield _Panel("left out", "error in % without unit l", without, scales=("linear", "linear"))


def _has_numbers(values: Values) -> bool:
    return any(value is not None and np.isfinite(value) for value in values)


def _of_spectra(one: Analysis, of: Literal["units", "chains"], name: str) -> Values:
    return [singular(spectrum, name) for spectrum in getattr(one.jacobians, of)] if one.jacobians else ()


def _of(one: Analysis, part: Literal["paths", "left_out"], name: str) -> Values:
    """Return values of a part of an analysis by name; none if it was not measured."""
    values: Values = getattr(getattr(one, part), name, ())
    return values


def _lines(groups: Sequence[AnalysisGroup]) -> Block:
    """Return panels with a line for each net, and their legend."""
    panels = list(_panels(groups))
    names = [wrapped(group.label, _CHARACTERS) for group in groups]
    n_rows = (len(panels) + 1) // 2
    n_lines = sum(max(text.count("\n") + 1 for text in names[i : i + 2]) for i in range(0, len(names), 2))

    def draw_on(part: SubFigure) -> None:
        grid = part.subplots(n_rows, 2).flat
        for axes in grid[len(panels) :]:
            axes.remove()
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel, groups)
        handles = [Line2D([], [], color=COLOURS[n], marker=MARKERS[n]) for n, _ in enumerate(groups)]
        part.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)

    return (n_rows * ROW + 0.14 * n_lines + 0.1, draw_on)


def _draw_panel(axes: Axes, panel: _Panel, groups: Sequence[AnalysisGroup]) -> None:
    for number, group in enumerate(groups):
        found = [panel.values(one) for one in group.analyses]
        xs: Sequence[float] = range(max(map(len, found)))
        if panel.x == _LENGTH:
            chains = max((one.jacobians.chains for one in group.analyses if one.jacobians), key=len, default=())
            xs = [chain.last - chain.first + 1 for chain in chains]
        seeds = np.array([[*ys, *[None] * (len(xs) - len(ys))] for ys in found], dtype=float)
        colour, gid = COLOURS[number], f"{panel.gid} of {group.label}"
        for one, ys in zip(group.analyses, seeds, strict=True):
            if len(seeds) > 1:
                axes.plot(xs, ys, color=colour, linewidth=0.5, alpha=0.35, gid=f"{gid}, seed {one.seed}")
        median = np.median(seeds, axis=0)  # none where a seed has no value
        axes.plot(xs, median, color=colour, gid=gid, **markers(number, len(xs)))
        if wholes := [one.left_out.whole for one in group.analyses if one.left_out and panel.gid == "left out"]:
            axes.axhline(float(np.median(wholes)), color=colour, linestyle=DASHES, linewidth=0.8, gid=f"whole {gid}")
    x_scale, y_scale = panel.scales
    y_scale = y_scale if np.isfinite(axes.dataLim.minposy) else "linear"  # all is zero
    axes.set(title=panel.title, xlabel=panel.x, xscale=x_scale, yscale=y_scale)
    if panel.x == "unit l":
        _mark_stages(axes, groups)
        axes.set_xlim(0, max(len(group.stages) for group in groups))
    for axis, scale in ((axes.xaxis, x_scale), (axes.yaxis, y_scale)):
        if scale == "log":
            low, high = sorted(axis.get_view_interval())
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=7))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(6, integer=axis is axes.xaxis))


def _mark_stages(axes: Axes, groups: Sequence[AnalysisGroup]) -> None:
    """Mark where stages begin, in a net's colour if nets differ."""
    borders = [tuple(group.borders) for group in groups]
    is_shared = len(set(borders)) == 1
    for number, units in enumerate(borders[:1] if is_shared else borders):
        for unit in units:
            colour = "0.75" if is_shared else COLOURS[number]
            axes.axvline(unit, color=colour, linewidth=0.5, alpha=0.6, zorder=0, gid="stage")


def channels_of(group: AnalysisGroup) -> np.ndarray:
    """Return the deviation of each channel of x_l, (channels, units): median over seeds; NaN where x_l has fewer."""
    most = max(map(len, group.analyses[0].channels))
    seeds = [[[*unit, *[np.nan] * (most - len(unit))] for unit in one.channels] for one in group.analyses]
    median: np.ndarray = np.median(np.array(seeds, dtype=float), axis=0).T
    return median


def _channels(maps: Sequence[tuple[AnalysisGroup, np.ndarray]]) -> Block:
    """Return a heat map for each net, of the deviation of each channel of x_l."""
    n_rows = (len(maps) + 1) // 2
    found = np.concatenate([values[values > 0] for _, values in maps])
    limits = np.percentile(found, (2, 98)) if found.size else (0.1, 1)

    def draw_on(part: SubFigure) -> None:
        grid = part.subplots(n_rows, min(2, len(maps)), squeeze=False).flat
        for axes in grid[len(maps) :]:
            axes.remove()
        for axes, (group, values) in zip(grid, maps, strict=False):
            image = _draw_map(axes, group, values, LogNorm(*limits), "cividis", f"channels, {group.label}")
        panels, height = list(grid[: len(maps)]), 0.12 / n_rows
        bar = part.colorbar(image, ax=panels, location="bottom", shrink=0.5, aspect=50, extend="both", fraction=height)
        bar.set_label("standard deviation of a channel of x_l")
        bar.locator, bar.minorformatter = LogLocator(subs=(1.0, 2.0, 5.0)), NullFormatter()
        bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")

    return (n_rows * (ROW + 0.25) + 0.4, draw_on)


def _difference(of: tuple[AnalysisGroup, np.ndarray], minus: tuple[AnalysisGroup, np.ndarray]) -> Block:
    """Return the heat map of the difference of two nets."""
    (group, values), (other, subtracted) = of, minus
    if values.shape != subtracted.shape or (np.isnan(values) != np.isnan(subtracted)).any():
        both = f"{group.label} and {other.label}"
        raise PaperbenchError(f"{both} have different units or channels. Name two nets of one shape.")

    def draw_on(part: SubFigure) -> None:
        axes, title = part.subplots(), f"channels, {group.label} minus {other.label}"
        image = _draw_map(axes, group, values - subtracted, CenteredNorm(), "RdBu_r", title)
        part.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=50, label="difference of the deviations")

    return (ROW + 0.65, draw_on)


def _draw_map(
    axes: Axes, group: AnalysisGroup, values: np.ndarray, norm: Normalize, colours: str, title: str
) -> AxesImage:
    image = axes.imshow(values, norm=norm, cmap=colours, aspect="auto", origin="lower", interpolation="nearest")
    axes.set(title=wrapped(title, _CHARACTERS), xlabel="unit l", ylabel="channel", facecolor="0.9")
    for unit in group.borders:
        axes.axvline(unit - 0.5, color="white", linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    return image
