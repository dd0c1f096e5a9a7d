"""Claims on the share of y_l < 0, from invented analyses of invented runs, against scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paperbench import api
from paperbench.analysis.record import Analysis, write_analysis
from paperbench.compare.claims import ClaimVerdict
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    FIRST,
    SECOND,
    a_table,
    check_finding,
    compared,
    records,
    the_claim,
    welch,
    with_claim,
)
from tests.golden import assert_golden
from tests.helpers import ROOT, change_yaml, copy_of_tiny_specs
from tests.report.made_analyses import made
from tests.report.stores import make_store

TABLE3 = a_table("table3")
SHALLOW, DEEP, OTHER = "cifar10_resnet164/original", "cifar10_resnet1001/original", "cifar10_resnet110/original"
DECLINES = with_claim(TABLE3, "declines", SHALLOW, measure="negative_share")
BOTH_DECLINE = with_claim(TABLE3, "declines", SHALLOW, DEEP, measure="negative_share")
LOWER = with_claim(TABLE3, "lower", SHALLOW, DEEP, measure="negative_share")

ERRORS = [5.9, 6.0, 5.8, 6.2, 5.7]
INITIAL = [31.0, 35.2, 28.4, 33.9, 30.1]
SLIGHTLY_LOWER = [30.4, 34.9, 27.6, 33.5, 29.9]
"""Clearly lower than INITIAL seed by seed, but not by two independent samples."""
HIGHER = [38.2, 41.0, 36.9, 39.4, 40.3]


def analysis(run: Record, percent: float, /, *, is_trained: bool, **changes: Any) -> Analysis:
    """Invent an analysis of a run's net, with two units whose mean share of y_l < 0 is given.

    Args:
        changes: To its spec.
    """
    one, share = made(seed=run.seed, stages=(1, 1)), percent / 100
    spec = replace(one.spec, net=run.spec.net, recipe=run.spec.recipe, data=run.spec.data)
    spec = replace(spec, images=run.spec.recipe["batch_norm"]["group"])
    spec = replace(spec, run=run.spec.digest, iteration=run.iteration) if is_trained else spec
    passes = replace(one.passes, negative=(0.5 * share, 1.5 * share))
    return replace(one, net=run.net, spec=replace(spec, **changes), data=run.data, passes=passes)


def analyses(runs: Sequence[Record], percents: Sequence[float], **how: Any) -> list[Analysis]:
    return [analysis(run, percent, **how) for run, percent in zip(runs, percents, strict=True)]


def both(runs: Sequence[Record], initial: Sequence[float], trained: Sequence[float]) -> list[Analysis]:
    """Some of which measured more."""
    found = analyses(runs, initial, is_trained=False, measures=("channels",))
    return found + analyses(runs, trained, is_trained=True)


def judge(table: Table, runs: Sequence[Record], found: Sequence[Analysis], **how: Any) -> ClaimVerdict:
    return the_claim(table, *runs, analyses=lambda: (found, []), **how)


# Verdicts


@given(
    p=st.sampled_from([0.002, 0.03, 0.049, 0.051, 0.48, 0.949, 0.951, 0.97, 0.998]),
    runs=st.sampled_from([5, 7, 10, 12]),
    seed=st.integers(0, 2**32 - 1),
)
def test_decline_is_the_paired_t_test(p: float, runs: int, seed: int) -> None:
    """Its p-value after 5 or 10 runs is as drawn. Pairs are by seed, in whatever order analyses are found."""
    rng, n = np.random.default_rng(seed), runs // 5 * 5
    initial = rng.uniform(25, 45, runs)
    differences = rng.standard_normal(n)
    differences += stats.t.ppf(p, n - 1) * differences.std(ddof=1) / math.sqrt(n) - differences.mean()
    trained = np.add(initial, [*differences, *rng.uniform(-20, 20, runs - n)])
    ours = records(TABLE3, SHALLOW, (ERRORS * 3)[:runs])
    found = both(ours, initial, trained)
    verdict = judge(DECLINES, ours, [found[i] for i in rng.permutation(len(found))])
    for number, level in ((5, FIRST), (10, SECOND)) if n == 10 else ((5, FIRST),):
        paired = stats.ttest_rel(trained[:number], initial[:number], alternative="less")
        against = 1 - paired.pvalue
        expected = "supported" if paired.pvalue <= level else "contradicted" if against <= level else "undecided"
        if expected != "undecided":
            break
    assert (verdict.standing, verdict.level) == (expected, level)
    estimate = float((trained - initial)[:number].mean())
    high = stats.ttest_rel(trained[:number], initial[:number]).confidence_interval(0.9).high
    p_value = against if expected == "contradicted" else paired.pvalue
    check_finding(verdict.findings[0], estimate, high - estimate, float(p_value))


def test_every_cell_must_decline() -> None:
    runs = [records(TABLE3, cell, ERRORS) for cell in (SHALLOW, DEEP)]
    for trained, standing in ((HIGHER, "contradicted"), (SLIGHTLY_LOWER, "supported")):
        found = [*both(runs[0], INITIAL, SLIGHTLY_LOWER), *both(runs[1], INITIAL, trained)]
        verdict = judge(BOTH_DECLINE, [*runs[0], *runs[1]], found)
        assert (verdict.standing, len(verdict.findings)) == (standing, 2)


@pytest.mark.parametrize(("deep", "standing"), [(HIGHER, "supported"), (SLIGHTLY_LOWER, "undecided")])
def test_shares_of_two_nets_are_compared_by_welchs_test(deep: list[float], standing: str) -> None:
    runs = [records(TABLE3, cell, ERRORS) for cell in (SHALLOW, DEEP)]
    found = [*analyses(runs[0], INITIAL, is_trained=True), *analyses(runs[1], deep, is_trained=True)]
    verdict = judge(LOWER, [*runs[0], *runs[1]], found)
    assert verdict.standing == standing
    check_finding(verdict.findings[0], *welch(INITIAL, deep))


# Which analyses


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp32"},
        {"images": 128},
        {"size": 16},
        {"batch_norm": "averages"},
        {"initialisation": "orthogonal"},
        {"weights": "0" * 64},
        {"data": "0" * 64},
        {"net": {"family": "basic"}},
        {"recipe": {"batch_norm": {"group": 64}}},
        {"run": "0" * 64},
        {"iteration": 100},
    ],
)
@pytest.mark.parametrize("is_trained", [False, True])
def test_other_analyses_do_not_count(changes: dict[str, Any], is_trained: bool) -> None:
    """Neither alone nor beside the right ones."""
    runs = records(TABLE3, SHALLOW, ERRORS)
    right = both(runs, INITIAL, SLIGHTLY_LOWER)
    other = analyses(runs, HIGHER, is_trained=is_trained, **changes)
    rest = right[:5] if is_trained else right[5:]
    assert judge(DECLINES, runs, [*rest, *other]).standing == "undecided"
    assert judge(DECLINES, runs, [*other, *right, *other]) == judge(DECLINES, runs, right)


def test_analyses_of_other_runs_do_not_count() -> None:
    runs = records(TABLE3, SHALLOW, ERRORS)
    right, other = both(runs, INITIAL, SLIGHTLY_LOWER), []
    for how in ({"data": COPY}, {"precision": "bf16"}):
        other += analyses(records(TABLE3, SHALLOW, ERRORS, **how), HIGHER, is_trained=True)
    assert judge(DECLINES, runs, [*other, *right, *other]) == judge(DECLINES, runs, right)


@pytest.mark.parametrize(("table", "times"), [("table2", 0), ("table3", 1)])
def test_analyses_are_read_once_and_only_for_claims_about_them(table: str, times: int) -> None:
    reads: list[int] = []

    def read() -> tuple[list[Analysis], list[str]]:
        reads.append(1)
        return [], ["a damaged file"]

    runs = [run for cell in a_table(table).cells() for run in records(a_table(table), cell.id, ERRORS)]
    comparison = compared(a_table(table), *runs, analyses=read)
    assert (len(reads), "a damaged file" in comparison.left_out) == (times, bool(times))


def test_reasons_name_the_command_that_makes_what_is_missing() -> None:
    runs = records(TABLE3, SHALLOW, ERRORS)
    found = both(runs, INITIAL, SLIGHTLY_LOWER)
    partly, diverged = (records(TABLE3, SHALLOW, [*ERRORS[:4], last]) for last in (None, math.inf))
    small = [run for cell in (SHALLOW, OTHER) for run in records(TABLE3, cell, ERRORS[:2], profile="smoke")]
    of_small = with_claim(TABLE3, "lower", SHALLOW, OTHER, measure="negative_share")
    lines = []
    for title, standing, verdict in (
        ("decides", "supported", judge(DECLINES, runs, found)),
        ("no analyses", "undecided", judge(DECLINES, runs, [])),
        ("one initial net is missing", "undecided", judge(DECLINES, runs, [*found[:4], *found[5:]])),
        ("one trained net is missing", "undecided", judge(DECLINES, runs, found[:-1])),
        ("two cells of a profile", "undecided", judge(of_small, small, [], profile="smoke", seeds=2)),
        ("equal nets of a profile", "undecided", judge(LOWER, [], [], profile="shallow")),
        ("no runs", "not run", judge(DECLINES, [], found)),
        ("a partial run", "undecided", judge(DECLINES, partly, both(partly, INITIAL, SLIGHTLY_LOWER))),
        ("a diverged run", "undecided", judge(DECLINES, diverged, both(diverged, INITIAL, SLIGHTLY_LOWER))),
    ):
        assert verdict.standing == standing, title
        lines += [f"{title}: {verdict.standing}. {verdict.test}", *verdict.findings, verdict.reason]
    assert_golden("claims_on_responses", "\n".join(lines) + "\n")


# The results directory


def test_claims_of_table_3_are_judged_by_the_results_directory(tmp_path: Path) -> None:
    """A damaged analysis is left out with a complaint."""
    files = []
    for cell, trained in ((SHALLOW, SLIGHTLY_LOWER), (DEEP, HIGHER)):
        runs = records(TABLE3, cell, ERRORS)
        make_store(tmp_path, runs)
        files += [write_analysis(tmp_path, one) for one in both(runs, INITIAL, trained)]

    def judged() -> tuple[list[str], list[str]]:
        found = api.load_table("table3", ROOT).compare(tmp_path)
        standings = [claim.standing for claim in found.claims if claim.claim.measure == "negative_share"]
        return standings, [text for text in found.left_out if str(files[0]) in text]

    assert judged() == (["supported", "supported"], [])
    files[0].write_text(files[0].read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    standings, complaints = judged()  # about a net at initialisation, which only one claim needs
    assert (standings, len(complaints)) == (["undecided", "supported"], 1)


@pytest.mark.full
def test_claims_are_judged_on_trained_nets(tmp_path: Path) -> None:
    root, results = copy_of_tiny_specs(tmp_path / "specs"), tmp_path / "results"
    about = {"section": "Sec. 1", "says": "It is so", "measure": "negative_share"}
    claims = [
        {"id": "first", "kind": "declines", "cells": [SHALLOW], **about},
        {"id": "second", "kind": "lower", "cells": [OTHER, SHALLOW], **about},
    ]
    change_yaml(root / "expected" / "table3.yaml", (("claims",), claims))
    how: dict[str, Any] = {"profile": "smoke", "cells": (OTHER, SHALLOW), "seeds": 2}
    outcome = api.run(api.plan("table3", results, device="cpu", root=root, **how))
    assert [claim.standing for claim in outcome.judged.claims] == ["undecided", "undecided"]
    further: dict[str, Any] = {"results": results, "root": root, "device": "cpu"}
    initial = api.analyze("table3", **how, **further)
    trained = api.analyze("table3", trained=True, profile="smoke", cells=(OTHER, SHALLOW), **further)
    judged = api.load_table("table3", root).compare(results, **how)

    def shares(found: Sequence[Analysis], family: str) -> list[float]:
        chosen = sorted((one for one in found if one.spec.net["family"] == family), key=lambda one: one.seed)
        return [100 * float(np.mean(one.passes.negative)) for one in chosen]

    declining, lower = judged.claims
    pair = shares(trained, "bottleneck"), shares(initial, "bottleneck")
    paired, moved = stats.ttest_rel(*pair, alternative="less").pvalue, float(np.subtract(*pair).mean())
    high = stats.ttest_rel(*pair).confidence_interval(0.9).high
    check_finding(
        declining.findings[0], moved, high - moved, 1 - paired if declining.standing == "contradicted" else paired
    )
    estimate, reach, p = welch(shares(trained, "basic"), shares(trained, "bottleneck"))
    check_finding(lower.findings[0], estimate, reach, 1 - p if lower.standing == "contradicted" else p)
