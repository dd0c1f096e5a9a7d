"""Verdicts on cells, with their numbers recomputed by scipy. The wording is in tests/printed/verdicts.txt."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.compare.verdicts import CellFacts
from paperbench.runs.record import DataFacts
from tests.compare.judging import (
    COMPLETE,
    COPY,
    FIRST,
    ORIGINAL,
    SECOND,
    Errors,
    a_table,
    compare_cell,
    compare_errors,
    compared,
    expectation,
    external,
    in_cell,
    photo_result,
    record,
    records,
    runs_of,
    table_prior,
    with_expected,
)
from tests.golden import assert_golden
from tests.helpers import CROP224, CROP320

TABLE1, TABLE2, TABLE3, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 3, 5))
NUMBERS = {cell.id: float(cell.number or 0) for cell in TABLE2.cells()}
PREACT, PREACT_NUMBER = "preact/resnet110", 6.37  # without a published spread
BASELINE = "original/resnet110"
FAILS, UNPRINTED = "plain/resnet110", "cifar10_resnet164_no_warm_up/preact"
SWEEP, SETTINGS = "exclusive_gating_0_to_5/resnet110", [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
OF_152 = "original_resnet152/top1"

QUIET = np.array([-0.04, 0.05, 0.0, -0.01, 0.02])
"""Deviations of five runs from their median."""

WIDE = np.array([-0.45, 0.2, 0.0, -0.2, 0.45])
"""Five runs of these are always underpowered at a tolerance of 0.5."""


def around(median: float, deviations: Sequence[float] = tuple(QUIET)) -> list[float]:
    return [float(median + d) for d in deviations]


# Numbers


@given(
    planned=st.integers(1, 6),
    cells=st.sampled_from([1, 1, 2, 3, 4, 10]),
    noise=st.sampled_from([0.003, 0.1, 0.2, 0.4]),
    decimals=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_verdicts_match_their_definition(planned: int, cells: int, noise: float, decimals: int, seed: int) -> None:
    """Tables with any numbers of runs. What follows an analysis is arbitrary, and some cells have a failed run."""
    rng, all_cells = np.random.default_rng(seed), TABLE2.all_cells
    table = replace(
        TABLE2, all_cells=tuple(replace(c, defaults=replace(c.defaults, decimals=decimals)) for c in all_cells)
    )
    errors: dict[str, list[float]] = {}
    published: dict[str, dict[str, Any]] = {}
    for cell in rng.permutation(list(NUMBERS))[:cells]:
        runs = int(rng.choice([planned - 1, planned, planned + 1, 2 * planned, 2 * planned + 2]))
        shift, std = rng.choice([0, 0.3, 0.5, -0.5, 1, -1]), noise * rng.choice([1, 1, 1, 8])
        its = np.maximum(0, NUMBERS[cell] + shift + std * rng.standard_normal(runs)).round(2)
        its[planned : 2 * planned if runs < 2 * planned else 0] = rng.choice([0.5, 90])
        its[2 * planned :] = 90
        its[: rng.random() < 0.1] = 30
        errors[cell] = its.tolist()
        n, std, tolerance = int(rng.choice([1, 5, 8])), rng.choice([0.05, 0.2]), float(rng.choice([0.3, 0.5, 1.0]))
        spread = {"std": float(std), "std_source": "a text"} if n == 8 else {"std": None, "std_source": None}
        published[cell] = {"n": n, "statistic": "median" if n > 1 else "single", "tolerance": tolerance, **spread}
        table = with_expected(table, cell, **published[cell])
    comparison = compared(table, *runs_of(table, errors), seeds=planned)
    for cell_id, its in errors.items():
        cell, analyses = in_cell(comparison, cell_id), [n for n in (planned, 2 * planned) if len(its) >= n]
        if not analyses:
            assert (cell.verdict, cell.interval) == ("underpowered" if its else "not run", None)
        for n in analyses:
            std, resolution = published[cell_id]["std"], 0.1**decimals
            prior = table_prior(errors, cell_id, n, planned, resolution)
            if max(its[:n]) > 20:  # see the tests of failing below
                break
            if not prior[1] and n < 3 and std is None:
                assert n < analyses[-1] or (cell.verdict, cell.interval) == ("underpowered", None)
                continue
            found = expectation(
                its[:n],
                NUMBERS[cell_id],
                std=std,
                published_runs=published[cell_id]["n"],
                level=FIRST if n == planned else SECOND,
                tolerance=published[cell_id]["tolerance"],
                resolution=resolution,
                prior=prior,
            )
            if found.verdict != "underpowered" or n == analyses[-1]:
                found.check(cell)
                assert (cell.analysis, len(cell.nets[0].counted)) == (n // planned, n)
                assert cell.difference == pytest.approx(np.median(its[:n]) - NUMBERS[cell_id])
                assert not cell.is_by_failures
                assert cell.noise
                alone = "ours" if std is None else "both" if n > 1 else "published"
                assert cell.noise.rests_on == ("table" if prior[1] else alone)
                own_weight = 2 / (n + 1) if alone == "both" else float(alone == "published")
                assert cell.noise.published_weight == pytest.approx(0 if prior[1] else own_weight)
                assert cell.noise.table_weight == pytest.approx(prior[1] / (n - 1 + prior[1]) if prior[1] else 0)
                break


# Which runs count


TEN = [*around(PREACT_NUMBER, WIDE), *around(PREACT_NUMBER)]


@pytest.mark.parametrize(
    ("errors", "data", "counted"),
    [
        (dict(enumerate([*around(PREACT_NUMBER + 0.1), *[90.0] * 15])), ORIGINAL, range(5)),
        (dict(enumerate([*TEN, *[90.0] * 10])), ORIGINAL, range(10)),
        (dict(enumerate(TEN[:9])), ORIGINAL, range(5)),
        # before an analysis the planned runs that have ended, or else any
        ({0: 6.4, 1: None, 3: 6.6, 7: 9.9}, ORIGINAL, [0, 3]),
        ({1: None, 7: 9.9}, ORIGINAL, [7]),
        ({1: None}, ORIGINAL, []),
        # if the runs cannot be compared
        (dict(enumerate(TEN)), COPY, range(5)),
    ],
)
def test_median_is_of_the_runs_that_count(
    errors: dict[int, float | None], data: DataFacts, counted: Sequence[int]
) -> None:
    runs = [record(TABLE2, PREACT, e, seed=seed, data=data) for seed, e in errors.items()]
    cell = compare_cell(TABLE2, PREACT, *runs)
    (net,) = cell.nets
    assert cell.shown
    assert len(cell.shown.runs) == len(errors)
    assert [run.seed for run in net.counted] == list(counted)
    assert net.errors == [errors[seed] for seed in counted]
    assert net.median_or_inf == (np.median(net.errors) if counted else None)
    assert cell.difference == (pytest.approx(np.median(net.errors) - PREACT_NUMBER) if counted else None)
    assert (cell.failures.runs if cell.failures else 0) == len(counted)


def test_external_results_count_from_the_lowest_seed() -> None:
    errors, seeds = around(PREACT_NUMBER + 0.9), (3, 11, 20, 31, 44)
    entered = [external(TABLE2, PREACT, e, seed=s) for s, e in zip(seeds, errors, strict=True)]
    later = [external(TABLE2, PREACT, 90.0, seed=s) for s in (50, 51, 52)]
    cell = compare_cell(TABLE2, PREACT, externals=[*later, *reversed(entered)])
    expectation(errors, PREACT_NUMBER).check(cell)
    assert cell.shown
    assert cell.shown.conditions.source == "a paper"
    assert compare_cell(TABLE2, PREACT, externals=entered[:4]).verdict == "underpowered"


def test_errors_above_20_percent_are_failures_only_on_cifar10() -> None:
    errors = [21.28, 21.3, 21.33]
    entered = [external(TABLE5, OF_152, e, seed=i) for i, e in enumerate(errors)]
    expectation(errors, 21.3, published_runs=1, resolution=0.1).check(compare_cell(TABLE5, OF_152, externals=entered))


def test_each_error_of_a_run_is_judged_by_itself() -> None:
    """Three runs of ResNet-152, whose errors are in four cells: one of them is worse than published."""
    errors = {
        "original_resnet152_224/top1": [23.0, 23.1, 22.95],
        "original_resnet152_224/top5": [6.7, 6.65, 6.72],
        OF_152: [21.3, 21.28, 21.33],
        "original_resnet152/top5": [6.5, 6.55, 6.45],
    }
    runs = []
    for seed, (top1, top5, other_top1, other_top5) in enumerate(zip(*errors.values(), strict=True)):
        result = photo_result({CROP224: (top1, top5), CROP320: (other_top1, other_top5)})
        runs.append(record(TABLE5, OF_152, 1.0, seed=seed, result=result))
    comparison = compared(TABLE5, *runs)
    for cell_id, its_errors in errors.items():
        cell, tolerance = in_cell(comparison, cell_id), 0.3 if "top5" in cell_id else 0.5
        published = float(cell.published.value or 0)
        expectation(its_errors, published, published_runs=1, resolution=0.1, tolerance=tolerance).check(cell)
        assert cell.nets[0].errors == its_errors
    assert [c.id for c in comparison.differing] == ["original_resnet152/top5"]


# Sweeps


def sweep(errors: Errors, **others: list[float | None]) -> CellFacts:
    """The same errors in every setting but those named by their bias: `b3` is gate_bias=-3."""
    named = {f"gate_bias=-{bias[1]}": found for bias, found in others.items()}
    runs = [r for label in SETTINGS for r in records(TABLE1, SWEEP, named.get(label, errors), setting=label)]
    return compare_cell(TABLE1, SWEEP, *runs)


# Situations


plain = functools.partial(compare_errors, TABLE1, FAILS)
baseline = functools.partial(compare_errors, TABLE2, BASELINE)
preact = functools.partial(compare_errors, TABLE2, PREACT)
unprinted = functools.partial(compare_errors, TABLE3, UNPRINTED, [5.46] * 5)


def at_seeds(*ended: int, under_way: Sequence[int] = (), **how: Any) -> CellFacts:
    runs = [record(TABLE2, PREACT, 9.5, seed=seed) for seed in ended]
    return compare_cell(TABLE2, PREACT, *runs, *(record(TABLE2, PREACT, None, seed=s, **how) for s in under_way))


def of_152(errors: list[float]) -> CellFacts:
    """Runs that were tested on another crop only."""
    tested_at_224 = {"evaluations": (CROP224,), "result": photo_result({CROP224: (21.3, 5.5)})}
    runs = [replace(run, **tested_at_224) if run.result else run for run in records(TABLE5, OF_152, errors)]
    return compare_cell(TABLE5, OF_152, *runs, seeds=3)


def on_copies() -> CellFacts:
    runs = [r for label in SETTINGS[:-1] for r in records(TABLE1, SWEEP, [90.0] * 5, setting=label)]
    return compare_cell(TABLE1, SWEEP, *runs, *records(TABLE1, SWEEP, [90.0] * 5, setting=SETTINGS[-1], data=COPY))


BAD, GOOD = [90.0] * 5, [12.0] * 5
CERTAIN, BY_FAILURES, OTHERWISE = "certainly by failures", "by failures", ""


def situations() -> list[tuple[str, str, str, CellFacts]]:
    """A title, the expected verdict, whether it follows from failures, and the cell."""
    return [
        ("noise", "underpowered", OTHERWISE, preact(around(PREACT_NUMBER + 0.5))),
        ("a few more", "underpowered", OTHERWISE, preact([*around(PREACT_NUMBER + 0.5), *[PREACT_NUMBER] * 4])),
        ("used up", "underpowered", OTHERWISE, preact(around(PREACT_NUMBER, WIDE) * 2)),
        ("ten planned", "reproduced", OTHERWISE, preact(around(6.37) * 2, seeds=10)),
        ("one, no std", "underpowered", OTHERWISE, preact([6.37], seeds=1)),
        ("two, no std", "underpowered", OTHERWISE, preact([6.37] * 2, seeds=2)),
        ("one, published std", "underpowered", OTHERWISE, baseline([7.11], seeds=1)),
        ("a failed run", "underpowered", OTHERWISE, baseline([6.6, 25.0, 6.5, 6.7, 6.6])),
        ("the last seed is missing", "underpowered", OTHERWISE, at_seeds(0, 1, 2, 3)),
        ("a seed is under way", "underpowered", OTHERWISE, at_seeds(0, 1, 2, 3, 7, under_way=[4])),
        ("only a later seed", "underpowered", OTHERWISE, at_seeds(7, under_way=[0])),
        ("nothing has ended", "not run", OTHERWISE, at_seeds(under_way=[2, 1, 3], iteration=31_999)),
        ("nothing has begun", "not run", OTHERWISE, at_seeds()),
        ("unfinished copy", "not run", OTHERWISE, preact([None], data=COPY)),
        ("a copy", "not comparable", OTHERWISE, preact([6.37] * 5, data=COPY)),
        ("unverified", "reproduced", OTHERWISE, preact([6.37] * 5, data=COMPLETE)),
        ("unverified and noisy", "underpowered", OTHERWISE, preact([6.37, 7.2] * 3, data=COMPLETE)),
        ("unverified, not ended", "not run", OTHERWISE, preact([None], data=COMPLETE)),
        ("nothing printed", "not comparable", OTHERWISE, unprinted()),
        ("nothing printed, unverified", "not comparable", OTHERWISE, unprinted(data=COMPLETE)),
        ("reduced", "not comparable", OTHERWISE, preact([6.37] * 5, profile="shallow", seeds=5)),
        ("reduced, fails", "not comparable", OTHERWISE, plain([math.inf] * 5, profile="shallow", seeds=5)),
        ("should fail, all do", "reproduced", CERTAIN, plain([30.0] * 3)),
        ("should fail, most do", "reproduced", BY_FAILURES, plain([30.0, 12.0, math.inf, 12.5, 30.0])),
        ("should fail, too few", "underpowered", OTHERWISE, plain([30.0, 12.0, 30.0])),
        ("should fail, none does", "better", CERTAIN, plain([20.0] * 5)),
        ("should fail, few do", "better", BY_FAILURES, plain([20.0, 90.0, 12.0, 12.0, 12.0])),
        ("should fail, second analysis", "reproduced", CERTAIN, plain([90.0] * 4, seeds=2)),
        ("most fail", "worse", CERTAIN, baseline([6.6, math.inf, math.inf, 6.7, math.inf])),
        ("most fail, one to come", "worse", CERTAIN, baseline([90.0, 6.6, 90.0, 90.0])),
        # that three do not fail says nothing about the number
        ("none fails, two to come", "underpowered", OTHERWISE, baseline([6.61] * 3)),
        ("few diverge", "underpowered", OTHERWISE, baseline([6.6, math.inf, 6.5, 6.7, math.inf])),
        ("too few to fail", "underpowered", OTHERWISE, baseline([90.0] * 2, seeds=2)),
        ("sweep", "reproduced", BY_FAILURES, sweep([90.0, math.inf, 50.0, 12.0, 12.0])),
        ("sweep, all fail", "reproduced", CERTAIN, sweep(BAD)),
        ("sweep, one does not fail", "better", CERTAIN, sweep(BAD, b3=GOOD)),
        ("sweep, one is missing", "underpowered", BY_FAILURES, sweep(BAD, b5=[])),
        ("sweep, one is unfinished", "underpowered", BY_FAILURES, sweep(BAD, b5=[None])),
        ("sweep, hardly begun", "underpowered", BY_FAILURES, sweep([90.0, 12.0], b1=[90.0] * 5 + GOOD[:2], b2=[None])),
        ("sweep, nothing begun", "not run", OTHERWISE, sweep([])),
        ("sweep, one on a copy", "not comparable", OTHERWISE, on_copies()),
        ("another crop", "not run", OTHERWISE, of_152([21.3] * 3)),
        ("another crop, diverged", "worse", CERTAIN, of_152([math.inf] * 3)),  # which it has by every crop and metric
        ("another crop, one diverged", "underpowered", OTHERWISE, of_152([math.inf, 21.3, 21.4])),
    ]


def test_verdict_of_each_situation() -> None:
    lines = []
    for title, verdict, how, cell in situations():
        assert (cell.verdict, cell.is_by_failures, cell.is_certain_by_failures) == (
            verdict,
            how != OTHERWISE,
            how == CERTAIN,
        ), title
        assert (cell.interval is None) == (cell.p_value is None)
        assert how == OTHERWISE or (cell.interval, cell.noise) == (None, None), title
        is_reduced, number = "reduced" in title, cell.published.value
        has_difference = isinstance(number, float) and cell.shown and cell.shown.median is not None and not is_reduced
        assert (cell.difference is not None) == bool(has_difference), title
        lines.append(f"{title}: {cell.verdict}, {cell.failures or 'none'}. {cell.reason}")
    assert_golden("verdicts", "\n".join(lines) + "\n")
