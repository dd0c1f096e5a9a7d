"""A table as text before anything is run: published numbers, provenance, recipe, nets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tabulate import tabulate

from paperbench.catalogue import DATASETS
from paperbench.specs.table import Cell, Table


def describe(table: Table, profile_name: str) -> str:
    """Everything that is known of a table in a profile."""
    source = table.expected.source
    parts = [
        f"{source.table} of arXiv:{source.arxiv}: {table.experiment.title}\n{source.paper}",
        _published(table),
        *_remarks(table),
        _nets(table, profile_name),
        _recipe(table, profile_name),
    ]
    return "\n\n".join(parts)


def _published(table: Table) -> str:
    columns = table.experiment.columns
    by_id = {cell.id: cell for cell in table.cells()}
    rows = []
    for row in table.experiment.rows:
        cells = [by_id.get(f"{row.id}/{column.id}") for column in columns]
        rows.append([row.title, row.figure, *(_value(cell) for cell in cells)])
    headers = ["case", "Fig.", *(column.title for column in columns)]
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", *("right" for _ in columns)))


def _value(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.expected.value == "fail":
        return "fail"
    spread = f" (std {cell.expected.std:.2f})" if cell.expected.std is not None else ""
    return f"{cell.expected.value:.2f}{spread}"


def _remarks(table: Table) -> Iterator[str]:
    defaults = table.expected.defaults
    yield (
        f"Published: {defaults.statistic} of {defaults.n} runs. "
        f"Medians within {defaults.tolerance} percentage points count as the same."
    )
    notes = []
    for cell in table.cells():
        if cell.expected.std_source:
            notes.append(f"  {cell.id}: std from {cell.expected.std_source}")
        if cell.tolerance != defaults.tolerance:
            notes.append(f"  {cell.id}: tolerance {cell.tolerance} percentage points")
        if cell.expected.note:
            notes.append(f"  {cell.id}: {cell.expected.note}")
    if notes:
        yield "\n".join(["Notes:", *notes])
    if table.expected.disputed:
        disputed = [f"  {d.cell or 'table'}: {d.circulates}; the paper: {d.paper}" for d in table.expected.disputed]
        yield "\n".join(["Found elsewhere, and what the paper has:", *disputed])
    if table.expected.peers:
        peers = [(p.cell, f"{p.value:.2f}", p.source, p.note) for p in table.expected.peers]
        headers, alignment = ["cell", "error", "source", "remark"], ("left", "right", "left", "left")
        yield "Public re-implementations:\n" + tabulate(peers, headers, disable_numparse=True, colalign=alignment)


def _nets(table: Table, profile_name: str) -> str:
    profile = table.profiles.named(profile_name)
    rows = []
    for cell in table.cells():
        net = cell.net_in(profile)
        rows.append(
            (cell.id, str(cell.reference_in(profile)), net.depth, net.family, DATASETS[cell.dataset_in(profile)].title)
        )
    heading = f"Nets in profile {profile_name} ({profile.title}); seeds: {table.seeds_in(profile)}\n"
    return heading + tabulate(rows, ["cell", "net", "depth", "family", "data set"])


def _recipe(table: Table, profile_name: str) -> str:
    recipe = table.recipe_in(table.profiles.named(profile_name))
    values = [f"  {key}: {_plain(value)}" for key, value in recipe.defining_values().items()]
    return "\n".join([f"Recipe {recipe.recipe} ({recipe.source}):", *values])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " and ".join(_plain(item) for item in value) or "none"
    return "none" if value is None else str(value)
