"""A table before anything is run: published numbers, nets and recipes; in full also sources, notes and claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from paperbench.architecture import parameters
from paperbench.catalogue import DATASETS, Net
from paperbench.errors import one_line
from paperbench.report.grid import NOTHING, Grid, as_markdown, as_text, escape_markdown, paper_grid, paragraph
from paperbench.specs.cell import Cell
from paperbench.specs.expected import Expected, ExpectedCell
from paperbench.specs.experiment import Experiment, Setting
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Recipe, format_value
from paperbench.specs.table import Table, load_profiles, read_tables
from paperbench.typed import Count, Id, Line, Natural, typed

_MAX_DIFFERING = 4
"""Maximum number of settings in which a recipe is described as a variant of another."""


@typed
class ListedTable:
    """A table in a list, with the numbers of its cells that run by default, and only on request."""

    table: Id
    title: Line
    cells: Natural
    on_request: Natural
    seeds: Count


@typed
class TableList:
    """The tables and the titles of the profiles in a directory with experiments/.

    Attributes:
        left_out: What is wrong with each table that cannot be read, by its id.
    """

    schema: Literal[1]
    tables: tuple[ListedTable, ...]
    profiles: Mapping[str, str]
    left_out: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> TableList:
        wrong: dict[str, str] = {}
        tables = []
        for one in (table.experiment for table in read_tables(root, wrong.__setitem__)):
            on_request = sum(len(row.cells) for row in one.rows if row.on_request)
            cells = sum(len(row.cells) for row in one.rows) - on_request
            tables.append(ListedTable(one.table, one.title, cells, on_request, one.seeds))
        profiles = {name: profile.title for name, profile in load_profiles(root).profiles.items()}
        return cls(1, tuple(tables), profiles, {one_line(name): one_line(why) for name, why in wrong.items()})


def render_list(found: TableList) -> str:
    """Format a list of tables and profiles; tables that cannot be read are among the others."""
    rows = [(name, NOTHING, NOTHING, f"cannot be read: {why}") for name, why in found.left_out.items()]
    for one in found.tables:
        cells = f"{one.cells} + {one.on_request} on request" if one.on_request else str(one.cells)
        rows.append((one.table, cells, str(one.seeds), one.title))
    headers = ("table", "cells", "runs per cell", "title")
    tables = as_text(Grid(headers, tuple(sorted(rows)), ("left", "left", "right", "left")))
    return f"{tables}\n\n{as_text(Grid(('profile', 'title'), tuple(found.profiles.items()), ('left', 'left')))}"


@typed
class ShownNet:
    """A net of a cell in a profile.

    Attributes:
        setting: The value of the swept argument; empty in a cell with a single net.
        recipe: A key of `recipes`.
        parameters: None for a net of a user's function, which is not built here.
    """

    cell: Line
    setting: Line
    net: str
    depth: int | None
    family: str
    dataset: Line
    recipe: Line
    parameters: Count | None


@typed
class ShownTable:
    """A table before anything is run.

    Attributes:
        experiment, expected: Its files. Results that other tables print are in `published`, too.
        published: The published result of each cell.
        seeds, nets, recipes: What the profile trains.
    """

    schema: Literal[1]
    profile: Line
    experiment: Experiment
    expected: Expected
    published: Mapping[str, ExpectedCell]
    seeds: Count
    nets: tuple[ShownNet, ...]
    recipes: Mapping[str, Recipe]

    @classmethod
    def of(cls, table: Table, profile_name: str) -> ShownTable:
        profile = table.profile(profile_name)
        return cls(
            schema=1,
            profile=profile_name,
            experiment=table.experiment,
            expected=table.expected,
            published={cell.id: cell.published for cell in table.all_cells},
            seeds=table.seeds_in(profile),
            nets=tuple(_shown(cell, one, profile) for cell in table.all_cells for one in cell.settings),
            recipes={cell.recipe: table.recipe_in(profile, cell.recipe) for cell in table.all_cells},
        )


def _shown(cell: Cell, setting: Setting, profile: Profile) -> ShownNet:
    net, reference = cell.net_in(profile, setting), str(cell.reference_in(profile, setting))
    of_net = cell.dataset_in(profile), cell.recipe, parameters(net) if isinstance(net, Net) else None
    return ShownNet(cell.id, setting.label, reference, net.depth, net.family, *of_net)


def describe(table: Table, profile_name: str, long: bool = False) -> str:
    """Describe a table and what its cells train in a profile; if `long`, with sources, notes and claims."""
    shown, profile = ShownTable.of(table, profile_name), table.profiles.named(profile_name)
    defaults, paper = table.defaults, table.source.paper
    how = f"{defaults.statistic} of {defaults.n} runs" if defaults.n > 1 else "single runs"
    usual, cells = (defaults.n, defaults.tolerance), table.all_cells
    has_exceptions = any((c.published_runs, c.tolerance) != usual for c in cells if c.number is not None)
    unless = f" Exceptions: {'see the notes' if long else '`--long`'}." if has_exceptions else ""
    missing = " -: no number is published." if any(c.expected.value == "unprinted" for c in cells) else ""
    if table.source.table is None:
        paper = f"A table of one's own{f', after {paper}' if paper else ''}"
    published = f"Published: {how}. Tolerance: {_points(defaults.tolerance)}.{unless}{missing}"
    parts = [
        paragraph(f"{table.cited()}: {table.experiment.title}") + (f"\n{paragraph(paper)}" if paper else ""),
        published_table(table),
        paragraph(published if table.has_numbers else "No number is published: the runs are reported, not judged."),
        *(_remarks(table) if long else ()),
        _nets(shown, profile, long),
        *_recipes(shown, long),
    ]
    if not long:
        parts.append(paragraph("`--long` adds sources, notes, differing numbers, re-implementations and claims."))
    return "\n\n".join(parts)


def published_table(table: Table, form: Literal["text", "markdown"] = "text") -> str:
    """Format the published numbers in the paper's layout."""
    grid = paper_grid(table, table.all_cells)
    footnotes = [f"{mark}: {text}" for mark, text in table.expected.footnotes.items()]
    if form == "markdown":
        return escape_markdown("\n\n".join([as_markdown(grid), *(" ".join(note.split()) for note in footnotes)]))
    return "\n\n".join([as_text(grid), *map(paragraph, footnotes)])


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
    yield from _listed("Circulating numbers that differ from the paper", disputed)
    if table.peers:
        peers = tuple((p.cell, f"{p.value:.2f}", p.source, p.note) for p in table.peers)
        grid = Grid(("cell", "error", "source", "remark"), peers, ("left", "right", "left", "left"))
        yield f"Public re-implementations:\n{as_text(grid)}"
    claims = table.expected.claims
    yield from _listed("Claims", (f"{c.id}: {c.says} ({c.section}){f'. {c.note}' if c.note else ''}" for c in claims))


