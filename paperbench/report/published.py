"""A table before anything is run: published numbers, nets and recipes; in full also sources, notes and claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from paperbench.catalogue import DATASETS
from paperbench.report.grid import Grid, as_markdown, as_text, escape_markdown, paper_grid, paragraph
from paperbench.specs.cell import Cell
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import format_value
from paperbench.specs.table import Table

_MAX_CELLS_LISTED = 3
_NOT_IN_PROFILE = "not in this profile: made for other images"
_LONG_ADDS = (
    "`--long` adds sources and notes, numbers in circulation that differ, public re-implementations, the claims, "
    "and the sources of the recipes."
)


def describe(table: Table, profile_name: str, long: bool = False) -> str:
    """Describe a table and what its cells train in a profile.

    Args:
        long: Whether to add sources, notes, claims, public re-implementations and all settings of the recipes.
    """
    profile = table.profiles.named(profile_name)
    source = table.source
    parts = [
        paragraph(f"{source.table} of arXiv:{source.arxiv}: {table.experiment.title}") + f"\n{paragraph(source.paper)}",
        published_table(table),
        _statistic(table),
        *(_remarks(table) if long else ()),
        _nets(table, profile, profile_name, long),
        *_recipes(table, profile, long),
    ]
    if not long:
        parts.append(paragraph(_LONG_ADDS))
    return "\n\n".join(parts)


def published_table(table: Table, form: Literal["text", "markdown"] = "text") -> str:
    """Format the published numbers in the paper's layout."""
    grid = paper_grid(table, table.all_cells)
    footnotes = [f"{mark}: {text}" for mark, text in table.expected.footnotes.items()]
    if form == "markdown":
        return escape_markdown("\n\n".join([as_markdown(grid), *footnotes]))
    return "\n\n".join([as_text(grid), *map(paragraph, footnotes)])


def _statistic(table: Table) -> str:
    defaults = table.expected.defaults
    how = f"{defaults.statistic} of {defaults.n} runs" if defaults.n > 1 else "single runs"
    return paragraph(
        f"Published: {how}, unless noted. Tolerance: {defaults.tolerance:g} percentage points, unless noted."
    )


def _remarks(table: Table) -> Iterator[str]:
    about_cells: dict[str, list[str]] = {}
    for cell in table.all_cells:
        for text in _notes_of(table, cell):
            about_cells.setdefault(text, []).append(cell.id)
    notes = [f"{', '.join(cells)}: {text}" for text, cells in about_cells.items()]
    for row in table.expected.literature:
        if row.source or row.note:
            notes.append(f"{row.title}: {'; '.join(filter(None, (row.source, row.note)))}")
    yield from _listed("Notes", notes)
    disputed = [f"{d.cell or 'table'}: {d.circulates}; the paper: {d.paper}" for d in table.disputed]
    yield from _listed("In circulation, unlike the paper", disputed)
    if table.peers:
        peers = tuple((p.cell, f"{p.value:.2f}", p.source, p.note) for p in table.peers)
        grid = Grid(("cell", "error", "source", "remark"), peers, ("left", "right", "left", "left"))
        yield f"Public re-implementations:\n{as_text(grid)}"
    claims = [
        f"{claim.id}: {claim.says} ({claim.section})" + (f". {claim.note}" if claim.note else "")
        for claim in table.expected.claims
    ]
    yield from _listed("Claims", claims)


def _listed(title: str, texts: Iterable[str]) -> Iterator[str]:
    """Format a list under a title; nothing without texts."""
    lines = [paragraph(f"  {text}", "    ") for text in texts]
    if lines:
        yield "\n".join([f"{title}:", *lines])


def _notes_of(table: Table, cell: Cell) -> Iterator[str]:
    defaults, expected = table.expected.defaults, cell.expected
    if not cell.home.startswith(f"{table.id}/"):
        yield f"the same result as {cell.home}"
    if expected.source:
        yield f"from {expected.source}"
    if cell.published_runs != defaults.n:
        yield "of a single run" if cell.published_runs == 1 else f"median of {cell.published_runs} runs"
    if expected.std is not None:
        yield f"std {expected.std:.2f}, from {expected.std_source}"
    if cell.number is not None and cell.tolerance != defaults.tolerance:
        yield f"tolerance {cell.tolerance:g} percentage points"
    if cell.row.evaluation:
        yield f"tested on a {cell.row.evaluation}"
    if cell.row.on_request:
        yield "run only if its row is named (`--cells`)"
    if expected.note:
        yield expected.note


def _nets(table: Table, profile: Profile, profile_name: str, long: bool) -> str:
    precision = table.experiment.precision
    asked = f"; precision: {precision}" if precision else ""
    seeds = table.seeds_in(profile)
    heading = paragraph(f"Nets in profile {profile_name} ({profile.title}); seeds: {seeds}{asked}")
    if not long:
        rows = list(_short_nets(table, profile))
        return f"{heading}\n" + as_text(Grid(("cell", "net"), tuple(rows), ("left", "left")))
    all_rows = []
    for cell in table.all_cells:
        if not cell.is_in(profile):
            all_rows.append((cell.id, _NOT_IN_PROFILE, "", "", ""))
            continue
        for setting in cell.settings:
            net = cell.net_in(profile, setting)
            reference, dataset = str(cell.reference_in(profile, setting)), DATASETS[cell.dataset_in(profile)].title
            all_rows.append((cell.id, reference, str(net.depth), net.family, dataset))
    headers, alignment = ("cell", "net", "depth", "family", "data set"), ("left", "left", "right", "left", "left")
    return f"{heading}\n" + as_text(Grid(headers, tuple(all_rows), alignment))


def _short_nets(table: Table, profile: Profile) -> Iterator[tuple[str, str]]:
    """Return cell and net for each cell, or once for a row ("row/*") whose cells have the same net."""
    by_row: dict[str, dict[str, str]] = {}
    for cell in table.all_cells:
        nets = [str(cell.reference_in(profile, setting)) for setting in cell.settings] if cell.is_in(profile) else []
        text = nets[0] if nets else _NOT_IN_PROFILE
        by_row.setdefault(cell.row.id, {})[cell.id] = f"{text} to {cell.settings[-1].label}" if len(nets) > 1 else text
    for row, nets_of_row in by_row.items():
        if len(nets_of_row) > 1 and len(set(nets_of_row.values())) == 1:
            yield f"{row}/*", next(iter(nets_of_row.values()))
        else:
            yield from nets_of_row.items()


def _recipes(table: Table, profile: Profile, long: bool) -> Iterator[str]:
    by_recipe: dict[str, list[str]] = {}
    for cell in table.all_cells:
        if cell.is_in(profile):
            by_recipe.setdefault(cell.recipe, []).append(cell.id)
    for name, cells in by_recipe.items():
        recipe = table.recipe_in(profile, name)
        values = recipe.defining_values() | ({} if recipe.warm_up else {"warm_up": None})
        listed = ", ".join(cells) if long or len(cells) <= _MAX_CELLS_LISTED else f"{len(cells)} cells"
        whose = f" of {listed}" if len(by_recipe) > 1 else ""
        if long:
            title = paragraph(f"Recipe {recipe.recipe}{whose} ({recipe.source})")
            yield from _listed(title, [f"{key}: {format_value(value)}" for key, value in values.items()])
        else:
            settings = "; ".join(f"{key} {format_value(value)}" for key, value in values.items())
            yield paragraph(f"Recipe {recipe.recipe}{whose}: {settings}.", "  ")
