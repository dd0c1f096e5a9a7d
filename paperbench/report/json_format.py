"""A comparison as typed facts: `JudgedTable.document`, and the content of `--format json` and `--format csv`.

Errors are in percent; differences, standard deviations and tolerances in percentage points. No number is infinite: a
diverged run has no error, and an infinite median or number of degrees of freedom is null.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BeforeValidator, Field

from paperbench import __version__
from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Conditions, Group, Run
from paperbench.compare.failures import FailureCount, count_failures
from paperbench.compare.verdicts import CellComparison, NetComparison, Verdict
from paperbench.errors import count, one_line, shorten
from paperbench.runs.record import Status
from paperbench.specs.cell import Cell
from paperbench.specs.expected import ExpectedCell, Source
from paperbench.specs.recipe import Evaluation
from paperbench.typed import Percent, to_json, typed

T = TypeVar("T")
AnalysisNumber = Annotated[int, Field(ge=1, le=2)]


def _finite(number: float | None) -> float | None:
    return None if number is not None and math.isinf(number) else number


_INFINITE_IS_NULL = BeforeValidator(_finite)


@typed
class RunFacts:
    """One run.

    Attributes:
        run: The run's id, which names its directory and record; null for an external result.
        error: Test error after the last iteration; null before the run has ended, if it diverged, or if it has no error
            of the cell's kind.
        iteration: Iterations done; null for an external result.
        counted: Whether verdict, median, difference and failures include the run: it has ended and is one of the tested
            runs or, before the first test, of the planned runs. If none of these has ended, all that have are counted.
    """

    seed: int
    run: str | None
    status: Status
    error: Annotated[Percent | None, _INFINITE_IS_NULL]
    iteration: int | None
    counted: bool

    def __repr__(self) -> str:
        return f"<seed {self.seed}: {self.status if self.error is None else f'{self.error:.2f}'}>"


@typed
class GroupFacts:
    """Runs that may be pooled, by seed.

    Attributes:
        conditions: The conditions that the runs share; for external results only the source is known.
        median: Median test error, in `shown` of the counted runs, in `others` of all runs that have ended; null without
            such runs, or if it is infinite.
        median_diverged: Whether the median is infinite because of diverged runs.
    """

    conditions: Conditions
    median: Annotated[Percent | None, _INFINITE_IS_NULL]
    median_diverged: bool
    runs: tuple[RunFacts, ...]

    def __repr__(self) -> str:
        return f"<{count(len(self.runs), 'run')}: {str(self.conditions)[:80]}>"


@typed
class NetFacts:
    """One net of a cell.

    Attributes:
        setting: The net's setting in a sweep, such as gate_bias=-3; empty in a cell with one net.
        net: The net that is trained, as timm's `create_model` takes it; a reduced profile changes its depth.
        reason: The reason for the verdict; empty where the interval is reason enough.
        analysis: 1 if the verdict follows from the planned runs, 2 if from twice as many, null if from fewer.
        failures: Failed runs among those counted; null without counted runs.
        shown: The runs that the verdict is about.
        others: The other groups, the nearest to the paper first.
    """

    setting: str
    net: str
    verdict: Verdict
    reason: str
    analysis: AnalysisNumber | None
    failures: FailureCount | None
    shown: GroupFacts | None
    others: tuple[GroupFacts, ...]

    def __repr__(self) -> str:
        return f"<{self.net[:80]}: {self.verdict}, {count(len(self.shown.runs) if self.shown else 0, 'run')}>"


@typed
class IntervalFacts:
    """Confidence interval of our error minus the published number, by two one-sided tests.

    Attributes:
        level: Error level of each side, as a probability.
        difference: Our Hodges-Lehmann estimate minus the published number if the noise rests on the table; else our
            median minus the published number.
        degrees: Degrees of freedom of the t distribution; null for the normal distribution.
    """

    low: float
    high: float
    level: float
    difference: float
    standard_error: float
    degrees: Annotated[float | None, _INFINITE_IS_NULL]


@typed
class NoiseFacts:
    """Spread between the runs of one net.

    Attributes:
        std: Standard deviation of a single run, with its safety factor.
        degrees: Degrees of freedom; null if the deviation is taken as known.
        rests_on: The runs that it was estimated from: the cell's own, the published ones, both, or those of all cells
            of the table.
        published_weight: Weight of the published variance in the pooled one, from 0 to 1.
        table_weight: Weight of the other cells' variance in the pooled one, from 0 to 1.
    """

    std: float
    degrees: Annotated[float | None, _INFINITE_IS_NULL]
    rests_on: Literal["ours", "published", "both", "table"]
    published_weight: Annotated[float, Field(ge=0, le=1)]
    table_weight: Annotated[float, Field(ge=0, le=1)]


@typed
class CellFacts:
    """One cell, judged.

    Attributes:
        id: "row/column".
        row, column: Titles of its row and column.
        dataset: Key of the data set of the paper's nets.
        evaluation: How its nets are tested in this profile; null for whole images.
        labels: The paper's further columns.
        published: The published result, with number of runs, statistic and tolerance if it is a number.
        home: "table/row/column" of the cell in which the published result appears first.
        differs: Whether it differs from the paper after Holm's correction, which makes the exit status 1.
        shift: The interval's difference, if it is significant but within the tolerance.
        difference: Our median minus the published number, whatever the verdict; null unless both are numbers.
        p_value: Of the hypothesis that the true difference is within the tolerance.
        nets: The net, or all nets of a sweep. The other values are for all nets together.
    """

    id: str
    row: str
    column: str
    metric: str
    dataset: str
    evaluation: Evaluation | None
    recipe: str
    labels: Mapping[str, str]
    figure: str
    published: ExpectedCell
    home: str
    verdict: Verdict
    reason: str
    differs: bool
    analysis: AnalysisNumber | None
    failures: FailureCount | None
    shift: float | None
    difference: Annotated[float | None, _INFINITE_IS_NULL]
    interval: IntervalFacts | None
    p_value: Annotated[float, Field(ge=0, le=1)] | None
    noise: NoiseFacts | None
    nets: tuple[NetFacts, ...]

    def __repr__(self) -> str:
        shown, published = self.nets[0].shown, self.published.value
        median = ("diverged" if shown.median_diverged else shown.median) if shown else None
        ours = median if len(self.nets) == 1 else self.failures
        left, right = (f"{one:.2f}" if isinstance(one, float) else str(one or "") for one in (ours, published))
        return f"<{self.id}: {self.verdict}, {f'{left} beside' if left else 'published'} {right}>"


@typed
class Summary:
    """Totals of the verdicts.

    Attributes:
        verdicts, standings: Number of cells with each verdict and of claims with each standing.
        holds: Whether no cell differs, which makes the exit status 0.
        all_reproduced: Whether the exit status is 0 with `--require reproduced`.
        expected_false_alarms: Expected number of cells called worse or better by chance, without Holm's correction, if
            every true difference were exactly the tolerance.
    """

    verdicts: Mapping[Verdict, int]
    standings: Mapping[Standing, int]
    holds: bool
    all_reproduced: bool
    expected_false_alarms: float


@typed
class ComparisonDocument:
    """A judged table, as `paperbench compare TABLE --format json` writes it.

    Attributes:
        schema: Version of this format.
        paperbench: Version of paperbench that judged the table.
        planned: Runs per cell, fixed beforehand.
        noise: Whether cells share what they say about the noise between runs (table), or each has its own (per-cell,
            as the version before could). A cell without enough others has its own: see `rests_on` of its noise.
        footnotes: The paper's footnotes, by mark.
        claims: The paper's claims about several cells, judged by our runs alone.
        deviations: Deviations of our runs from the paper; `paper` is empty where the paper is silent.
        left_out: Files, records and results that could not be used, a sentence each.
    """

    schema: Literal[2]
    paperbench: str
    table: str
    title: str
    source: Source
    profile: str
    planned: int
    noise: Literal["table", "per-cell"]
    footnotes: Mapping[str, str]
    summary: Summary
    cells: tuple[CellFacts, ...]
    claims: tuple[ClaimVerdict, ...]
    deviations: tuple[Deviation, ...]
    left_out: tuple[str, ...]

    def __repr__(self) -> str:
        cells, claims = (
            ", ".join(f"{n} {word}" for word, n in found.items() if n)
            for found in (self.summary.verdicts, self.summary.standings)
        )
        return f"<{self.table} compared: {cells}{f'; claims: {claims}' if claims else ''}>"


def render(document: ComparisonDocument) -> str:
    """Return the JSON, in ASCII, which any terminal can print, with a newline at the end."""
    return json.dumps(json.loads(to_json(document)), indent=1) + "\n"


def document(comparison: Comparison, complaints: Sequence[str] = ()) -> ComparisonDocument:
    """Collect the facts of a comparison.

    Args:
        complaints: Files that could not be read, one sentence each.
    """
    table = comparison.table
    verdicts = Counter(cell.verdict for cell in comparison.cells)
    standings = Counter(claim.standing for claim in comparison.claims)
    ours = tuple(c.cell.id for c in comparison.cells if any(net.shown and net.shown.records for net in c.nets))
    return _take(
        ComparisonDocument,
        comparison,
        schema=2,
        paperbench=__version__,
        table=table.id,
        title=table.experiment.title,
        source=table.source,
        noise="table",
        footnotes=table.expected.footnotes,
        summary=Summary(
            verdicts={verdict: verdicts[verdict] for verdict in get_args(Verdict)},
            standings={standing: standings[standing] for standing in get_args(Standing)},
            holds=comparison.holds(),
            all_reproduced=comparison.holds("reproduced"),
            expected_false_alarms=comparison.expected_false_alarms,
        ),
        cells=tuple(_cell(comparison, cell) for cell in comparison.cells),
        deviations=tuple(replace(d, cells=d.cells or ours) for d in comparison.deviations),
        left_out=tuple(one_line(shorten(text)) for text in (*complaints, *comparison.left_out)),
    )


def _take(kind: type[T], *sources: object, **given: object) -> T:
    """Make a value of a type; fields not given are attributes of the first source that has them."""
    names = [field.name for field in fields(cast(Any, kind)) if field.name not in given]
    return kind(**{name: next(getattr(s, name) for s in sources if hasattr(s, name)) for name in names}, **given)


def _cell(comparison: Comparison, compared: CellComparison) -> CellFacts:
    table, cell, assessment = comparison.table, compared.cell, compared.assessment
    return _take(
        CellFacts,
        assessment,
        cell,
        cell.row,
        row=cell.row.title,
        column=cell.column.title,
        metric=cell.column.metric,
        published=_published(cell),
        evaluation=table.evaluation_in(table.profiles.named(comparison.profile), cell),
        differs=compared in comparison.differing,
        analysis=assessment.analysis.number if assessment.analysis else None,
        failures=compared.failures if compared.failures.runs else None,
        difference=compared.difference,
        interval=_take(IntervalFacts, assessment.interval) if assessment.interval else None,
        noise=_take(NoiseFacts, assessment.noise) if assessment.noise else None,
        nets=tuple(_net(net, compared, comparison) for net in compared.nets),
    )


def _published(cell: Cell) -> ExpectedCell:
    if cell.expected.value == "unprinted":
        return cell.expected
    return replace(
        cell.expected,
        statistic=cell.expected.statistic or cell.defaults.statistic,
        n=cell.published_runs,
        tolerance=cell.tolerance if cell.number is not None else None,
    )


def _net(net: NetComparison, compared: CellComparison, comparison: Comparison) -> NetFacts:
    profile = comparison.table.profiles.named(comparison.profile)
    return _take(
        NetFacts,
        net.assessment,
        setting=net.setting.label,
        net=str(compared.cell.reference_in(profile, net.setting)),
        analysis=net.assessment.analysis.number if net.assessment.analysis else None,
        failures=count_failures(net.errors, compared.dataset) if net.errors else None,
        shown=_group(net.shown, net.median, net.counted) if net.shown else None,
        others=tuple(_group(group, group.median, ()) for group in net.others),
    )


def _group(group: Group, median: float | None, counted: Sequence[Run]) -> GroupFacts:
    runs = tuple(_run(run, run in counted) for run in group.runs)
    return GroupFacts(group.conditions, median, median is not None and math.isinf(median), runs)


def _run(run: Run, counted: bool) -> RunFacts:
    record = run.record
    if record is None:
        has_diverged = run.error is None or math.isinf(run.error)
        return RunFacts(run.seed, None, "diverged" if has_diverged else "finished", run.error, None, counted)
    return RunFacts(run.seed, record.run, record.status, run.error, record.iteration, counted)
