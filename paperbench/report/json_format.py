"""A comparison as one JSON object: everything that its verdicts rest on, for programs and for readers who doubt them.

comparison.schema.json beside this file says what each value means. Errors are in percent, differences and deviations in
percentage points. A diverged run has no error, and neither a median nor degrees of freedom are ever infinite here: null
stands for them, and a flag or the schema says why.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, get_args

from paperbench import __version__
from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Conditions, Group, Run
from paperbench.compare.failing import Failing, failing
from paperbench.compare.statistics import Interval, Noise
from paperbench.compare.verdicts import CellComparison, Judgement, NetComparison, Verdict
from paperbench.specs.table import Cell

SCHEMA = 1

_Values = dict[str, Any]


def render(comparison: Comparison, complaints: Sequence[str] = ()) -> str:
    """The comparison as JSON, with a newline at the end.

    Args:
        complaints: What could not be read, one sentence each; what the comparison itself left out may be among them.
    """
    return json.dumps(_comparison(comparison, complaints), indent=1, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `render` returns."""
    text = files("paperbench.report").joinpath("comparison.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _comparison(comparison: Comparison, complaints: Sequence[str]) -> _Values:
    table = comparison.table
    return {
        "schema": SCHEMA,
        "paperbench": __version__,
        "table": table.id,
        "title": table.experiment.title,
        "source": {"paper": table.source.paper, "arxiv": table.source.arxiv, "table": table.source.table},
        "profile": comparison.profile,
        "planned": comparison.planned,
        "footnotes": dict(table.expected.footnotes),
        "summary": _summary(comparison),
        "cells": [_cell(cell) for cell in comparison.cells],
        "claims": [_claim(claim) for claim in comparison.claims],
        "deviations": [_deviation(deviation, comparison) for deviation in comparison.deviations],
        "left_out": list(comparison.left_out),
        "complaints": [complaint for complaint in complaints if complaint not in comparison.left_out],
    }


def _summary(comparison: Comparison) -> _Values:
    verdicts = Counter(cell.verdict for cell in comparison.cells)
    standings = Counter(claim.standing for claim in comparison.claims)
    return {
        "verdicts": {verdict: verdicts[verdict] for verdict in get_args(Verdict)},
        "standings": {standing: standings[standing] for standing in get_args(Standing)},
        "holds": comparison.holds(),
        "all_reproduced": comparison.holds("reproduced"),
        "differing": [cell.cell.id for cell in comparison.differing],
        "expected_false_alarms": comparison.expected_false_alarms,
    }


def _cell(compared: CellComparison) -> _Values:
    cell, judgement = compared.cell, compared.judgement
    evaluation = cell.row.evaluation
    return {
        "id": cell.id,
        "row": {"id": cell.row.id, "title": cell.row.title},
        "column": {"id": cell.column.id, "title": cell.column.title},
        "metric": cell.column.metric,
        "dataset": cell.dataset,
        "evaluation": {"crop": evaluation.crop, "scale": evaluation.scale} if evaluation else None,
        "recipe": cell.recipe,
        "labels": dict(cell.row.labels),
        "figure": cell.row.figure,
        "published": _published(cell),
        **_verdict(judgement, compared.failing),
        "shift": judgement.shift,
        "difference": _finite(compared.difference),
        "interval": _interval(judgement.interval),
        "p_value": judgement.p_value,
        "noise": _noise(judgement.noise),
        "nets": [_net(net, cell) for net in compared.nets],
    }


def _published(cell: Cell) -> _Values:
    expected = cell.expected
    is_printed, is_number = expected.value != "unprinted", cell.number is not None
    return {
        "value": expected.value,
        "mean": expected.mean,
        "std": expected.std,
        "std_source": expected.std_source,
        "statistic": expected.statistic or cell.defaults.statistic if is_printed else None,
        "n": cell.published_runs if is_printed else None,
        "tolerance": cell.tolerance if is_number else None,
        "mark": expected.mark,
        "params": expected.params,
        "home": cell.home,
        "source": expected.source,
        "note": expected.note,
    }


def _verdict(judgement: Judgement, counted: Failing) -> _Values:
    """A verdict with the failures among the runs that it is about."""
    return {
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "look": judgement.look.number if judgement.look else None,
        "failing": {"failed": counted.failed, "runs": counted.runs} if counted.runs else None,
    }


def _interval(interval: Interval | None) -> _Values | None:
    if interval is None:
        return None
    return {
        "low": interval.low,
        "high": interval.high,
        "level": interval.level,
        "difference": interval.difference,
        "standard_error": interval.standard_error,
        "degrees": _finite(interval.degrees),
    }


def _noise(noise: Noise | None) -> _Values | None:
    if noise is None:
        return None
    return {
        "std": noise.std,
        "degrees": _finite(noise.degrees),
        "rests_on": noise.rests_on,
        "published_weight": noise.published_weight,
    }


def _net(net: NetComparison, cell: Cell) -> _Values:
    shown = [_group(net.shown, net.median, net.counted)] if net.shown else []
    return {
        "setting": net.setting.label,
        "net": str(net.setting.reference),
        **_verdict(net.judgement, failing(net.errors, cell.dataset)),
        "groups": [*shown, *(_group(group, group.median, ()) for group in net.others)],
    }


def _group(group: Group, median: float | None, counted: Sequence[Run]) -> _Values:
    """A group of a net.

    Args:
        counted: Those of its runs that the verdict is about.
    """
    return {
        "conditions": _conditions(group.conditions),
        "median": _finite(median),
        "median_diverged": median is not None and math.isinf(median),
        "runs": [{**_run(run), "looked_at": run in counted} for run in group.runs],
    }


def _conditions(conditions: Conditions) -> _Values:
    data = conditions.data
    facts = None
    if data is not None:
        facts = {
            "name": data.name,
            "origin": data.origin,
            "canonical": data.canonical,
            "fingerprint": data.fingerprint,
        }
    return {
        "data": facts,
        "precision": conditions.precision,
        "numerics": list(conditions.numerics),
        "mixed": conditions.is_mixed,
        "source": conditions.source,
    }


def _run(run: Run) -> _Values:
    return {
        "seed": run.seed,
        "run": run.record.run if run.record else None,
        "status": run_status(run),
        "error": _finite(run.error),
        "diverged": run_status(run) == "diverged",
        "iteration": run.record.iteration if run.record else None,
    }


def run_status(run: Run) -> str:
    """The status of a run as its record has it; of a result from elsewhere, what a record would have."""
    if run.record is not None:
        return run.record.status
    return "diverged" if run.error is not None and math.isinf(run.error) else "finished"


def _claim(judged: ClaimVerdict) -> _Values:
    claim = judged.claim
    return {
        "id": claim.id,
        "says": claim.says,
        "section": claim.section,
        "kind": claim.kind,
        "cells": list(claim.cells),
        "pairs": [list(pair) for pair in claim.pairs],
        "measure": claim.measure,
        "within": claim.within,
        "by": claim.by,
        "iteration": claim.iteration,
        "note": claim.note,
        "standing": judged.standing,
        "reason": judged.reason,
        "test": judged.test,
        "level": judged.level,
        "findings": list(judged.findings),
        "basis": judged.basis,
    }


def _deviation(deviation: Deviation, comparison: Comparison) -> _Values:
    """With the cells named even where they are all that have runs of ours."""
    with_records = [
        c.cell.id for c in comparison.cells if any(net.shown is not None and net.shown.records for net in c.nets)
    ]
    return {
        "topic": deviation.topic,
        "paper": deviation.paper or None,
        "ours": deviation.ours,
        "cells": list(deviation.cells) or with_records,
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