def _listed(title: str, texts: Iterable[str]) -> Iterator[str]:
    """Format a list under a title; nothing without texts."""
    if lines := [paragraph(f"  {text}", "    ") for text in texts]:
        yield "\n".join([f"{title}:", *lines])


def _notes_of(table: Table, cell: Cell) -> Iterator[str]:
    defaults, expected = table.defaults, cell.expected
    if not cell.home.startswith(f"{table.id}/"):
        yield f"the same result as {cell.home}"
    if expected.source:
        yield f"from {'the ' if expected.source.startswith('Appendix') else ''}{expected.source}"
    if cell.published_runs != defaults.n and expected.value != "unprinted":
        runs = "a single run" if cell.published_runs == 1 else f"median of {cell.published_runs} runs"
        yield f"published: {runs}"
    if expected.std is not None:
        yield f"std {expected.std:.2f}, from {expected.std_source}"
    if cell.number is not None and cell.tolerance != defaults.tolerance:
        yield f"tolerance {_points(cell.tolerance)}"
    if evaluation := table.evaluation_in(table.profiles.named("paper"), cell):
        yield f"tested on a {evaluation}"
    if cell.row.on_request:
        yield "run only if its row is named (`--cells`)"
    if expected.note:
        yield expected.note


def _points(tolerance: float) -> str:
    return f"{tolerance:g} percentage point{'' if tolerance == 1 else 's'}"


def _nets(shown: ShownTable, profile: Profile, long: bool) -> str:
    asked = f"; precision: {shown.experiment.precision}" if shown.experiment.precision else ""
    heading = paragraph(f"Nets in profile {shown.profile} ({profile.title}); seeds: {shown.seeds}{asked}")
    by_row: dict[str, dict[str, tuple[str, ...]]] = {}
    for cell, (*nets,) in groupby(shown.nets, lambda net: net.cell):
        by_row.setdefault(cell.split("/")[0], {})[cell] = _net_of(nets)
    rows: list[tuple[str, ...]] = []
    for row, of_row in by_row.items():
        is_same = len(of_row) > 1 and len(set(of_row.values())) == 1
        named = {f"{row}/*": next(iter(of_row.values()))} if is_same else of_row
        rows += [(cell, *net) for cell, net in named.items()]
    headers, alignment = ("cell", "net", "depth", "family", "data set"), ("left", "left", "right", "left", "left")
    parts, width = ("key", "net", "minor", "minor", "minor"), 5 if long else 2
    grid = Grid(headers[:width], tuple(row[:width] for row in rows), alignment[:width], parts[:width])
    return f"{heading}\n{as_text(grid, long=False)}"


def _net_of(nets: Sequence[ShownNet]) -> tuple[str, ...]:
    """Return the net of a cell, or the first and last setting of a sweep, with depth, family and data set."""
    first, last = nets[0], nets[-1]
    text = first.net
    if first != last:  # such as "net(gate_bias=0 to -5)"
        text = f"{text.removesuffix(')')} to {last.setting.partition('=')[2]})"
    return text, str(first.depth), first.family, DATASETS[first.dataset].title


def _recipes(shown: ShownTable, long: bool) -> Iterator[str]:
    by_recipe: dict[str, list[str]] = {}
    for cell, its_recipe in {net.cell: net.recipe for net in shown.nets}.items():
        by_recipe.setdefault(its_recipe, []).append(cell)
    described: dict[str, dict[str, str]] = {}
    for name, cells in by_recipe.items():
        recipe = shown.recipes[name]
        values = recipe.defining_values() | ({} if recipe.warm_up else {"warm_up": None})
        texts = {key: f"{key} {format_value(value)}" for key, value in values.items()}
        if recipe.evaluations:
            tests = " and ".join(f"a {evaluation}" for evaluation in recipe.evaluations.values())
            texts["evaluations"] = f"tested on {tests}"
        settings = "; ".join(texts.values())
        for earlier, others in described.items():
            differing = [text for key, text in texts.items() if others.get(key) != text]
            if others.keys() <= texts.keys() and len(differing) <= _MAX_DIFFERING:
                settings = f"as {earlier}, but {'; '.join(differing)}"
        described[recipe.recipe] = texts
        listed = ", ".join(cells) if len(cells) <= 3 else f"{len(cells)} cells"
        whose = f" of {listed}" if len(by_recipe) > 1 else ""
        source = f" ({recipe.source})" if long and recipe.source else ""
        yield paragraph(f"Recipe {recipe.recipe}{whose}{source}: {settings}.", "  ")
