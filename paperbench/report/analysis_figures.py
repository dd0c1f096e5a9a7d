"""Analyses of nets as pictures by matplotlib: norms by unit, channels, singular values, paths."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from paperbench.analysis.record import Analysis
from paperbench.errors import PaperbenchError, one_line
from paperbench.report.analyses import Analyses, Group
from paperbench.report.figures import COLOURS, PAGE, STYLE, to_bytes

__all__ = ["draw", "to_bytes"]

NORMS = {
    "signal_norm": "signal, norm of x_l",
    "residual_norm": "residual, norm of F(x_l)",
    "gradient_norm": "gradient, norm of dE/dx_l",
    "direct_norm": "its part by shortcuts alone, norm",
}
ROW = 1.75
"""Height of a row of panels in inches."""


@dataclass(frozen=True)
class _Block:
    """A part of a figure with rows of panels and a title."""

    height: float
    draw: Callable[[SubFigure], None]


def draw(analyses: Analyses, minus: Analyses | None = None) -> Figure:
    """Draw norms by unit, and whatever else was measured. Nets that are too many for one panel are split.

    Args:
        minus: Analyses of a second net, whose channels are subtracted from those of the first.

    Raises:
        PaperbenchError: The two nets have different shapes, or are not two.
    """
    groups = Analyses([*analyses, *(minus or ())]).groups
    if minus is not None and len(groups) != 2:
        raise PaperbenchError("The difference is that of two nets. Name one net, and another one (`--minus NET`).")
    blocks = [_norms(groups[i : i + len(COLOURS)]) for i in range(0, len(groups), len(COLOURS))]
    with_channels = [group for group in groups if all(one.channels for one in group.analyses)]
    if with_channels:
        blocks.append(_channels(with_channels, is_difference=minus is not None))
    notes = textwrap.wrap(one_line(f"{analyses.conditions} {_key(groups)}"), 150, break_on_hyphens=False)
    heights = [block.height for block in blocks]
    with style.context([STYLE], after_reset=True):
        figure = Figure((PAGE, sum(heights) + 0.13 * len(notes)), layout="constrained")
        for part, block in zip(
            figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0], blocks, strict=True
        ):
            block.draw(part)
        figure.supxlabel("\n".join(notes), fontsize=6.5, color="0.3", x=0.01, ha="left", linespacing=1.3)
    return figure


def values_of(analysis: Analysis, column: str) -> np.ndarray:
    """Return a column of `Passes` for each unit, and for x_L where that has it; NaN for None."""
    last = {"signal_norm": analysis.output.norm}
    last |= dict.fromkeys(("gradient_norm", "direct_norm"), analysis.output_gradient)
    return np.array([*getattr(analysis.passes, column), *([last[column]] if column in last else [])], dtype=float)


def channels_of(group: Group) -> np.ndarray:
    """Return the deviation of each channel of x_l, (channels, units): median over seeds; NaN where x_l has fewer."""
    most = max(map(len, group.analyses[0].channels))
    seeds = [[[*unit, *[np.nan] * (most - len(unit))] for unit in one.channels] for one in group.analyses]
    median: np.ndarray = np.median(np.array(seeds, dtype=float), axis=0).T
    return median


def _key(groups: Sequence[Group]) -> str:
    key = "Vertical lines: a new stage begins."
    return f"Bold: median over the seeds; faint: each seed. {key}" if any(len(g.seeds) > 1 for g in groups) else key


def _norms(groups: Sequence[Group]) -> _Block:
    """Panels of norms by unit, with a line for each net."""
    names = [_wrapped(group.label) for group in groups]
    n_lines = sum(max(text.count("\n") + 1 for text in names[i : i + 2]) for i in range(0, len(names), 2))

    def draw_on(part: SubFigure) -> None:
        for axes, (column, title) in zip(part.subplots(2, 2).flat, NORMS.items(), strict=True):
            axes.set(title=title, yscale="log", xlabel="unit l")
            _draw_lines(axes, groups, column)
            _mark_stages(axes, groups)
        handles = [Line2D([], [], color=COLOURS[number]) for number, _ in enumerate(groups)]
        part.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)

    return _Block(2 * ROW + 0.14 * n_lines + 0.1, draw_on)


def _draw_lines(axes: Axes, groups: Sequence[Group], column: str) -> None:
    for number, group in enumerate(groups):
        seeds = np.array([values_of(one, column) for one in group.analyses])
        colour, units = COLOURS[number], np.arange(seeds.shape[1])
        for one, values in zip(group.analyses, seeds, strict=True):
            if len(seeds) > 1:
                gid = f"{column} of {group.label}, seed {one.seed}"
                axes.plot(units, values, color=colour, linewidth=0.5, alpha=0.35, gid=gid)
        axes.plot(units, np.median(seeds, axis=0), color=colour, gid=f"{column} of {group.label}")
    axes.set_xlim(0, max(len(group.analyses[0].stages) for group in groups))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _mark_stages(axes: Axes, groups: Sequence[Group]) -> None:
    borders = [tuple(_borders(group.analyses[0].stages)) for group in groups]
    for number, units in enumerate(borders):
        for unit in units if number == 0 or len(set(borders)) > 1 else ():
            colour = COLOURS[number] if len(set(borders)) > 1 else "0.75"
            axes.axvline(unit, color=colour, linewidth=0.6, alpha=0.5, zorder=0, gid="stage")


def _borders(stages: Sequence[int]) -> Iterator[int]:
    """Yield the first unit of each stage but the first."""
    return (unit for unit, (before, after) in enumerate(pairwise(stages), start=1) if before != after)


def _channels(groups: Sequence[Group], is_difference: bool) -> _Block:
    """Heat maps of the deviation of each channel of x_l, and of the difference of two nets.

    Raises:
        PaperbenchError: There are to be differences, and the nets have different shapes.
    """
    maps = {group.label: channels_of(group) for group in groups}
    if is_difference and len({np.isnan(one).tobytes() + bytes(str(one.shape), "ascii") for one in maps.values()}) > 1:
        raise PaperbenchError(f"{' and '.join(maps)} have different units or channels. Name two nets of one shape.")
    n_panels = len(maps) + is_difference
    n_rows = (n_panels + 1) // 2
    found = np.concatenate([one[one > 0] for one in maps.values()])

    def draw_on(part: SubFigure) -> None:
        shared = LogNorm(found.min(), found.max()) if found.size else None
        grid = part.subplots(n_rows, min(2, n_panels), squeeze=False)
        for axes in grid.flat[n_panels:]:
            axes.remove()
        for axes, group, (label, values) in zip(grid.flat, groups, maps.items(), strict=False):
            image = axes.imshow(values, norm=shared, cmap="cividis")
            _finish_map(axes, group, f"deviation of channels, {label}")
        part.colorbar(image, ax=list(grid.flat[: len(maps)]), shrink=0.9, label="")
        if is_difference:
            axes = grid.flat[len(maps)]
            first, second = maps.values()
            image = axes.imshow(first - second, norm=CenteredNorm(), cmap="RdBu_r")
            _finish_map(axes, groups[0], "their difference")
            part.colorbar(image, ax=axes, shrink=0.9)

    return _Block(n_rows * (ROW + 0.35), draw_on)


def _finish_map(axes: Axes, group: Group, title: str) -> None:
    axes.set(title=_wrapped(title), xlabel="unit l", ylabel="channel", aspect="auto", facecolor="0.9")
    axes.invert_yaxis()
    for unit in _borders(group.analyses[0].stages):
        axes.axvline(unit - 0.5, color="white", linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))


def _wrapped(text: str) -> str:
    return textwrap.fill(one_line(text)[:200], 48)
