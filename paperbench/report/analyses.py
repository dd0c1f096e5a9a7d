"""Analyses of nets as tables for terminals and Markdown, CSV, JSON and data frames."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paperbench.analysis.record import Analysis, Passes, Paths, Spectrum
from paperbench.errors import PaperbenchError, nearest
from paperbench.report.csv_format import as_csv
from paperbench.report.grid import Grid, as_markdown, as_text, escape_markdown, paragraph

if TYPE_CHECKING:
    import pandas

FORMATS = ("text", "markdown", "json", "csv")

COLUMNS = (
    *("net", "seed", "run", "iteration", "weights", "initialisation", "data", "canonical"),
    *("images", "size", "batch_norm", "precision", "stage", "unit"),
    *(field.name for field in fields(Passes)),
)
"""The columns of CSV and data frames: the net's and the conditions, the unit, then those of `Passes`."""

MAX_UNITS = 12
"""Maximum number of units that are all listed; of more, the first and the last of each stage."""


@dataclass(frozen=True)
class Quantity:
    """A column of a table.

    Attributes:
        part: Whether it is about the "signal" or the "gradient".
        meaning: What it is, in a line below the table.
    """

    part: str
    header: str
    meaning: str
    of: Callable[[Analysis], float | None]
    in_percent: bool = False


OVERVIEW = (
    Quantity(
        *("gradient", "gradient x_0 / x_L", "norm of dE/dx_0 relative to that of dE/dx_L"),
        lambda a: _ratio(a.passes.gradient_norm[0], a.output_gradient),
    ),
    Quantity(
        *("gradient", "by shortcuts", "the share of dE/dx_0 that arrives by shortcuts alone, the first term of Eq. 5"),
        lambda a: a.passes.direct_share[0],
    ),
    Quantity(
        *("gradient", "product, predicted", "of the shortcuts' factors from x_0 to x_L, Eq. 8; - for convolutions"),
        lambda a: a.passes.predicted[0],
    ),
    Quantity(
        *("gradient", "product, measured", "the factor by which that term is what identity shortcuts let through"),
        lambda a: a.passes.measured[0],
    ),
    Quantity(
        *("signal", "signal x_L / x_0", "norm of x_L relative to that of x_0"),
        lambda a: _ratio(a.output.norm, a.passes.signal_norm[0]),
    ),
    Quantity(
        *("signal", "y < 0", "the share of the values of y_l, Eq. 1, below zero, on average over the units"),
        lambda a: _mean(a.passes.negative),
        in_percent=True,
    ),
    Quantity(
        *("signal", "cut", "the share that ReLU after the addition sets to zero, on average; - without this ReLU"),
        lambda a: _mean(a.passes.cut),
        in_percent=True,
    ),
    Quantity(
        *("signal", "error of Eq. 4", "largest relative distance of a signal from the sum of Eqs. 4 and 7"),
        lambda a: max(a.passes.sum_error),
    ),
    Quantity(
        *("signal", "identity", "if all F = 0, the share of units whose output is exactly that of an identity"),
        lambda a: _mean([error == 0 for error in a.passes.identity_error]),
        in_percent=True,
    ),
)

BY_UNIT: tuple[tuple[str, str, str, str], ...] = (
    ("signal", "x_l", "signal_norm", "norm over the batch"),
    ("signal", "F", "residual_norm", "norm of F(x_l) as it is added, with its factor or gate"),
    ("signal", "x_0 in x_l", "input_share", "the share of x_l that is still x_0"),
    ("signal", "y < 0", "negative", ""),
    ("signal", "cut", "cut", ""),
    ("signal", "error of Eq. 4", "sum_error", ""),
    (
        "signal",
        "not identity",
        "identity_error",
        "if all F = 0, relative distance of x_{l+1} from an identity's output",
    ),
    ("gradient", "dE/dx_l", "gradient_norm", "norm over the batch"),
    ("gradient", "by shortcuts", "direct_share", ""),
    ("gradient", "cosine", "cosine", "of the angle between both terms of Eq. 5"),
    ("gradient", "predicted", "predicted", "product of the factors from x_l to x_L"),
    ("gradient", "measured", "measured", ""),
)
"""The columns of the table by unit: part, header, column of `Passes`, and meaning, if that is not in `OVERVIEW`."""

IN_PERCENT = ("negative", "cut")

SINGULAR = (("largest", "largest singular value"), ("rms", "rms growth"), ("condition", "condition number"))
"""What is shown of a `Spectrum`: the field and its header."""

MAX_LENGTH = 5
"""Length of the longest paths that have a column of their own."""


