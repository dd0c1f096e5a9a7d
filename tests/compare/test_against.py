"""What changed against a baseline: bit for bit, by statistics, and how often that is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paperbench.compare.against import Changes, ReadHistory, find_changes
from paperbench.compare.evidence import Evidence
from paperbench.compare.noise import NO_PRIOR, Floats, Prior, prior_from_others, variance_of
from paperbench.compare.statistics import compute_contrast, holm
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import COPY, a_table, contrast_by_definition, record, records, table_prior
from tests.helpers import a_session
from tests.report.stores import history_of

TABLE2 = a_table("table2")
CELLS = [cell.id for cell in TABLE2.cells()]
PREACT = "preact/resnet110"
HISTORY = history_of(record(TABLE2, PREACT, 6.0))
INF = math.inf


def side(
    runs: Iterable[Record], histories: dict[str, Sequence[HistoryLine]] | None = None, table: Table = TABLE2
) -> tuple[Evidence, ReadHistory]:
    evidence = Evidence(table, "paper", 3, runs, (), tuple)
    return evidence, lambda run: (histories or {}).get(run) or HISTORY[: evidence.records[run].iteration // 100]


def elsewhere(runs: Iterable[Record]) -> list[Record]:
    """The same runs on another machine."""
    return [
        replace(run, sessions=tuple(replace(s, environment=replace(s.environment, threads=4)) for s in run.sessions))
        for run in runs
    ]


def changes_of(new: Iterable[Record], baseline: Iterable[Record], margin: float = 1.0) -> Changes:
    return find_changes(TABLE2.cells(), *zip(side(new), side(baseline), strict=True), margin)


# Bit for bit


@given(st.data())
def test_smallest_change_of_any_number_of_a_run_is_named(data: st.DataObject) -> None:
    table, cell = a_table("table5"), "original_resnet200/top1"
    runs = records(table, cell, (21.0, 21.5, 20.5))
    histories = {run.run: history_of(run)[:20] for run in runs}
    seed = data.draw(st.integers(0, 2))
    run, result, lines = runs[seed], runs[seed].result, histories[runs[seed].run]
    assert result
    tied = {"seconds", "test_error", "test_loss"}  # of the result, the last two are those of its first evaluation
    holders = [(f"iteration {line.iteration:,}: ", line, {"seconds", "iteration"}) for line in lines]
    holders += [("at the end: ", result, tied)]
    holders += [(f"at the end: evaluations.{one.evaluation}.", one, tied) for one in result.evaluations[1:]]
    where, holder, ignored = data.draw(st.sampled_from(holders))
    names = [name for name, value in vars(holder).items() if isinstance(value, int | float) and name not in ignored]
    name = data.draw(st.sampled_from(names))
    before = getattr(holder, name)
    after = before + 1 if isinstance(before, int) else math.nextafter(before, INF)
    changed: Any = replace(holder, **{name: after})
    swap = {id(holder): changed}
    new_lines = [swap.get(id(line), line) for line in lines]
    measured = tuple(swap.get(id(one), one) for one in result.evaluations)
    new_run = replace(run, result=replace(swap.get(id(result), result), evaluations=measured))
    baseline, cells = side(runs, histories, table), [table.cell(cell)]
    (same,) = find_changes(cells, *zip(side(runs, histories, table), baseline, strict=True), 1.0).nets
    assert (same.outcome, same.reason) == ("identical", "3 runs equal bit for bit")
    new = side([new_run if one is run else one for one in runs], {**histories, run.run: new_lines}, table)
    found = find_changes(cells, *zip(new, baseline, strict=True), 1.0)
    assert found.nets[0].reason == f"seed {seed}, {where}{name} was {before!r} and is {after!r}"
    assert (found.nets[0].outcome, found.exit_status) == ("different", 1)


def test_other_intervals_of_lines_and_tests_are_no_difference() -> None:
    runs = records(TABLE2, PREACT, (6.1, 6.2, 6.15))
    changed = [replace(line, train_loss=1.0) for line in HISTORY]  # a mean over other iterations
    tested = [n for n, line in enumerate(HISTORY) if line.test_error is not None]
    untested = [
        replace(one, test_loss=None, test_error=None) if n in tested[::2] else one for n, one in enumerate(HISTORY)
    ]
    rarely = [replace(run, test_every=run.test_every * 2) for run in runs]
    for lines, new in ((changed[1::2], runs), (untested, rarely), (HISTORY, rarely)):
        other = side(new, {run.run: lines[: run.iteration // 100] for run in runs})
        (net,) = find_changes(TABLE2.cells(), *zip(other, side(runs), strict=True), 1.0).nets
        assert net.outcome == "identical", net.reason
        bad = [one if one.test_error is None else replace(one, test_error=99.0) for one in lines]
        worse = side(new, dict.fromkeys((run.run for run in runs), bad))
        (net,) = find_changes(TABLE2.cells(), *zip(worse, side(runs), strict=True), 1.0).nets
        assert (net.outcome, "test_error was" in net.reason) == ("different", True)


ELSEWHERE = None


@pytest.mark.parametrize(
    ("new", "baseline", "how", "outcome", "reason"),
    [
        ((6.1, INF), (6.1, 6.2), {}, "different", 'seed 1, at the end: status was "finished" and is "diverged"'),
        (
            (6.1, None),
            (6.1, 6.2),
            {},
            "underpowered",
            "2 runs equal bit for bit, 1 only as far as both sides have got",
        ),
        ((6.1, 6.2), (6.1, 6.2, 9.2), {}, "underpowered", "+0.00 points, 90 % interval [-0.21, +0.21], margin 0.2"),
        ((6.1, 6.2), (6.1, 6.2), ELSEWHERE, "underpowered", "+0.00 points, 90 % interval [-0.21, +0.21], margin 0.2"),
        ((6.1, 6.1), (6.1, 6.2), {"numerics": 2}, "equivalent", "-0.05 points, 90 % interval [-0.36, +0.26], margin 1"),
        (
            (6.1, None),
            (6.1, 6.2),
            ELSEWHERE,
            "underpowered",
            "too few runs have ended: 1 new, 2 in the baseline; 2 of each are needed",
        ),
        ((INF, INF), (INF, INF), ELSEWHERE, "equivalent", "2 of 2 new runs and 2 of 2 of the baseline diverged"),
        ((INF, INF), (6.1, INF), ELSEWHERE, "underpowered", "2 of 2 new runs and 1 of 2 of the baseline diverged"),
        ([INF] * 5, [6.1] * 5, ELSEWHERE, "different", "5 of 5 new runs and 0 of 5 of the baseline diverged"),
        ([6.1] * 3, [INF] * 3, ELSEWHERE, "underpowered", "0 of 3 new runs and 3 of 3 of the baseline diverged"),
        (
            (None,),
            (6.1,),
            {"iteration": 50},  # before its first history line
            "underpowered",
            "too few runs have ended: 0 new, 1 in the baseline; 2 of each are needed",
        ),
        ((6.1,), (), {}, "missing", "new: CIFAR-10, fp32, numerics 1; baseline: no runs"),
        (
            (6.1,),
            (6.1,),
            {"precision": "bf16"},
            "missing",
            "new: CIFAR-10, bf16, numerics 1; baseline: CIFAR-10, fp32, numerics 1",
        ),
        (
            (6.1,),
            (6.1,),
            {"data": COPY},
            "missing",
            "new: CIFAR-10 (some copy), fp32, numerics 1; baseline: CIFAR-10, fp32, numerics 1",
        ),
    ],
)
def test_outcomes(new: Any, baseline: Any, how: Any, outcome: str, reason: str) -> None:
    margin = float(reason.partition("margin ")[2] or 1)
    of_new = elsewhere(records(TABLE2, PREACT, new)) if how is None else records(TABLE2, PREACT, new, **how)
    found = changes_of(of_new, records(TABLE2, PREACT, baseline), margin)
    (net,) = found.nets
    assert (net.outcome, net.reason) == (outcome, reason)
    assert found.exit_status == {"identical": 0, "equivalent": 0, "different": 1}.get(outcome, 3)
    assert found.without_runs == len(CELLS) - 1
    if net.p_value is not None and INF in (*new, *baseline):
        n = len(new)
        chance = np.linspace(0, 1, 1_001)  # of a run to diverge
        assert net.p_value == pytest.approx(max(2 * (chance * (1 - chance)) ** n))


def test_newest_numerics_are_compared_and_others_named() -> None:
    older = records(TABLE2, PREACT, (6.1, 6.2, 6.15, 6.1, 6.2))
    newer = records(TABLE2, PREACT, (16.1, 16.2, 16.15), numerics=2)
    found = changes_of([*newer, *older[3:]], older)
    assert [net.outcome for net in found.nets] == ["different"]
    assert found.left_out == ("new: preact/resnet110: not compared: <2 runs: CIFAR-10, fp32, numerics 1>",)


@pytest.mark.parametrize(
    ("change", "must_equal"),
    [
        ({"python": "3.14.0", "engine": "graph", "processes": 2, "seconds": 1.0}, True),
        *(({name: "another"}, False) for name in ("torch", "device", "engine", "cuda")),
        ({"threads": 4}, False),
        ({"numerics": 2}, False),
        ({"processes": 2, "fallback": "their first steps differ"}, False),
    ],
)
def test_machine_engine_and_numerics_decide_whether_bits_are_compared(change: dict[str, Any], must_equal: bool) -> None:
    assert a_session(9, **change).must_equal(a_session(9)) == must_equal


# Error rates


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_tests_follow_their_definition(runs: int) -> None:
    """Welch's test with the noise of the table, two one-sided tests, and Holm's procedure."""
    rng = np.random.default_rng(runs)
    shifts = (0.0, 0.5, -1.5, 4.0, 0.2)
    errors = [
        {
            cell: [*np.round(6 + shift + 0.3 * rng.standard_normal(runs), 2)]
            for cell, shift in zip(CELLS, its, strict=False)
        }
        for its in (shifts, [0.0] * 5)
    ]
    new, baseline = ([run for cell, its in one.items() for run in records(TABLE2, cell, its)] for one in errors)
    expected = {}
    for cell in errors[0]:
        priors = [table_prior(one, cell, 3, 3) if runs >= 3 else (0.0, 0.0) for one in errors]
        samples = dict(zip("ab", (one[cell] for one in errors), strict=True))
        difference, error, degrees = contrast_by_definition(
            samples, {"a": 1, "b": -1}, dict(zip("ab", priors, strict=True))
        )
        t = stats.t(degrees)
        beyond = t.sf((abs(difference) - 1) / error) + t.sf((abs(difference) + 1) / error)
        expected[cell] = (difference, beyond, t.sf((1 - abs(difference)) / error) <= 0.05)
    found = changes_of(elsewhere(new), baseline)
    limit = 5
    for net in sorted(found.nets, key=lambda net: expected[net.name][1]):
        difference, beyond, is_equivalent = expected[net.name]
        assert (net.difference, net.p_value) == pytest.approx((difference, min(1, beyond)), rel=1e-6)
        differs = limit * beyond <= 0.01
        limit = limit - 1 if differs else 10**9
        assert net.outcome == ("different" if differs else "equivalent" if is_equivalent else "underpowered")
    assert len(found.nets) == 5


def test_errors_that_agree_by_chance_are_not_certain() -> None:
    """Their variance is that of rounding, with one degree of freedom in each sample of two."""
    new, baseline = records(TABLE2, PREACT, (8.0, 8.0)), records(TABLE2, PREACT, (6.0, 6.0))
    (net,) = changes_of(elsewhere(new), baseline, margin=1.98).nets
    t = stats.t(2)
    error = 0.01 / math.sqrt(12)
    assert net.p_value == pytest.approx(t.sf(0.02 / error) + t.sf(3.98 / error), rel=1e-6)
    assert net.outcome == "underpowered"


def rates(cells: int, runs: int, noise: float, shift: float, step: float, spread: float, tables: int) -> Floats:
    """Simulate tables: shares of those with a difference, of different nets, of equivalent nets; the margin is 1."""
    rng = np.random.default_rng([cells, runs, round(100 * noise)])
    stds = noise * np.exp(spread * rng.standard_normal((cells, tables, 1)) - spread**2)
    place = rng.uniform(20, 20 + step, (cells, tables, 1))
    new, old = (
        np.round((place + of + stds * rng.standard_normal((cells, tables, runs))) / step) * step for of in (shift, 0)
    )
    priors = [[NO_PRIOR, NO_PRIOR]] * cells
    if runs >= 3 and cells > 1:
        own = [variance_of(side[..., :3], 0.01).T for side in (new, old)]
        both = [prior_from_others(one, np.full_like(one, 2.0)) for one in own]
        priors = [[Prior(variance[:, n], degrees[:, n]) for variance, degrees in both] for n in range(cells)]  # type: ignore[arg-type]
    tests = [compute_contrast([*its], [1, -1], 0.0, prior, step) for *its, prior in zip(new, old, priors, strict=True)]
    beyond = np.array([test.p_beyond(1.0) for test in tests])
    different = np.array([holm([*p_values], 0.01) for p_values in beyond.T])
    equivalent = np.array([test.p_equivalent(1.0) for test in tests]) <= 0.05
    return np.array([different.any(axis=1).mean(), different.mean(), equivalent.mean()])


GRID = [(cells, runs) for cells in (5, 10, 25) for runs in (2, 3, 5)]


@pytest.mark.parametrize(("cells", "runs"), GRID)
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_error_rates(cells: int, runs: int, spread: float, full: bool) -> None:
    """False alarms in 1 % of tables, and shifts of the margin called equivalent in 5 % of nets, at most."""
    tables = 2_000 if full else 400
    for noise in (0.1, 0.3, 1.0, 2.0):
        for step in (0.01, 100 / 360):  # of CIFAR and of the digits
            assert rates(cells, runs, noise, 0.0, step, spread, tables)[0] <= 0.01 + 3 * math.sqrt(0.01 / tables)
        missed = rates(cells, runs, noise, 1.0, 0.01, spread, tables)[2]
        assert missed <= 0.05 + 3 * math.sqrt(0.05 / tables / (1 if spread else cells))


@pytest.mark.parametrize(
    ("cells", "runs", "found", "equivalent"),
    [(1, 3, 0.92, 0.83), (10, 3, 0.98, 0.94), (10, 5, 1.0, 0.99), (10, 2, 0.0, 0.3)],
)
def test_power_at_a_noise_of_0_3(cells: int, runs: int, found: float, equivalent: float) -> None:
    """For a shift of 3 points, and for none."""
    assert rates(cells, runs, 0.3, 3.0, 0.01, 0.0, 1_000)[1] >= found - 0.02
    assert rates(cells, runs, 0.3, 0.0, 0.01, 0.0, 1_000)[2] >= equivalent - 0.02
