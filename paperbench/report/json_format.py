"""A judged table as JSON, whose parts are the types of `compare`: `JudgedTable.document` and `--format json`.

Errors are in percent; differences, standard deviations and tolerances in percentage points. No number is infinite: a
diverged run has no error, and an infinite median or number of degrees of freedom is null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from paperbench import __version__
from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.origins import NO_ORIGINS, Origins
from paperbench.compare.verdicts import CellFacts, Verdict
from paperbench.errors import one_line, shorten
from paperbench.specs.expected import Source
from paperbench.typed import to_json, typed


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
        origins: Who trained the runs, on which machines, and whether these agree.
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
    origins: Origins
    left_out: tuple[str, ...]

    def __repr__(self) -> str:
        cells, claims = (
            ", ".join(f"{n} {word}" for word, n in found.items() if n)
            for found in (self.summary.verdicts, self.summary.standings)
        )
        return f"<{self.table} compared: {cells}{f'; claims: {claims}' if claims else ''}>"


def render(document: object) -> str:
    """Return the JSON of a typed value, in ASCII, which any terminal can print, with a newline at the end."""
    return json.dumps(json.loads(to_json(document)), indent=1) + "\n"


def document(
    comparison: Comparison, complaints: Sequence[str] = (), origins: Origins = NO_ORIGINS
) -> ComparisonDocument:
    """Collect the facts of a comparison.

    Args:
        complaints: Files that could not be read, one sentence each.
    """
    table = comparison.table
    verdicts = Counter(cell.verdict for cell in comparison.cells)
    standings = Counter(claim.standing for claim in comparison.claims)
    return ComparisonDocument(
        schema=2,
        paperbench=__version__,
        table=table.id,
        title=table.experiment.title,
        source=table.source,
        profile=comparison.profile,
        planned=comparison.planned,
        noise="table",
        footnotes=table.expected.footnotes,
        summary=Summary(
            verdicts={verdict: verdicts[verdict] for verdict in get_args(Verdict)},
            standings={standing: standings[standing] for standing in get_args(Standing)},
            holds=comparison.holds(),
            all_reproduced=comparison.holds("reproduced"),
            expected_false_alarms=comparison.expected_false_alarms,
        ),
        cells=comparison.cells,
        claims=comparison.claims,
        deviations=comparison.deviations,
        origins=origins,
        left_out=tuple(one_line(shorten(text)) for text in (*complaints, *comparison.left_out)),
    )
