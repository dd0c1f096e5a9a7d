"""Comparisons for tests of reports: made-up records of the shipped tables, judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from paperbench.compare.comparison import Comparison, compare
from paperbench.runs.external import ExternalResult
from paperbench.runs.planning import run_spec
from paperbench.runs.record import DataFacts, Record, Result, Status
from paperbench.specs.run_spec import Precision
from paperbench.specs.table import Table
from tests.helpers import CODE, a_record

ORIGINAL = DataFacts("CIFAR-10", "the original files, md5 as published", True, "f" * 64)
COPY = DataFacts("CIFAR-10 (some copy)", "re-encoded", False, "c" * 64)


def record(
    table: Table,
    cell: str,
    error: float | None,
    *,
    seed: int = 0,
    setting: str = "",
    profile: str = "paper",
    precision: Precision = "fp32",
    data: DataFacts = ORIGINAL,
    status: Status = "finished",
    numerics: int = 1,
) -> Record:
    """A run of a cell; without an error it has `status` partial or diverged."""
    its_profile, its_cell = table.profiles.named(profile), table.cell(cell)
    its_setting = next(s for s in its_cell.settings if s.label == setting)
    recipe = table.recipe_in(its_profile, its_cell.recipe)
    spec = run_spec(its_cell.net_in(its_profile, its_setting), recipe, data.fingerprint, profile, precision)
    return a_record(
        spec=spec,
        seed=seed,
        net=str(its_cell.reference_in(its_profile, its_setting)),
        status=status,
        iteration=recipe.iterations if error is not None else 1_000,
        result=Result(error, 0.3, min(100.0, error + 1), 0.4, max(0.0, error - 0.1)) if error is not None else None,
        seconds=60.0,
        data=data,
        code=replace(CODE, numerics=numerics),
    )


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
    its_cell = table.cell(cell)
    its_setting = next(s for s in its_cell.settings if s.label == setting)
    digest = table.experiment_digest(its_cell, its_setting)
    return ExternalResult(1, "external", table.id, cell, setting, digest, seed, error, source)


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
        table.cells(cells),
        profile,
        read,
        [ExternalResult.from_json(e.to_json()) for e in externals],
        seeds=seeds,
    )


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
