"""Test errors against depth: the nets of a row, or of a column, with equal data, recipe and kind of unit are a line."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paperbench.catalogue import DATASETS, FAMILIES, Net
from paperbench.compare.comparison import Comparison
from paperbench.errors import PaperbenchError, listing
from paperbench.report.curves import curves_of, notes_on
from paperbench.report.grid import Grid, as_text, paragraph
from paperbench.specs.cell import Cell


@dataclass(frozen=True)
class DepthPoint:
    """A net of a table, and its row in the CSV. Errors are in percent, infinite for "fail" and diverged runs.

    Attributes:
        panel: Its data set, and what tells its panel from the others.
        net: The title of its row or column without the depth. Points of the same net are a line.
        ours: The median of `runs`, the errors of our runs that count.
        published_gain, our_gain: The error of the original unit, of equal depth and kind, minus its own, in points.
    """

    panel: str
    net: str
    depth: int
    cell: str
    published: float | None
    ours: float | None
    runs: tuple[float, ...]
    published_gain: float | None = None
    our_gain: float | None = None


_Panels = dict[tuple[str, ...], list[tuple[DepthPoint, Cell, Net]]]


def points_of(comparison: Comparison) -> list[DepthPoint]:
    """Return the lines with a number, published or ours, of each panel that has numbers of several depths."""
    table, profile = comparison.table, comparison.table.profiles.named(comparison.profile)
    if profile.depth:
        raise PaperbenchError(f"Profile {comparison.profile} sets the depth of all nets. Choose another (`--profile`).")
    cells = [(table.cell(one.id), one.nets) for one in comparison.cells]
    nets = [
        (cell, ours, net)
        for cell, of_cell in cells
        for setting, ours in zip(cell.settings, of_cell, strict=True)
        if isinstance(net := cell.net_in(profile, setting), Net)
    ]
    has_kinds = len({FAMILIES[net.family].unit for *_, net in nets}) > 1
    panels: _Panels = defaultdict(list)
    for cell, ours, net in nets:
        panel = panels[cell.dataset_in(profile), cell.column.metric, cell.recipe, cell.row.evaluation or ""]
        title = (cell.column if table.experiment.panel_per == "row" else cell.row).title
        title = re.sub(rf"(ResNet-)?\b{net.depth}\b", "", title).strip(" ,")
        name = ", ".join(filter(None, (title, ours.setting, FAMILIES[net.family].unit * has_kinds)))
        if any((name, net.depth) == (point.net, point.depth) for point, *_ in panel):
            name = cell.id
        published = math.inf if cell.expected.value == "fail" else cell.number
        numbers = published, ours.median_or_inf, tuple(ours.errors)
        panel.append((DepthPoint("", name, net.depth, cell.id, *numbers), cell, net))
    drawn: _Panels = {}
    for key, panel in panels.items():
        numbered = [point for point, *_ in panel if point.published is not None or point.runs]
        if len({point.depth for point in numbered}) > 1:
            drawn[key] = [one for one in panel if one[0].net in {point.net for point in numbered}]
    if not drawn:
        raise PaperbenchError(
            f"No nets of {table.id} have numbers at two depths but equal data and recipe. Leave --x out."
        )
    titles = zip(_titles(drawn), drawn.values(), strict=True)
    return [point for title, panel in titles for point in _line_by_line(title, panel)]


def _titles(panels: _Panels) -> list[str]:
    """Name panels by data set and by labels that not all share; by recipe only if these do not tell them apart."""
    labels = [[{*cell.row.labels.items()} for _, cell, _ in panel] for panel in panels.values()]
    shared = [of_panel[0].intersection(*of_panel) for of_panel in labels]
    titles = []
    for (dataset, metric, *_), own in zip(panels, shared, strict=True):
        name = DATASETS[dataset].title.removeprefix("scikit-learn's ").partition(" (")[0]
        texts = [" ".join(label) for label in sorted(own - own.intersection(*shared)) if name not in label]
        titles.append(", ".join([name, *texts, *["top-5"] * (metric == "top5")]))
    if len({*titles}) < len(titles):
        titles = [", ".join(filter(None, (title, *key[2:]))) for title, key in zip(titles, panels, strict=True)]
    return titles


def _line_by_line(title: str, panel: Sequence[tuple[DepthPoint, Cell, Net]]) -> Iterator[DepthPoint]:
    """Yield the points of a panel with their gains."""
    names = [point.net for point, *_ in panel]
    units = {(net.placement, net.shortcut, net.family, net.depth): point for point, _, net in reversed(panel)}
    for point, _, net in sorted(panel, key=lambda one: (names.index(one[0].net), one[0].depth)):
        base = units.get(("original", "identity", net.family, net.depth), point)
        gains = _minus(base.published, point.published), _minus(base.ours, point.ours)
        published, ours = (None, None) if base is point else gains
        yield replace(point, panel=title, published_gain=published, our_gain=ours)


def _minus(error: float | None, other: float | None) -> float | None:
    difference = math.nan if error is None or other is None else error - other
    return round(difference, 9) if math.isfinite(difference) else None


def notes_of(points: Sequence[DepthPoint], comparison: Comparison) -> list[str]:
    """Return what a reader of these points must know."""
    shown = {point.cell for point in points}
    notes = notes_on([curve for curve in curves_of(comparison, lambda _: ()) if curve.cell.id in shown], comparison)
    nets = [(one, net.shown) for one in comparison.cells for net in one.nets]
    external = [cell.id for cell, group in nets if cell.id in shown and group and group.conditions.source]
    alone = [cell.id for cell, _ in nets if cell.id not in shown and cell.published.value != "unprinted"]
    for what, cells in (("Reported by others, not our runs", external), ("Not drawn, as of one depth alone", alone)):
        notes += [f"{what}: {listing(cells)}."] * bool(cells)
    return notes


def render(points: Sequence[DepthPoint], notes: Sequence[str]) -> str:
    """Return a table for each panel, as text that fits the terminal."""
    columns = ("net", "depth", "published", "ours", "runs", "published_gain", "our_gain")
    names = [name for name in columns if any(getattr(point, name) not in (None, ()) for point in points)]
    headers = tuple(name.replace("_", " ") for name in names)
    key = "Ours: median of the runs that count. Gain: error of the original unit at equal depth minus the net's own."
    parts = ["\n".join(map(paragraph, [*notes, key]))]
    for panel in dict.fromkeys(point.panel for point in points):
        rows = tuple(tuple(_text(getattr(p, name)) for name in names) for p in points if p.panel == panel)
        grid = Grid(headers, rows, ("left", *("right",) * (len(names) - 1)))
        parts.append(f"{paragraph(panel)}\n{as_text(grid)}")
    return "\n\n".join(parts) + "\n"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"{_text(min(value))}-{_text(max(value))} ({len(value)})" if value else ""
    if isinstance(value, float):
        return "fail" if math.isinf(value) else f"{value:.2f}"
    return "" if value is None else str(value)
