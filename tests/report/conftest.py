"""Comparisons of the shipped tables with invented runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.specs.table import Table
from tests.compare.judging import COPY, compared, external, record, records
from tests.report.browser import browser, open_page

__all__ = ["browser", "open_page"]  # fixtures: one browser for all tests here

SWEEP = "exclusive_gating_0_to_5/resnet110"


@pytest.fixture(scope="session")
def table1(tables: dict[str, Table]) -> Table:
    return tables["table1"]


@pytest.fixture(scope="session")
def numbers(table2: Table) -> Comparison:
    """Table 2 with a cell for every verdict that a number can have, each with its own noise.

    original/resnet110              reproduced; besides, one run in other precision
    original/resnet164              reproduced, shifted
    bn_after_addition/resnet110     worse
    bn_after_addition/resnet164     better
    relu_before_addition/resnet110  underpowered: one run has diverged
    relu_before_addition/resnet164  underpowered: two of five have ended, one is running
    relu_only_preact/resnet110      not comparable: a copy of the data
    relu_only_preact/resnet164      not run: running
    preact/resnet110                worse, but not after Holm's correction
    preact/resnet164                reproduced by twice as many runs, all external
    """
    return _numbers(table2)


@pytest.fixture(scope="session")
def shared(table2: Table) -> Comparison:
    """As `numbers`, with the noise of the table and no calm cell; preact/resnet164 shares none, as it is external."""
    return _numbers(table2, (6.10, 5.97, 6.23, 6.12, 6.05))


def _numbers(table2: Table, shifted: Sequence[float] = (6.10, 6.08, 6.12, 6.10, 6.09)) -> Comparison:
    noisy = (5.2, 5.9, 5.3, 5.8, 5.5, 5.45, 5.4, 5.5, 5.55, 5.5)
    externals = [
        external(table2, "preact/resnet164", e, seed=s, source="=A lab, by e-mail") for s, e in enumerate(noisy)
    ]
    return compared(
        table2,
        *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60)),
        *records(table2, "original/resnet164", shifted),
        *records(table2, "bn_after_addition/resnet110", (9.95, 10.10, 10.02, 9.90, 10.20)),
        *records(table2, "bn_after_addition/resnet164", (5.10, 5.05, 5.12, 5.01, 5.08)),
        *records(table2, "relu_before_addition/resnet110", (7.80, 7.90, inf, 7.70, 7.85)),
        *records(table2, "relu_before_addition/resnet164", (6.10, 6.20, None)),
        *records(table2, "relu_only_preact/resnet110", [9.0, 9.1, 9.2, 9.3, 9.4], data=COPY),
        record(table2, "relu_only_preact/resnet164", None),
        *records(table2, "preact/resnet110", (7.3, 7.6, 7.25, 7.5, 7.1)),
        record(table2, "original/resnet110", 6.7, precision="bf16"),
        externals=externals,
    )


@pytest.fixture(scope="session")
def failing(table1: Table) -> Comparison:
    """Table 1 with a cell for every verdict by the rule for failing nets.

    plain                      reproduced: all fail
    constant_scaling_unscaled  better: none fails
    exclusive_gating_0_to_5    reproduced: every setting of the sweep fails
    conv_shortcut              worse, but unstable: 3 of 5 fail, and all of those have diverged
    """
    sweep = [
        records(table1, SWEEP, (90.0, inf, 35.0, 90.0, inf), setting=setting.label)
        for setting in table1.cell(SWEEP).settings
    ]
    return compared(
        table1,
        *records(table1, "plain/resnet110", (90.0, inf, 90.0, inf, inf)),
        *records(table1, "constant_scaling_unscaled/resnet110", (12.0, 12.4, 11.9, 12.2, 12.1)),
        *(run for runs in sweep for run in runs),
        *records(table1, "conv_shortcut/resnet110", (12.2, inf, 12.3, inf, inf)),
    )


@pytest.fixture(scope="session")
def more_numbers(table2: Table) -> Comparison:
    """Five runs of original/resnet110 near 6.6 decide; fifteen more of 9.0 do not count."""
    return compared(table2, *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60, *[9.0] * 15)))


@pytest.fixture(scope="session")
def more_failing(table1: Table) -> Comparison:
    """Five runs of each net of a sweep fail; five more that do not fail do not count."""
    errors = (90.0, 91.0, 92.0, 93.0, 94.0, *[12.0] * 5)
    sweep = [records(table1, SWEEP, errors, setting=setting.label) for setting in table1.cell(SWEEP).settings]
    return compared(table1, *(run for runs in sweep for run in runs))


@pytest.fixture(scope="session")
def sweep(table1: Table) -> Comparison:
    """Two nets of a sweep that should fail: one whose five runs do not, and one whose four runs do."""
    first, second, *_ = table1.cell(SWEEP).settings
    runs = records(table1, SWEEP, [12.0] * 5, setting=first.label)
    return compared(table1, *runs, *records(table1, SWEEP, [90.0] * 4, setting=second.label))
