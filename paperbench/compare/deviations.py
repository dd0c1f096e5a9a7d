"""Deviations of our runs from the authors' experiment, read from the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paperbench.catalogue import DATASETS, AnyNet, OwnNet
from paperbench.compare.verdicts import CellFacts
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.cell import Cell
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Recipe, format_value
from paperbench.specs.table import Table

_Difference = tuple[str, str, str]
"""Topic, the paper's choice, our choice."""


@dataclass(frozen=True)
class Deviation:
    """One deviation.

    Attributes:
        paper: The authors' choice; empty if the sources do not give it.
        ours: Our runs' choice.
        cells: Ids of the cells with it.
    """

    topic: str
    paper: str
    ours: str
    cells: tuple[str, ...] = ()


def find_deviations(
    table: Table, profile: Profile, compared: Iterable[CellFacts], records: Mapping[str, Record]
) -> list[Deviation]:
    """Return the deviations of the shown runs of all cells, each once; `records` are by the run's id."""
    paper = table.profiles.named("paper")
    found: dict[_Difference, dict[str, None]] = {}
    for facts in compared:
        cell = table.cell(facts.id)
        shown = [(setting, net.shown) for setting, net in zip(cell.settings, facts.nets, strict=True) if net.shown]
        runs = [(records[run], group.conditions.data or records[run].data) for _, group in shown for run in group.ids]
        if not runs:
            continue
        recipe, printed = table.recipe_in(profile, cell.recipe), table.recipe_in(paper, cell.recipe)
        differences = [one for record, data in runs for one in _of_record(record, data, recipe, printed, cell.dataset)]
        differences += _by_profile(cell, paper, profile, recipe, printed)
        theirs, ours = (str(table.evaluation_in(one, cell)) for one in (paper, profile))
        differences += [("tested on", theirs, ours)] if theirs != ours else []
        values = recipe.values_by_name()
        differences += [(_title(name), "", format_value(values[name])) for name in printed.silent]
        differences += [one for setting, _ in shown for one in _of_net(cell.net_in(profile, setting))]
        for one in differences:
            found.setdefault(one, {})[cell.id] = None
    return [Deviation(*key, cells=tuple(ids)) for key, ids in found.items()]


def _of_record(record: Record, data: DataFacts, recipe: Recipe, printed: Recipe, dataset: str) -> Iterable[_Difference]:
    """Yield the deviations of a run.

    Args:
        data: The facts known about its pixels, possibly from another record.
        recipe: The run's recipe.
        printed: The same recipe in the paper's profile.
    """
    authors, precision, group = printed.authors, record.spec.precision, recipe.batch_norm.group
    if authors:
        yield "framework", authors.framework, f"PyTorch {record.sessions[-1].environment.torch}"
    if authors and precision != authors.precision:
        yield "precision", authors.precision, precision
    if not data.canonical:
        origin = "images unverified" if data.unverified else data.origin
        yield "data", DATASETS[dataset].title, f"{data.name} ({origin})"
    if authors and group != authors.images_per_gpu:
        yield "batch-norm statistics in training", f"over {authors.images_per_gpu} images", f"over {group}"
    if authors and authors.weight_decay_on and (recipe.weight_decay_on or "all") != authors.weight_decay_on:
        yield "weight decay on", authors.weight_decay_on, recipe.weight_decay_on or "all"


_UNSPECIFIED_IN_NETS = {
    "gate_init": "gate weight initialisation",
    "shortcut_bn": "BN on convolution shortcuts",
    "inverted": "inverted dropout (scaled in training)",
    "shortcut_option": "shortcut option where dimensions change",
    "stride_in": "strided convolution in bottleneck units",
}


def _of_net(net: AnyNet) -> Iterable[_Difference]:
    """Yield our choices about a net that the paper does not specify, and dropout that its nets do not have."""
    if isinstance(net, OwnNet):
        return
    for name, title in _UNSPECIFIED_IN_NETS.items():
        value = getattr(net, name)
        if value is not None and (name != "stride_in" or "bottleneck" in net.family):
            yield title, "", format_value(value)
        elif name == "shortcut_bn" and net.shortcut == "conv":
            yield title, "", "same as the placement's projections"
    if net.residual_dropout:
        yield "dropout in residual branches", "none", format_value(net.residual_dropout)


def _by_profile(cell: Cell, paper: Profile, profile: Profile, recipe: Recipe, printed: Recipe) -> Iterable[_Difference]:
    """Yield the changes of a reduced profile, except data, which `_of_record` covers."""
    depth, reduced = cell.net_in(paper).depth, cell.net_in(profile).depth
    if depth != reduced:
        yield "depth", str(depth), str(reduced)
    theirs, ours = (
        {name: value for name, value in one.values_by_name().items() if not isinstance(value, dict)}
        for one in (printed, recipe)
    )
    for name in dict.fromkeys([*theirs, *ours]):
        if theirs.get(name) != ours.get(name) and name != "batch_norm.group":  # in _of_record
            yield _title(name), format_value(theirs.get(name)), format_value(ours.get(name))


def _title(name: str) -> str:
    """Return a recipe's dotted name in words."""
    return name.replace("_", " ").replace(".", ", ")
