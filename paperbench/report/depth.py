"""Test errors against depth: nets with the same data and recipe that differ in depth alone are one line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from paperbench.catalogue import DATASETS, FAMILIES, Net
from paperbench.compare.comparison import Comparison
from paperbench.compare.verdicts import NetComparison
from paperbench.errors import PaperbenchError, listing
from paperbench.report.curves import CurvePanel, curves_of, notes_on
from paperbench.report.grid import Grid, as_text, paragraph
from paperbench.specs.cell import Cell

_BASELINE = ("original", "identity")
_Trained = tuple[Cell, NetComparison, Net]


@dataclass(frozen=True)
class DepthPoint:
    """A net of a table, and its row in the CSV. Errors are in percent, infinite for "fail" and diverged runs.

    Attributes:
        panel: Its data set and recipe, and what else the nets compared have in common.
        net: What tells it from them, but for depth and kind of unit.
        kind: The kind of its units. Points of the same net and kind are a line.
        ours: The median of `runs`, the errors of our runs that count.
        published_gain, our_gain: The error of the net `gain_over`, of equal depth and kind, minus its own, in points.
    """

    panel: str
    net: str
    kind: str
    depth: int
    cell: str
    published: float | None
    ours: float | None
    runs: tuple[float, ...]
    gain_over: str
    published_gain: float | None = None
    our_gain: float | None = None


def points_of(comparison: Comparison) -> list[DepthPoint]:
    """Return the nets with a number, published or ours, whose data and recipe have nets of several depths."""
    profile = comparison.table.profiles.named(comparison.profile)
    if profile.depth:
        raise PaperbenchError(f"Profile {comparison.profile} sets the depth of all nets. Choose another (`--profile`).")
    panels: dict[tuple[str, ...], list[_Trained]] = defaultdict(list)
    for cell, net in [(compared.cell, net) for compared in comparison.cells for net in compared.nets]:
        common = (f"recipe {cell.recipe}", cell.row.evaluation or "", "top-5" * (cell.column.metric == "top5"))
        if cell.expected.value != "unprinted" or net.errors:
            panel = panels[DATASETS[cell.dataset].title, *common]
            panel.append((cell, net, cell.net_in(profile, net.setting)))
    several = {common: panel for common, panel in panels.items() if len({net.depth for *_, net in panel}) > 1}
    if not several:
        raise PaperbenchError(
            f"No two nets of {comparison.table.id} with the same data and recipe, and with a published number or a run "
            "that has ended, differ in depth. Leave `--x depth` out."
        )
    return [point for common, panel in several.items() for point in _points(common, panel)]


def _points(common: Sequence[str], panel: Sequence[_Trained]) -> Iterator[DepthPoint]:
    labels = set.intersection(*({*cell.row.labels.items()} for cell, *_ in panel))
    texts = [f"{name} {text}" for name, text in sorted(labels) if text not in common]
    title, names = ", ".join(filter(None, (*common, *texts))), _names(panel)
    units = [(net.placement, net.shortcut) for *_, net in panel]
    first = names[units.index(_BASELINE) if _BASELINE in units else 0]
    found: dict[tuple[str, str, int], DepthPoint] = {}
    for name, (cell, net, model) in zip(names, panel, strict=True):
        key = name, FAMILIES[model.family].unit, model.depth
        published = math.inf if cell.expected.value == "fail" else cell.number
        found[key] = DepthPoint(title, *key, cell.id, published, net.median, tuple(net.errors), first)
    for name, kind, depth in sorted(found, key=lambda key: (names.index(key[0]), *key[1:])):
        point, other = found[name, kind, depth], found.get((first, kind, depth))
        if other and name != first:
            gains = _minus(other.published, point.published), _minus(other.ours, point.ours)
            point = replace(point, published_gain=gains[0], our_gain=gains[1])
        yield point


def _minus(error: float | None, other: float | None) -> float | None:
    if error is None or other is None or math.isinf(error) or math.isinf(other):
        return None
    return round(error - other, 9)


def _names(panel: Sequence[_Trained]) -> list[str]:
    """Name nets by what they are but for depth and kind of unit: by rows, columns, or else by settings that differ."""
    nets = [asdict(net) for *_, net in panel]
    for net in nets:
        usual = net["shortcut_option"] in (None, FAMILIES[net["family"]].shortcut_option)
        net |= {"family": "", "depth": "", "shortcut_option": usual or net["shortcut_option"]}
    differing = [key for key in nets[0] if len({net[key] for net in nets}) > 1]
    settings = [", ".join(f"{key} {net[key]}" for key in differing).removeprefix("placement ") for net in nets]
    rows = [", ".join(filter(None, (cell.row.title, net.setting.label))) for cell, net, _ in panel]
    columns = [cell.column.title for cell, *_ in panel]
    ways = (w for w in (rows, columns) if len({*zip(settings, w, strict=True)}) == len({*settings}) == len({*w}))
    return next(ways, settings)


def notes_of(points: Sequence[DepthPoint], comparison: Comparison) -> list[str]:
    """Return what a reader of these points must know."""
    shown = {point.cell for point in points}
    curves = [curve for curve in curves_of(comparison, lambda _: ()) if curve.cell.id in shown]
    nothing = f"Published numbers of {comparison.table.cited()} alone; no run of ours has ended."
    notes = notes_on([CurvePanel("", tuple(curves), [])], comparison) if curves else [nothing]
    if others := [one.cell.id for one in comparison.cells if one.cell.id not in shown]:
        notes.append(f"Without a number, or with none of another depth to compare it with: {listing(others)}.")
    return [*notes, "Ours: median of the counted runs. Gain over a net: its error at equal depth minus the other's."]


def render(points: Sequence[DepthPoint], notes: Sequence[str]) -> str:
    """Return a table for each panel, as text that fits the terminal."""
    parts = ["\n".join(map(paragraph, notes))]
    names = ("net", "kind", "depth", "published", "ours", "runs", "published_gain", "our_gain")
    headers = [name.replace("_", " ") for name in names]
    for panel, over in dict.fromkeys((point.panel, point.gain_over) for point in points):
        rows = [[_text(getattr(p, name)) for name in names] for p in points if p.panel == panel]
        columns = [one for one in zip(headers, *rows, strict=True) if any(one[1:])]
        header, *lines = zip(*columns, strict=True)
        grid = Grid(header, tuple(lines), ("left", "left", *("right",) * (len(columns) - 2)))
        parts.append(f"{paragraph(f'{panel}; gain over {over}')}\n{as_text(grid)}")
    return "\n\n".join(parts) + "\n"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"{_text(min(value))}-{_text(max(value))} ({len(value)})" if value else ""
    if isinstance(value, float):
        return "fail" if math.isinf(value) else f"{value:.2f}"
    return "" if value is None else str(value)
