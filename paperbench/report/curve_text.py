"""Training curves as text for terminals: two sparklines for each net."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from paperbench.errors import one_line
from paperbench.report.curves import Curve, CurvePanel, XAxis
from paperbench.report.grid import paragraph, terminal_width

BLOCKS, ASCII = ("▁▂▃▄▅▆▇█", "│"), ("_.-:=+*#", "|")
"""Eight levels, and the mark of a drop of the learning rate: for encodings that have them, and for others."""
_NUMBER_WIDTH = 8


def render(panels: Sequence[CurvePanel], notes: Sequence[str], x: XAxis, encoding: str = "utf-8") -> str:
    """Return the curves as text that fits the terminal.

    Args:
        notes: Texts above the panels.
        encoding: Of the file or terminal; without block characters, the lines are of ASCII characters.
    """
    blocks = "".join(BLOCKS)
    levels, drop = BLOCKS if blocks.encode(encoding, "replace").decode(encoding) == blocks else ASCII
    parts = ["\n".join(paragraph(one_line(note)) for note in notes)]
    parts += ["\n".join(_panel(panel, x, levels, drop)) for panel in panels]
    key = "Median of the runs. loss: training loss, on a log scale. error: test error in %."
    key += f" {drop}: the rate drops." * any(curve.drops for panel in panels for curve in panel.curves)
    return "\n\n".join([*parts, paragraph(key)]) + "\n"


def _panel(panel: CurvePanel, x: XAxis, levels: str, drop: str) -> Iterator[str]:
    low, high = map(math.log, panel.loss_limits)
    end = panel.extent(x)
    yield paragraph(f"{one_line(panel.title)}, 0 to {f'{end:,.0f}' if x == 'iterations' else f'{end:.4g}'} {x}")
    for curve, legend in zip(panel.curves, panel.legend, strict=True):
        yield paragraph(f"  {one_line(legend)}", "    ")
        last = end / curve.unit(x)
        yield _row("loss", curve, last, levels, drop, lambda loss: (math.log(loss or 1e-9) - low) / (high - low))
        yield _row("error", curve, last, levels, drop, lambda error: error / panel.max_error)


def _row(name: str, curve: Curve, end: float, levels: str, drop: str, height: Callable[[float], float]) -> str:
    """Return the first value, a sparkline and the last value.

    Args:
        end: The iteration at the right end of the line.
        height: Maps a value to 0 for the lowest level, 1 for the highest.
    """
    points = [(i, v) for i, v in curve.median("train_loss" if name == "loss" else "test_error") if math.isfinite(v)]
    drops = [at for at in curve.drops if at < end]
    width = terminal_width() - len("    error  ") - 2 * _NUMBER_WIDTH - len(drops)
    columns: dict[int, list[float]] = {}
    for iteration, value in points:
        columns.setdefault(min(width - 1, int(iteration * width / end)), []).append(value)
    marks = [" "] * width
    for i in range(min(columns, default=0), max(columns, default=-1) + 1):
        level = int(8 * height(statistics.median(columns[i]))) if i in columns else 0
        marks[i] = levels[min(7, max(0, level))] if i in columns else marks[i - 1]
    for at in reversed(drops):
        marks.insert(int(at * width / end), drop)
    first, last = (f"{value:.3g}" for _, value in (points[0], points[-1])) if points else ("-", "-")
    return f"    {name:<5} {first:>{_NUMBER_WIDTH - 1}} {''.join(marks)} {last}"
