"""Who trained the runs of a table, on which kinds of machines, and whether these agree.

A results directory may hold those of other people, in `contributed/`. Of several records of a run only the first counts
in verdicts: the same seed twice is not two independent runs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from paperbench.compare.comparison import Comparison
from paperbench.compare.statistics import FIRST_ALPHA, Contrast, outcomes
from paperbench.runs.record import Record
from paperbench.specs.facts import difference
from paperbench.typed import typed


@typed
class Origin:
    """The runs that one person trained on one kind of machine.

    Attributes:
        by: Name of the person's directory in contributed/; empty for runs of the results directory itself.
        runs: Their ids.
        cells: Ids of the cells that they belong to, each net's first.
        repeats, identical: Numbers of runs of which another record counts, and that have the same result, bit for bit.
        confirmed, refuted: Numbers of runs whose retrained start agreed (`verify --rerun --save`), or did not.
    """

    by: str
    machine: str
    runs: tuple[str, ...]
    cells: tuple[str, ...]
    repeats: int
    identical: int
    confirmed: int
    refuted: int


@typed
class Agreement:
    """How the errors of the same nets differ between two kinds of machines.

    Attributes:
        nets: Number of nets with runs on both.
        runs: Number of these runs on each.
        difference: Error on the first machine minus that on the second, in percentage points.
        margin: Points within which they agree: the smallest tolerance of the cells.
        standing: agree: the interval lies within the margin; differ: beyond it; else undecided.
    """

    machines: tuple[str, ...]
    nets: int
    runs: tuple[int, ...]
    difference: float
    interval: tuple[float, float]
    margin: float
    standing: Literal["agree", "differ", "undecided"]


@typed
class Origins:
    """Where the runs of a table are from."""

    trained: tuple[Origin, ...]
    agreements: tuple[Agreement, ...]


NO_ORIGINS = Origins((), ())


def find_origins(
    comparison: Comparison, found: Mapping[str, Sequence[tuple[str, Record]]], reruns: Mapping[str, bool]
) -> Origins:
    """Find out where the runs of a comparison are from.

    Args:
        found: The records of each run with the name of its person, that which counts first.
        reruns: Whether the retrained start of a run agreed, by the hash of its history.
    """
    table, profile = comparison.table, comparison.table.profiles.named(comparison.profile)
    trained: dict[tuple[str, str], list[tuple[Record, Record, str]]] = defaultdict(list)
    samples: list[Mapping[str, list[float]]] = []
    seen: set[str] = set()
    for cell, nets in ((table.cell(one.id), one.nets) for one in comparison.cells):
        how = cell.column.metric, table.evaluation_in(profile, cell)
        for group in [group for net in nets for group in net.groups if seen.isdisjoint(group.ids)]:
            seen.update(group.ids)
            samples.append(errors := defaultdict(list))
            for run in group.ids:
                (_, counts), *_ = found[run]
                of_run: dict[str, float] = {}  # one for each machine: a repeat there is no further run
                for by, record in found[run]:
                    trained[by, record.machine].append((record, counts, cell.id))
                    error = record.error(*how)
                    if error is not None and math.isfinite(error) and _is_same_code(counts, record):
                        of_run.setdefault(record.machine, error)
                for machine, error in of_run.items():
                    errors[machine].append(error)
    origins = []
    for who, runs in trained.items():
        ended = [one for one in runs if one[1].status != "partial"]
        agreed = [reruns.get(record.files.history_sha256) for record, _, _ in runs]
        repeats = [record.result == counts.result for record, counts, _ in ended if record is not counts]
        ids, cells = tuple(record.run for record, _, _ in runs), tuple(dict.fromkeys(cell for _, _, cell in runs))
        origins.append(Origin(*who, ids, cells, len(repeats), sum(repeats), agreed.count(True), agreed.count(False)))
    margin = min((table.cell(one.id).tolerance for one in comparison.cells), default=0.0)
    return Origins(tuple(origins), tuple(agreements(samples, margin)))


def _is_same_code(one: Record, other: Record) -> bool:
    is_other = one.facts and other.facts and difference(one.facts, other.facts)
    return one.numerics == other.numerics and not is_other


def agreements(samples: Sequence[Mapping[str, Sequence[float]]], margin: float) -> Iterator[Agreement]:
    """Compare each two kinds of machines by the nets with runs on both.

    The model is additive, error = net + machine + noise, with equal noise everywhere. For one run each it is the paired
    t-test, for one net Student's.

    Args:
        samples: For each net its errors in percent, by machine.
        margin: In percentage points.
    """
    machines = sorted({machine for of_net in samples for machine in of_net})
    for pair in itertools.combinations(machines, 2):
        both = [[np.array(of_net[one]) for one in pair] for of_net in samples if all(one in of_net for one in pair)]
        runs = [sum(map(len, side)) for side in zip(*both, strict=True)]
        if (degrees := sum(runs) - len(both) - 1) < 1:
            continue
        weights = [1 / (1 / len(first) + 1 / len(second)) for first, second in both]
        estimate = float(np.average([first.mean() - second.mean() for first, second in both], weights=weights))
        without = [np.concatenate([first - estimate, second]) for first, second in both]
        variance = sum(errors.var() * len(errors) for errors in without) / degrees
        low, high = map(float, Contrast(estimate, math.sqrt(variance / sum(weights)), degrees).interval(FIRST_ALPHA))
        within, above, below = outcomes(low, high, margin)
        standing: Literal["agree", "differ", "undecided"]
        standing = "agree" if within else "differ" if above or below else "undecided"
        yield Agreement(pair, len(both), tuple(runs), estimate, (low, high), margin, standing)
