"""Where our runs differ from what the authors did, read off the records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paperbench.catalogue import DATASETS
from paperbench.compare.verdicts import CellComparison
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Recipe, in_words
from paperbench.specs.table import Cell, Table


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
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    shown: dict[str, None] = {}
    for comparison in compared:
        cell = comparison.cell
        groups = [net.shown for net in comparison.nets if net.shown]
        records = [(record, group.conditions.data or record.data) for group in groups for record in group.records]
        if not records:
            continue
        shown[cell.id] = None
        recipe = table.recipe_in(profile, cell.recipe)
        printed = table.recipe_in(paper, cell.recipe)
        decided = [(_title(name), "", in_words(recipe.value_of(name))) for name in printed.silent]
        reduced = _by_profile(cell, paper, profile, recipe, printed)
        of_records = {one: None for record, data in records for one in _of(record, data, recipe, printed, cell.dataset)}
        for one in (*of_records, *reduced, *decided):
            found.setdefault(one, {})[cell.id] = None
    return [Deviation(*key, cells=() if len(cells) == len(shown) else tuple(cells)) for key, cells in found.items()]


def _of(
    record: Record, data: DataFacts, recipe: Recipe, printed: Recipe, dataset: str
) -> Iterable[tuple[str, str, str]]:
    """Topic, the paper's way and ours.

    Args:
        data: What is known of its pixels, be it from another record.
        recipe: What the record was trained by.
        printed: The same recipe in the paper's profile.
    """
    authors, spec = printed.authors, record.spec
    yield "framework", authors.framework, f"PyTorch {record.environment.torch}"
    if spec.precision != authors.precision:
        yield "precision", authors.precision, spec.precision
    if not data.canonical:
        yield "data", DATASETS[dataset].title, f"{data.name} ({data.origin})"
    group = recipe.batch_norm.group
    if group != authors.images_per_gpu:
        yield "batch-norm statistics in training", f"over {authors.images_per_gpu} images", f"over {group}"
    if record.is_mixed:
        yield "versions", "", "runs continued by other numerics or another torch"


def _by_profile(
    cell: Cell, paper: Profile, profile: Profile, recipe: Recipe, printed: Recipe
) -> Iterable[tuple[str, str, str]]:
    """What a reduced profile changes. Its data are told with the records."""
    depth, ours = cell.net_in(paper).depth, cell.net_in(profile).depth
    if depth != ours:
        yield "depth", str(depth), str(ours)
    for name in ("batch_size", "iterations", "learning_rate", "warm_up", "drops", "augmentation"):
        values = in_words(printed.value_of(name)), in_words(recipe.value_of(name))
        if values[0] != values[1]:
            yield _title(name), *values


def _title(name: str) -> str:
    """A recipe's dotted name in words."""
    return name.replace("_", " ").replace(".", ", ")
