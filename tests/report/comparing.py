"""Comparisons for tests of reports: made-up records of the shipped tables, judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from paperbench.compare.comparison import Comparison, compare
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import Record, Status
from paperbench.specs.table import Table
from tests.compare import judging
from tests.compare.judging import COPY, ORIGINAL

__all__ = ["COPY", "ORIGINAL"]


def record(
    table: Table, cell: str, error: float | None, *, status: Status = "finished", setting: str = "", **how: Any
) -> Record:
    """A run of a cell; without an error it has `status` partial or diverged. The rest as for `judging.record`."""
    ending = math.inf if status == "diverged" else error
    return judging.record(table, cell, ending, setting=setting, seconds=60.0, **how)


def records(table: Table, cell: str, errors: Iterable[float | None], setting: str = "") -> list[Record]:
    """Runs of a cell with the seeds from 0 on; None diverged."""
    return [
        record(table, cell, error, seed=seed, setting=setting, status="diverged" if error is None else "finished")
        for seed, error in enumerate(errors)
    ]


def external(
    table: Table, cell: str, error: float | None, *, seed: int = 0, setting: str = "", source: str = "somebody's blog"
) -> ExternalResult:
    """A result from elsewhere."""
    return judging.external(table, cell, error, seed=seed, source=source, setting=setting)


def compared(
    table: Table,
    records: Iterable[Record] = (),
    externals: Sequence[ExternalResult] = (),
    *,
    profile: str = "paper",
    cells: str = "*",
    seeds: int | None = None,
) -> Comparison:
    """A comparison of all cells, or of some; there are no histories."""
    # through JSON, as records and results come from a store
    read = [Record.from_json(r.to_json()) for r in records]
    return compare(
        table,
        table.cells(cells, on_request=True),
        profile,
        read,
        [ExternalResult.from_json(e.to_json()) for e in externals],
        seeds=seeds,
    )


def everything_run(table: Table, *, runs: int = 5, of_elsewhere: bool = False) -> Comparison:
    """A whole table with `runs` runs a net, most of them close to the paper; cells on request have none.

    Args:
        of_elsewhere: Whether the results are from elsewhere, as those of nets that cannot be tested here must be.
    """
    found: list[Record] = []
    elsewhere: list[ExternalResult] = []
    for cell in table.cells():
        near = [(cell.number or 75.0) + 0.07 * (2 * (seed % 5) - 4) for seed in range(runs)]
        errors = [round(error, 2) for error in near]
        for setting in cell.settings:
            if of_elsewhere:
                elsewhere += [external(table, cell.id, e, seed=s, setting=setting.label) for s, e in enumerate(errors)]
            else:
                found += records(table, cell.id, errors, setting.label)
    return compared(table, found, elsewhere)


def more_than_looked_at(table1: Table, table2: Table) -> tuple[Comparison, Comparison]:
    """Cells with runs that change nothing, as they are beyond the look that decided.

    original/resnet110 of Table 2    five runs near 6.6 decide, and fifteen of 9.0 follow
    the sweep of Table 1             five runs of each net fail, and five that do not follow
    """
    cell = "exclusive_gating_0_to_5/resnet110"
    numbers = records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60, *[9.0] * 15))
    sweep = [
        run
        for setting in table1.cell(cell).settings
        for run in records(table1, cell, (90.0, 91.0, 92.0, 93.0, 94.0, *[12.0] * 5), setting.label)
    ]
    return compared(table1, sweep), compared(table2, numbers)


def every_verdict_of_numbers(table2: Table) -> Comparison:
    """Table 2 with a cell for every verdict that a number can have; `table2` as shipped.

    original/resnet110              reproduced; besides, one run in other precision
    original/resnet164              reproduced, shifted
    bn_after_addition/resnet110     worse
    bn_after_addition/resnet164     better
    relu_before_addition/resnet110  underpowered: one run has diverged
    relu_before_addition/resnet164  underpowered: two of five have ended, one is under way
    relu_only_preact/resnet110      not comparable: a copy of the data
    relu_only_preact/resnet164      not run: under way
    preact/resnet110                worse, but for Holm's correction
    preact/resnet164                reproduced at the second look, by results from elsewhere
    """
    runs = [
        *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60)),
        *records(table2, "original/resnet164", (6.10, 6.08, 6.12, 6.10, 6.09)),
        *records(table2, "bn_after_addition/resnet110", (9.95, 10.10, 10.02, 9.90, 10.20)),
        *records(table2, "bn_after_addition/resnet164", (5.10, 5.05, 5.12, 5.01, 5.08)),
        *records(table2, "relu_before_addition/resnet110", (7.80, 7.90, None, 7.70, 7.85)),
        *records(table2, "relu_before_addition/resnet164", (6.10, 6.20)),
        record(table2, "relu_before_addition/resnet164", None, seed=2, status="partial"),
        *(record(table2, "relu_only_preact/resnet110", 9.0 + s / 10, seed=s, data=COPY) for s in range(5)),
        record(table2, "relu_only_preact/resnet164", None, status="partial"),
        *records(table2, "preact/resnet110", (7.3, 7.6, 7.25, 7.5, 7.1)),
        record(table2, "original/resnet110", 6.7, precision="bf16"),
    ]
    noisy = (5.2, 5.9, 5.3, 5.8, 5.5, 5.45, 5.4, 5.5, 5.55, 5.5)
    elsewhere = [
        external(table2, "preact/resnet164", e, seed=s, source="=A lab, by e-mail") for s, e in enumerate(noisy)
    ]
    return compared(table2, runs, elsewhere)


def every_verdict_of_failing(table1: Table) -> Comparison:
    """Table 1 with a cell for every verdict that failing can bring; `table1` as shipped.

    plain                      reproduced: all fail
    constant_scaling_unscaled  better: none fails
    exclusive_gating_0_to_5    reproduced: every setting of the sweep fails
    conv_shortcut              worse, but unstable: 3 of 5 fail, and all of those have diverged
    """
    sweep = table1.cell("exclusive_gating_0_to_5/resnet110").settings
    runs = [
        *records(table1, "plain/resnet110", (90.0, None, 90.0, None, None)),
        *records(table1, "constant_scaling_unscaled/resnet110", (12.0, 12.4, 11.9, 12.2, 12.1)),
        *(
            run
            for setting in sweep
            for run in records(
                table1, "exclusive_gating_0_to_5/resnet110", (90.0, None, 35.0, 90.0, None), setting.label
            )
        ),
        *records(table1, "conv_shortcut/resnet110", (12.2, None, 12.3, None, None)),
    ]
    return compared(table1, runs)
