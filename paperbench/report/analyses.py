"""Analyses of nets as tables for terminals and Markdown, CSV, JSON and data frames."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from paperbench.analysis.record import ALL, Analysis, Health, Modules, Passes, Spectrum
from paperbench.errors import PaperbenchError, count, nearest
from paperbench.report.csv_format import as_csv
from paperbench.report.grid import NOTHING, Grid, as_markdown, as_text, escape_markdown, paragraph

if TYPE_CHECKING:
    import pandas

FORMATS = ("text", "markdown", "json", "csv")

COLUMNS: dict[str, type] = {
    "net": str,
    "seed": int,
    "run": str,
    "iteration": int,
    "weights": str,
    "initialisation": str,
    "data": str,
    "canonical": bool,
    "images": int,
    "size": int,
    "batch_norm": str,
    "precision": str,
    **dict.fromkeys(("loss", "output_norm", "output_gradient", "error", "train_error", "test_error"), float),
    "stage": int,
    "unit": int,
    **dict.fromkeys((field.name for field in fields(Passes)), float),
    **dict.fromkeys(("jacobian_largest", "jacobian_rms", "jacobian_condition", "error_without"), float),
    **{f"module_{field.name}": str if field.name == "name" else float for field in fields(Modules)},
}
"""The columns of CSV and data frames with their types: of the net and the conditions, the unit, then the module."""

MAX_UNITS = 12
"""Maximum number of units that are all listed; of more, the first and the last of each stage."""

OVERVIEW: tuple[tuple[str, str, Callable[[Analysis], float | None]], ...] = (
    ("gradient", "gradient x_0 / x_L", lambda a: _ratio(a.passes.gradient_norm[0], a.output_gradient)),
    ("gradient", "by shortcuts", lambda a: a.passes.direct_share[0]),
    ("gradient", "Eq. 8, predicted", lambda a: a.passes.predicted[0]),
    ("gradient", "Eq. 8, measured", lambda a: a.passes.measured[0]),
    ("signal", "signal x_L / x_0", lambda a: _ratio(a.output.norm, a.passes.signal_norm[0])),
    ("signal", "y < 0", lambda a: a.passes.negative_share),
    ("signal", "error of Eq. 4", lambda a: max(a.passes.sum_error)),
    ("signal", "identity", lambda a: a.passes.identity_error.count(0) / len(a.stages)),
)
"""The columns of the table of nets: part, header, and value."""

BY_UNIT = (
    ("signal", "|x_l|", "signal_norm"),
    ("signal", "|F|", "residual_norm"),
    ("signal", "x_0 in x_l", "input_share"),
    ("signal", "y < 0", "negative"),
    ("signal", "error of Eq. 4", "sum_error"),
    ("signal", "error if F = 0", "identity_error"),
    ("gradient", "|dE/dx_l|", "gradient_norm"),
    ("gradient", "by shortcuts", "direct_share"),
    ("gradient", "cosine", "cosine"),
    ("gradient", "Eq. 8, predicted", "predicted"),
    ("gradient", "Eq. 8, measured", "measured"),
)
"""The columns of the table by unit: part, header, and column of `Passes`."""

MEANINGS = {
    "gradient x_0 / x_L": "|dE/dx_0| / |dE/dx_L|, norms over the batch",
    "by shortcuts": "the share of the gradient that arrives by shortcuts alone, the first term of Eq. 5",
    "Eq. 8, predicted": "the product of the shortcuts' factors up to x_L; - for convolutions",
    "Eq. 8, measured": "the first term over what identity shortcuts would pass on",
    "signal x_L / x_0": "|x_L| / |x_0|",
    "y < 0": "the share of the values of y_l, Eq. 1, below zero; of a net the mean over its units",
    "error of Eq. 4": "distance of x_{l+1} from the sum of Eqs. 4 and 7, relative to its norm; of a net the largest",
    "identity": "with F = 0 in all units, the share of the units whose output is exactly that of an identity",
    "|F|": "F(x_l) as it is added, with its factor or gate",
    "x_0 in x_l": "the share of x_l that is still x_0",
    "error if F = 0": "with F = 0 in all units, relative distance of x_{l+1} from an identity's output",
    "cosine": "of the angle between both terms of Eq. 5",
    "largest singular value": "approached from below, unless all were computed",
    "rms growth": "root mean square factor by which random changes of the input grow; of a few, unless all singular "
    "values were computed",
    "taught": "what teaching texts recommend; none names a source that measured it",
    "nets that trained": "range of medians in small nets that learned digits; docs/health.md",
    "condition number": "the largest singular value over the smallest; -: not all were computed",
}
"""What headers mean, in lines below the first table with them."""

SINGULAR = (("largest", "largest singular value"), ("rms", "rms growth"), ("condition", "condition number"))
"""What is shown of a `Spectrum`: the field and its header."""

MAX_LENGTH = 5
"""Length of the longest paths that have a column of their own."""

Values = list[tuple[float, str]]
ITERATIONS = (0, 100, 990)
"""Iterations, of 1,000, after which the nets of results/health were measured."""


def _of(what: str, *, of_all: bool = False) -> Callable[[Health], Values]:
    """Return what takes a column of `Modules`, or "one/other", without or only in the row of `ALL`."""
    column, _, over = what.partition("/")
    return lambda found: [
        (row[column] / (row[over] if over else 1), row["name"])
        for row in found.modules.rows()
        if (row["name"] == ALL) == of_all and row[column] is not None and (not over or row[over])
    ]


def _spread(found: Health) -> Values:
    gradients = sorted(value for value, _ in _of("gradient")(found))
    return [(gradients[-1] / gradients[0], "")] if gradients[0] else []


def _gap(found: Health) -> Values:
    return [] if found.test_error is None or found.train_error is None else [(found.test_error - found.train_error, "")]


QUANTITIES: dict[str, tuple[Callable[[Health], Values], str, str]] = {
    "gradient norm": (_of("gradient"), "0.1 to 10", "0.34 to 1.2;0.0086 to 0.43;0.001 to 0.056"),
    "gradient norm of all": (_of("gradient", of_all=True), "0.1 to 10", "2 to 36;0.19 to 2.1;0.0054 to 0.63"),
    "largest gradient / smallest": (_spread, "0.1 to 10", "4.3 to 58;1.5 to 91;2.3 to 170"),
    "gradient / weight": (_of("gradient/weight"), "0.001 to 0.01", "0.045 to 0.16;0.00087 to 0.053;0.00013 to 0.0062"),
    "update / weight": (_of("update/weight"), "0.001 to 0.01", "0.00045 to 0.0016;0.00025 to 0.01;3.1e-06 to 1.6e-05"),
    "mean after ReLU": (_of("mean"), "-0.5 to 0.5", "0.38 to 0.4;0.2 to 0.43;0.34 to 0.44"),
    "deviation after ReLU": (_of("std"), "0.5 to 2", "0.59 to 0.62;0.63 to 1.4;0.58 to 1.8"),
    "dead channels, share": (_of("dead/channels"), "-", "0 to 0;0 to 0.031;0 to 0"),
    "chi of units": (_of("chi"), "-", "0.99 to 1.7;0.15 to 1.2;0.1 to 1.1"),
    "correlation of images": (_of("correlation"), "-", "0.37 to 0.67;0.29 to 0.64;0.22 to 0.59"),
    "test - train error, points": (_gap, "below 5", "-;-7.4 to 17;0.68 to 2.5"),
}
"""What is told about a net: its values with their modules, none if it is unavailable; the range in teaching texts;
and the range of medians in the nets of results/health that trained, for each of `ITERATIONS`."""


@dataclass(frozen=True)
class AnalysisGroup:
    """Analyses of one net under the same conditions, by seed.

    Attributes:
        label: The net, and the conditions in which groups differ.
    """

    label: str
    analyses: tuple[Analysis, ...]

    @property
    def stages(self) -> tuple[int, ...]:
        return self.analyses[0].stages

    @property
    def borders(self) -> list[int]:
        """The first unit of each stage but the first."""
        return [unit for unit, (before, after) in enumerate(pairwise(self.stages), start=1) if before != after]


class Analyses(tuple[Analysis, ...]):
    """Analyses of nets. `str` is the text for a terminal."""

    __slots__ = ()

    @property
    def groups(self) -> tuple[AnalysisGroup, ...]:
        """The analyses of each net together, as they were given."""
        found: dict[tuple[object, ...], list[Analysis]] = {}
        for one in self:
            found.setdefault((one.spec.digest, one.stages), []).append(one)
        shared = {"", *self._shared}
        labels = ([some[0].net, *(fact for fact in _facts(some[0]) if fact not in shared)] for some in found.values())
        return tuple(
            AnalysisGroup(", ".join(label), tuple(some)) for label, some in zip(labels, found.values(), strict=True)
        )

    @property
    def conditions(self) -> str:
        """The conditions that all nets share, in a sentence."""
        return f"Conditions: {'; '.join(filter(None, self._shared))}."

    @property
    def _shared(self) -> list[str]:
        return [facts[0] for facts in zip(*map(_facts, self), strict=True) if len(set(facts)) == 1]

    def to_frame(self) -> pandas.DataFrame:
        """Return a row for each unit of each net, as the CSV has them."""
        from paperbench.report.frames import frame

        return frame(COLUMNS, unit_rows(self))

    def render(self, form: str = "text") -> str:
        """Format the analyses: "text" and "markdown" as tables, "csv" by unit, "json" as they are stored."""
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
    """Yield a row, with a value for each of `COLUMNS`, for each unit of each net, and each module with its health."""
    for one in analyses:
        spec = one.spec
        of_net = (one.net, one.seed, spec.run, spec.iteration, spec.weights, spec.initialisation, one.data.name)
        conditions = (one.data.canonical, spec.images, spec.size, spec.batch_norm, spec.precision)
        error = one.left_out.whole if one.left_out else None
        errors = (one.health.train_error, one.health.test_error) if one.health else (None, None)
        facts = (*of_net, *conditions, one.loss, one.output.norm, one.output_gradient, error, *errors)
        for unit, (stage, row) in enumerate(zip(one.stages, one.passes.rows(), strict=True)):
            spectrum = one.jacobians.units[unit] if one.jacobians else None
            values = (singular(spectrum, name) if spectrum else None for name, _ in SINGULAR)
            without = one.left_out.without[unit] if one.left_out else None
            yield dict(zip_longest(COLUMNS, (*facts, stage, unit, *row.values(), *values, without)))
        for row in one.health.modules.rows() if one.health else ():
            of_module = {f"module_{name}": value for name, value in row.items()}
            yield dict(zip_longest(COLUMNS, facts)) | of_module


def by_unit(analysis: Analysis, column: str) -> list[float | None]:
    """Return a column of `Passes`, with the value of x_L where there is one."""
    values, gradient = getattr(analysis.passes, column), analysis.output_gradient
    last = {"signal_norm": analysis.output.norm, "gradient_norm": gradient, "direct_norm": gradient}.get(column)
    return [*values] if last is None else [*values, last]


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
        count(spec.images, "image") + (f" of {spec.size}x{spec.size}" if spec.size else ""),
        {"batch": "batch norm by the batch", "averages": "batch norm by averages"}[spec.batch_norm],
        spec.precision,
        f"with {', '.join(spec.measures)}".replace("_", "-") if spec.measures else "",
    )


def _tables(analyses: Analyses, is_markdown: bool) -> str:
    """Return the tables with what their headings mean."""
    table = as_markdown if is_markdown else as_text
    groups = analyses.groups
    grids = [
        *(_health(group, with_ends=len(groups) == 1) for group in groups),
        ("Signal and gradient in the residual units:", _overview(groups)),
        *((f"By unit{_of_seeds(group)}:", _by_unit(group)) for group in groups if len(groups) == 1),
        ("Jacobians of chains of units:", _chains(groups)),
        ("Share of dE/dx_0 by path length, the number of units passed through weight layers:", _paths(groups)),
        ("Test error in % on these images, of the whole net and with F = 0 in one unit:", _left_out(groups)),
    ]
    parts = [analyses.conditions if is_markdown else paragraph(analyses.conditions)]
    known: set[str] = set()
    for title, grid in grids:
        if grid.rows:
            lines = [f"{header}: {MEANINGS[header]}." for header in grid.headers if header in MEANINGS.keys() - known]
            meanings = " ".join(lines) if is_markdown else "\n".join(paragraph(line, "    ") for line in lines)
            parts += [title if is_markdown else paragraph(title), table(grid), meanings]
            known |= {*grid.headers}
    text = "\n\n".join(filter(None, parts))
    return f"{escape_markdown(text) if is_markdown else text}\n"


def _of_seeds(group: AnalysisGroup) -> str:
    return f", median of {len(group.analyses)} seeds" if len(group.analyses) > 1 else ""


def _overview(groups: Sequence[AnalysisGroup]) -> Grid:
    """A row for each net; of several seeds the median, and the lowest and the highest below it."""
    rows = []
    for group in groups:
        found = [[of(one) for one in group.analyses] for _, _, of in OVERVIEW]
        rows.append((group.label + _of_seeds(group), *map(_number, found)))
        if len(group.analyses) > 1:
            rows.append(("  lowest", *(_number(values, min) for values in found)))
            rows.append(("  highest", *(_number(values, max) for values in found)))
    parts, headers, _ = zip(*OVERVIEW, strict=True)
    return Grid(("net", *headers), tuple(rows), ("left", *["right"] * len(OVERVIEW)), ("key", *parts))


def _by_unit(group: AnalysisGroup) -> Grid:
    """A row for each unit, or for the first and the last of each stage, and for x_L."""
    analyses, end = group.analyses, len(group.stages)
    last_of_stages = {unit - 1 for unit in (*group.borders, end)}
    shown = range(end) if end <= MAX_UNITS else sorted({0, *group.borders, *last_of_stages})
    columns = [(part, header, [by_unit(one, name) for one in analyses]) for part, header, name in BY_UNIT]
    if spectra := [one.jacobians.units for one in analyses if one.jacobians]:
        for name, header in SINGULAR:
            columns.append(("jacobian", header, [[singular(unit, name) for unit in some] for some in spectra]))
    errors: list[list[float | None]] = [[*one.left_out.without] for one in analyses if one.left_out]
    if errors:
        columns.append(("left out", "error in % without it", errors))
    texts = [[[*map(_number, zip(*found, strict=True)), ""][unit] for unit in (*shown, end)] for *_, found in columns]
    keys = [str(unit) for unit in (*shown, end)], [*(str(group.stages[unit]) for unit in shown), ""]
    parts, headers, _ = zip(*columns, strict=True)
    rows = tuple(zip(*keys, *texts, strict=True))
    return Grid(("l", "stage", *headers), rows, ("right",) * (2 + len(columns)), ("key", "key", *parts))


def _chains(groups: Sequence[AnalysisGroup]) -> Grid:
    """A row for each chain of units of a net; of several nets only the longest."""
    rows = []
    for group in groups:
        found = [one.jacobians.chains for one in group.analyses if one.jacobians]
        for of_seeds in list(zip(*found, strict=True))[slice(None) if len(groups) == 1 else slice(-1, None)]:
            texts = (_number([singular(chain, name) for chain in of_seeds]) for name, _ in SINGULAR)
            rows.append((group.label, f"{of_seeds[0].first} to {of_seeds[0].last}", *texts))
    return Grid(("net", "units", *(header for _, header in SINGULAR)), tuple(rows), ("left", *["right"] * 4))


def _paths(groups: Sequence[AnalysisGroup]) -> Grid:
    """A row for each net: the share of dE/dx_0 by length of path."""
    rows = []
    for group in groups:
        if found := [one.paths for one in group.analyses if one.paths]:
            shares = [(*one.share, *[0.0] * MAX_LENGTH) for one in found]
            of_lengths = [*zip(*shares, strict=True)][: MAX_LENGTH + 1]
            longer = [sum(one.share[MAX_LENGTH + 1 :]) + one.longer_share for one in found]
            rows.append((group.label, *map(_number, [*of_lengths, longer])))
    headers = ("net", *map(str, range(MAX_LENGTH + 1)), "longer")
    return Grid(headers, tuple(rows), ("left", *["right"] * (len(headers) - 1)))


def _left_out(groups: Sequence[AnalysisGroup]) -> Grid:
    """A row for each net: its error in percent, and those without one unit."""
    rows = []
    for group in groups:
        if found := [one.left_out for one in group.analyses if one.left_out]:
            errors = [statistics.median(values) for values in zip(*(one.without for one in found), strict=True)]
            whole, worst = _number([one.whole for one in found]), max(errors)
            rows.append((group.label, whole, _number(errors), _number([worst]), str(errors.index(worst))))
    return Grid(("net", "whole", "median without a unit", "worst", "unit"), tuple(rows), ("left", *["right"] * 4))


def _health(group: AnalysisGroup, with_ends: bool) -> tuple[str, Grid]:
    """A title, and a row for each quantity; of several seeds the medians."""
    found, spec = [one.health for one in group.analyses if one.health], group.analyses[0].spec
    stage = -1 if spec.weights else bisect_right(ITERATIONS, spec.iteration) - 1
    rows: list[tuple[str, ...]] = []
    for name, (of, taught, trained) in QUANTITIES.items() if found else ():
        values = [sorted(of(one)) for one in found]
        medians = [statistics.median(value for value, _ in one) for one in values] if all(values) else []
        note = found[0].update_is if "update" in name else "unavailable: no test yet" * (of is _gap and not medians)
        row = [f"{name} ({note})" if note else name, _number(medians), taught, trained.split(";")[stage]]
        for end in (0, -1) if with_ends else ():
            ends = [one[end] for one in values if len(one) > 1]
            row += [_number([value for value, _ in ends]) if ends else "", ends[0][1] if len(ends) == 1 else ""]
        rows.append(tuple(row))
    headers = ("quantity", "median", "taught", "nets that trained", *("smallest", "in", "largest", "in") * with_ends)
    alignment = ("left", "right", "left", "left", *("right", "left") * 2 * with_ends)
    title = f"Training health of {group.label}{_of_seeds(group)}; nets that trained, at iteration {ITERATIONS[stage]}:"
    return title, Grid(headers, tuple(rows), alignment, ("key", *["median"] * 3, *["ends"] * 4 * with_ends))


def singular(spectrum: Spectrum, name: str) -> float | None:
    """Return a number of `SINGULAR`; None if it was not computed."""
    if name == "condition" and spectrum.condition is None and spectrum.rank is not None:
        return math.inf
    value: float | None = spectrum.largest[0] if name == "largest" else getattr(spectrum, name)
    return value


def _number(values: Sequence[float | None], choose: Callable[[list[float]], float] = statistics.median) -> str:
    """Format one of the values of several seeds, by default their median; "-" unless all have one."""
    found = [value for value in values if value is not None]
    return f"{choose(found):.3g}" if found and len(found) == len(values) else NOTHING


def _ratio(value: float, other: float) -> float | None:
    return value / other if other else None
