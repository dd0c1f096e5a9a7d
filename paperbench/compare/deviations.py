"""Where our runs differ from what the authors did, read off the records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paperbench.catalogue import DATASETS, Net
from paperbench.compare.verdicts import CellComparison
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Recipe, format_value
from paperbench.specs.table import Cell, Table

_Difference = tuple[str, str, str]
"""Topic, the paper's way and ours."""


@dataclass(frozen=True)
class Deviation:
    """One difference.

    Attributes:
        topic: What differs.
        paper: What the authors did; empty where the sources do not say.
        ours: What our runs did.
        cells: Ids of the cells whose shown runs did; all of them where this is empty.
    """

    topic: str
    paper: str
    ours: str
    cells: tuple[str, ...] = ()


def deviations(table: Table, profile: Profile, compared: Iterable[CellComparison]) -> list[Deviation]:
    """Those of the runs that are shown for any cell, each once."""
    paper = table.profiles.named("paper")
    found: dict[_Difference, dict[str, None]] = {}
    cells_with_runs = 0
    for comparison in compared:
        cell = comparison.cell
        shown = [(net.setting, net.shown) for net in comparison.nets if net.shown]
        records = [(record, group.conditions.data or record.data) for _, group in shown for record in group.records]
        if not records:
            continue
        cells_with_runs += 1
        recipe, printed = table.recipe_in(profile, cell.recipe), table.recipe_in(paper, cell.recipe)
        differences = [
            one for record, data in records for one in _of_record(record, data, recipe, printed, cell.dataset)
        ]
        differences += _by_profile(cell, paper, profile, recipe, printed)
        differences += [(_title(name), "", format_value(recipe.value_of(name))) for name in printed.silent]
        differences += [one for setting, _ in shown for one in _of_net(cell.net_in(profile, setting))]
        for one in differences:
            found.setdefault(one, {})[cell.id] = None
    return [Deviation(*key, cells=() if len(ids) == cells_with_runs else tuple(ids)) for key, ids in found.items()]


def _of_record(record: Record, data: DataFacts, recipe: Recipe, printed: Recipe, dataset: str) -> Iterable[_Difference]:
    """What a run did otherwise than the authors.

    Args:
        data: What is known of its pixels, be it from another record.
        recipe: What the record was trained by.
        printed: The same recipe in the paper's profile.
    """
    authors, precision = printed.authors, record.spec.precision
    yield "framework", authors.framework, f"PyTorch {record.sessions[-1].environment.torch}"
    if precision != authors.precision:
        yield "precision", authors.precision, precision
    if not data.canonical:
        yield "data", DATASETS[dataset].title, f"{data.name} ({data.origin})"
    group = recipe.batch_norm.group
    if group != authors.images_per_gpu:
        yield "batch-norm statistics in training", f"over {authors.images_per_gpu} images", f"over {group}"
    if record.is_mixed:
        yield "versions", "", "runs continued by other numerics or another torch"


_OPEN_IN_NETS = {
    "gate_init": "initial weights of gates",
    "shortcut_bn": "BN on convolution shortcuts",
    "inverted": "dropout scaled in training (inverted)",
    "shortcut_option": "option of shortcuts that change dimensions",
    "stride_in": "convolution with the stride in bottleneck units",
}


def _of_net(net: Net) -> Iterable[_Difference]:
    """What the paper leaves open about a net."""
    for name, title in _OPEN_IN_NETS.items():
        value = getattr(net, name)
        if value is not None and (name != "stride_in" or "bottleneck" in net.family):
            yield title, "", format_value(value)
        elif name == "shortcut_bn" and net.shortcut == "conv":
            yield title, "", "as projections of the placement"


def _by_profile(cell: Cell, paper: Profile, profile: Profile, recipe: Recipe, printed: Recipe) -> Iterable[_Difference]:
    """What a reduced profile changes; its data are listed with the records."""
    depth, reduced = cell.net_in(paper).depth, cell.net_in(profile).depth
    if depth != reduced:
        yield "depth", str(depth), str(reduced)
    theirs, ours = (dict(_flat(one.defining_values())) for one in (printed, recipe))
    for name in dict.fromkeys([*theirs, *ours]):
        values = format_value(theirs.get(name)), format_value(ours.get(name))
        if values[0] != values[1] and name != "batch_norm.group":  # listed with what the authors did
            yield _title(name), *values


def _flat(values: dict[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """Values by dotted names."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield f"{path}{key}", value


def _title(name: str) -> str:
    """A recipe's dotted name in words."""
    return name.replace("_", " ").replace(".", ", ")