@dataclass(frozen=True)
class Group:
    """Analyses of one net under the same conditions, by seed.

    Attributes:
        label: The net, and the conditions in which groups differ.
    """

    label: str
    analyses: tuple[Analysis, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(one.seed for one in self.analyses)


class Analyses(tuple[Analysis, ...]):
    """Analyses of nets. `str` is the text for a terminal."""

    __slots__ = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The analyses of each net together, as they were given."""
        found: dict[tuple[object, ...], list[Analysis]] = {}
        for one in self:
            found.setdefault((one.spec.digest, one.stages), []).append(one)
        shared = self._shared
        labels = ([some[0].net, *(fact for fact in _facts(some[0]) if fact not in shared)] for some in found.values())
        return tuple(Group(", ".join(label), tuple(some)) for label, some in zip(labels, found.values(), strict=True))

    @property
    def conditions(self) -> str:
        """The conditions that all nets share, in a sentence."""
        return f"Conditions: {'; '.join(self._shared)}."

    @property
    def _shared(self) -> list[str]:
        return [facts[0] for facts in zip(*map(_facts, self), strict=True) if len(set(facts)) == 1]

    def to_frame(self) -> pandas.DataFrame:
        """Return a row for each unit of each net, as the CSV has them.

        Raises:
            PaperbenchError: pandas is not installed.
        """
        from paperbench.report.frames import of_units

        return of_units(COLUMNS, unit_rows(self))

    def render(self, form: str = "text") -> str:
        """Format the analyses: "text" and "markdown" as tables, "csv" by unit, "json" as they are stored.

        Raises:
            PaperbenchError: The format is unknown.
        """
        if form not in FORMATS:
            raise PaperbenchError(f"Unknown format {form!r}. {nearest(str(form), FORMATS)}")
        if form == "json":
            return json.dumps([json.loads(one.to_json()) for one in self], indent=1) + "\n"
        if form == "csv":
            return as_csv(COLUMNS, unit_rows(self))
        return _tables(self, form == "markdown")

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"<analyses: {', '.join(f'{one.net} seed {one.seed}' for one in self)}>"

    def _repr_markdown_(self) -> str:
        return self.render("markdown")


def unit_rows(analyses: Iterable[Analysis]) -> Iterator[dict[str, Any]]:
    """Yield a row, with a value for each of `COLUMNS`, for each unit of each net."""
    for one in analyses:
        spec = one.spec
        of_net = (one.net, one.seed, spec.run, spec.iteration, spec.weights, spec.initialisation, one.data.name)
        facts = (*of_net, one.data.canonical, spec.images, spec.size, spec.batch_norm, spec.precision)
        for unit, (stage, row) in enumerate(zip(one.stages, one.passes.rows(), strict=True)):
            yield dict(zip(COLUMNS, (*facts, stage, unit, *row.values()), strict=True))


def medians(group: Group, column: str) -> list[float | None]:
    """Return the median over seeds of a column of `Passes` for each unit; None where no seed has a number."""
    return _medians([getattr(one.passes, column) for one in group.analyses])


def _facts(analysis: Analysis) -> tuple[str, ...]:
    """Return the conditions of an analysis in words."""
    spec, data = analysis.spec, analysis.data
    state = {"he": "at initialisation", "orthogonal": "orthogonal weights"}[spec.initialisation]
    if spec.run:
        state = f"trained for {spec.iteration:,} iterations"
    elif spec.weights:
        state = f"weights {spec.weights[:8]}"
    return (
        state,
        data.name if data.is_comparable else f"{data.name}, not the paper's images",
        f"{spec.images} images" + (f" of {spec.size}x{spec.size}" if spec.size else ""),
        {"batch": "batch norm by the batch", "averages": "batch norm by averages"}[spec.batch_norm],
        spec.precision,
    )


def _tables(analyses: Analyses, is_markdown: bool) -> str:
    """Return the tables with what their headings mean."""
    table = as_markdown if is_markdown else as_text
    groups = analyses.groups

    def meanings(found: Iterable[tuple[str, str]]) -> str:
        lines = (f"{header}: {meaning}." for header, meaning in found if meaning)
        return " ".join(lines) if is_markdown else "\n".join(paragraph(line, "    ") for line in lines)

    parts = ["Signal and gradient in the residual units", analyses.conditions]
    parts = parts if is_markdown else list(map(paragraph, parts))
    parts += [table(_overview(groups)), meanings((one.header, one.meaning) for one in OVERVIEW)]
    if len(groups) == 1:
        seeds = f", median of {len(groups[0].seeds)} seeds" if len(groups[0].seeds) > 1 else ""
        parts += [f"By unit{seeds}:", table(_by_unit(groups[0])), meanings((one[1], one[3]) for one in BY_UNIT)]
    for title, grid in (
        ("Jacobians of chains of units:", _chains(groups)),
        ("Share of dE/dx_0 by path length, the number of units passed through weight layers:", _paths(groups)),
        ("Test error in % on these images, with F = 0 in one unit:", _left_out(groups)),
    ):
        parts += [title if is_markdown else paragraph(title), table(grid)] if grid.rows else []
    text = "\n\n".join(parts)
    return f"{escape_markdown(text) if is_markdown else text}\n"


def _overview(groups: Sequence[Group]) -> Grid:
    """A row for each net; of several seeds the median, and the lowest and the highest below it."""
    choices: list[tuple[str, Callable[[list[float]], float]]]
    rows = []
    for group in groups:
        choices = [(group.label, statistics.median)]
        if len(group.seeds) > 1:
            choices = [(f"{group.label}, median of {len(group.seeds)} seeds", statistics.median)]
            choices += [("  lowest", min), ("  highest", max)]
        for label, choose in choices:
            values = ([quantity.of(one) for one in group.analyses] for quantity in OVERVIEW)
            texts = (_number(found, one.in_percent, choose) for one, found in zip(OVERVIEW, values, strict=True))
            rows.append((label, *texts))
    headers = ("net", *(one.header for one in OVERVIEW))
    return Grid(headers, tuple(rows), ("left", *["right"] * len(OVERVIEW)), ("key", *(one.part for one in OVERVIEW)))


def _by_unit(group: Group) -> Grid:
    """A row for each unit, or for the first and the last of each stage, and for x_L."""
    first = group.analyses[0]
    stages = first.stages
    borders = {unit for unit in range(len(stages)) if stages[unit - 1 : unit] != stages[unit : unit + 1]}
    shown = list(range(len(stages)))
    if len(stages) > MAX_UNITS:
        shown = sorted({0, len(stages) - 1} | borders | {unit - 1 for unit in borders if unit})
    rows = [[str(unit), str(stages[unit])] for unit in shown] + [[str(len(stages)), ""]]
    last = {
        "signal_norm": statistics.median(one.output.norm for one in group.analyses),
        "gradient_norm": statistics.median(one.output_gradient for one in group.analyses),
    }
    columns = [(part, header, medians(group, column), column) for part, header, column, _ in BY_UNIT]
    spectra = [one.jacobians.units for one in group.analyses if one.jacobians]
    for name, header in SINGULAR if spectra else ():
        columns.append(
            ("jacobian", header, _medians([[singular(unit, name) for unit in some] for some in spectra]), "")
        )
    errors = [one.left_out.without for one in group.analyses if one.left_out]
    if errors:
        columns.append(("left out", "error in % without it", _medians(errors), ""))
    for _, _, values, column in columns:
        for row, value in zip(rows, [*(values[unit] for unit in shown), last.get(column, math.nan)], strict=True):
            row.append("" if value is not None and math.isnan(value) else _number([value], column in IN_PERCENT))
    headers = ("l", "stage", *(header for _, header, _, _ in columns))
    parts = ("key", "key", *(part for part, _, _, _ in columns))
    return Grid(headers, tuple(map(tuple, rows)), ("right",) * len(headers), parts)


def _chains(groups: Sequence[Group]) -> Grid:
    """A row for each chain of units of a net; of several nets only the longest."""
    rows = []
    for group in groups:
        found = [one.jacobians.chains for one in group.analyses if one.jacobians]
        for of_seeds in list(zip(*found, strict=True))[slice(None) if len(groups) == 1 else slice(-1, None)]:
            texts = (_number([singular(chain, name) for chain in of_seeds]) for name, _ in SINGULAR)
            rows.append((group.label, f"{of_seeds[0].first} to {of_seeds[0].last}", *texts))
    return Grid(("net", "units", *(header for _, header in SINGULAR)), tuple(rows), ("left", *["right"] * 4))


def _paths(groups: Sequence[Group]) -> Grid:
    """A row for each net: the share of dE/dx_0 by length of path."""
    rows = []
    for group in groups:
        found = [one.paths for one in group.analyses if one.paths]
        if found:
            shares = [(*(one.share + (0.0,) * MAX_LENGTH)[: MAX_LENGTH + 1], _beyond(one)) for one in found]
            rows.append((group.label, *(_number(values) for values in zip(*shares, strict=True))))
    headers = ("net", *map(str, range(MAX_LENGTH + 1)), "longer")
    return Grid(headers, tuple(rows), ("left", *["right"] * (len(headers) - 1)))


def _beyond(paths: Paths) -> float:
    return sum(paths.share[MAX_LENGTH + 1 :]) + paths.longer_share


def _left_out(groups: Sequence[Group]) -> Grid:
    """A row for each net: its error in percent, and those without one unit."""
    rows = []
    for group in groups:
        found = [one.left_out for one in group.analyses if one.left_out]
        if found:
            errors = [value or 0.0 for value in _medians([one.without for one in found])]
            worst = max(range(len(errors)), key=errors.__getitem__)
            texts = _number([one.whole for one in found]), _number(errors), _number([errors[worst]]), str(worst)
            rows.append((group.label, *texts))
    return Grid(("net", "whole", "median without a unit", "worst", "unit"), tuple(rows), ("left", *["right"] * 4))


def singular(spectrum: Spectrum, name: str) -> float | None:
    """Return a number of `SINGULAR`."""
    value: float | None = spectrum.largest[0] if name == "largest" else getattr(spectrum, name)
    return value


def _medians(columns: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the median of the numbers at each place of some columns; None where there are none."""
    numbers = ([value for value in values if value is not None] for values in zip(*columns, strict=True))
    return [statistics.median(values) if values else None for values in numbers]


def _number(
    values: Sequence[float | None], in_percent: bool = False, choose: Callable[[list[float]], float] = statistics.median
) -> str:
    """Format one of the values of several seeds."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    value = choose(found)
    return f"{100 * value:.1f} %" if in_percent else f"{value:.3g}"


def _ratio(value: float, other: float) -> float | None:
    return value / other if other else None


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None
