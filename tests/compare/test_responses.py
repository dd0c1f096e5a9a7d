"""Claims on the share of y_l < 0, from invented analyses of invented runs, against scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paperbench import api
from paperbench.analysis.record import Analysis, AnalysisSpec, Passes, Signal, read_analyses, write_analysis
from paperbench.compare.claims import ClaimVerdict
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    a_table,
    interval_text,
    p_text,
    records,
    the_claim,
    welch_p,
    welch_text,
    with_claim,
)
from tests.helpers import CODE, ENVIRONMENT, ROOT, change_yaml, copy_of_tiny_specs
from tests.report.stores import make_store

TABLE3 = a_table("table3")
SHALLOW, DEEP = "cifar10_resnet164/original", "cifar10_resnet1001/original"
DECLINES = with_claim(TABLE3, "declines", SHALLOW, measure="negative_share")
LOWER = with_claim(TABLE3, "lower", SHALLOW, DEEP, measure="negative_share")

ERRORS = [5.9, 6.0, 5.8, 6.2, 5.7]
INITIAL = [31.0, 35.2, 28.4, 33.9, 30.1]
SLIGHTLY_LOWER = [30.4, 34.9, 27.6, 33.5, 29.9]
"""Clearly lower than INITIAL seed by seed, but not by two independent samples."""
HIGHER = [38.2, 41.0, 36.9, 39.4, 40.3]

FOR_INITIAL = f"`paperbench analyze table3 --cells {SHALLOW} --seeds 5`"
FOR_TRAINED = f"`paperbench analyze table3 --cells {SHALLOW} --trained`"


def analysis(run: Record, percent: float, /, *, is_trained: bool, **changes: Any) -> Analysis:
    """Invent an analysis of a run's net, with two units whose mean share of y_l < 0 is given.

    Args:
        changes: To its spec.
    """
    share = percent / 100
    columns: dict[str, Any] = {field.name: (0.5, 0.5) for field in fields(Passes)}
    columns["negative"] = (0.5 * share, 1.5 * share)
    state = {"run": run.spec.digest, "iteration": run.iteration} if is_trained else {"run": None, "iteration": 0}
    spec = AnalysisSpec(
        **{
            "net": run.spec.net,
            "recipe": run.spec.recipe,
            "data": run.spec.data,
            **state,
            "weights": None,
            "initialisation": "he",
            "images": run.spec.recipe["batch_norm"]["group"],
            "batch_norm": "batch",
            "precision": "fp64",
            **changes,
        }
    )
    return Analysis(
        schema=1,
        kind="analysis",
        net=run.net,
        seed=run.seed,
        spec=spec,
        data=run.data,
        loss=2.3,
        output=Signal(1.0, 0.0, 1.0),
        output_gradient=1.0,
        stages=(0, 1),
        passes=Passes(**columns),
        channels=(),
        seconds=1.0,
        code=CODE,
        environment=ENVIRONMENT,
    )


def analyses(runs: Sequence[Record], percents: Sequence[float], **how: Any) -> list[Analysis]:
    return [analysis(run, percent, **how) for run, percent in zip(runs, percents, strict=True)]


def judge(table: Table, runs: Sequence[Record], found: Sequence[Analysis], **how: Any) -> ClaimVerdict:
    # through JSON, as analyses come from a store
    return the_claim(table, *runs, analyses=lambda: ([Analysis.from_json(one.to_json()) for one in found], []), **how)


def declining(initial: Sequence[float], trained: Sequence[float], **how: Any) -> ClaimVerdict:
    runs = records(TABLE3, SHALLOW, (ERRORS * 2)[: len(trained)])
    found = [*analyses(runs, initial, is_trained=False), *analyses(runs, trained, is_trained=True)]
    return judge(DECLINES, runs, found, **how)


# Against the initialisation


def moved_to(p: float) -> list[float]:
    """Shares after training for which the paired test of a decline gives this p-value."""
    differences = np.subtract(SLIGHTLY_LOWER, INITIAL)
    centred = differences - differences.mean()
    return list(INITIAL + centred + stats.t.ppf(p, 4) * differences.std(ddof=1) / math.sqrt(5))


@pytest.mark.parametrize(
    ("trained", "standing"),
    [
        (SLIGHTLY_LOWER, "supported"),
        (HIGHER, "contradicted"),
        (moved_to(0.049), "supported"),
        (moved_to(0.051), "undecided"),
        (moved_to(0.949), "undecided"),
        (moved_to(0.951), "contradicted"),
    ],
)
def test_decline_is_the_paired_t_test(trained: list[float], standing: str) -> None:
    verdict = declining(INITIAL, trained)
    paired = stats.ttest_rel(trained, INITIAL)
    p = float(stats.ttest_rel(trained, INITIAL, alternative="less").pvalue)
    low, high = paired.confidence_interval(0.9)
    text = interval_text(float(np.subtract(trained, INITIAL).mean()), low, high)
    ending = f"{p_text(1 - p)} against it" if standing == "contradicted" else p_text(p)
    assert (verdict.standing, verdict.level) == (standing, 0.05)
    assert verdict.findings == (f"{SHALLOW}, trained - initial = {text} points in share of y_l < 0, {ending}",)
    assert verdict.test == "one-sample t-test on differences from initialisation"


def test_pairs_are_by_seed() -> None:
    assert welch_p(SLIGHTLY_LOWER, INITIAL) > 0.05
    runs = records(TABLE3, SHALLOW, ERRORS)
    found = [*analyses(runs, INITIAL, is_trained=False), *analyses(runs, SLIGHTLY_LOWER, is_trained=True)]
    assert judge(DECLINES, runs, found[::-1]).standing == "supported"


def test_every_cell_must_decline() -> None:
    runs = [records(TABLE3, cell, ERRORS) for cell in (SHALLOW, DEEP)]
    found = [*analyses(runs[0], INITIAL, is_trained=False), *analyses(runs[0], SLIGHTLY_LOWER, is_trained=True)]
    found += [*analyses(runs[1], INITIAL, is_trained=False), *analyses(runs[1], HIGHER, is_trained=True)]
    verdict = judge(
        with_claim(TABLE3, "declines", SHALLOW, DEEP, measure="negative_share"), [*runs[0], *runs[1]], found
    )
    assert (verdict.standing, len(verdict.findings)) == ("contradicted", 2)


def test_decline_has_a_second_analysis() -> None:
    trained = moved_to(0.08)
    assert declining(INITIAL, trained).standing == "undecided"
    verdict = declining(INITIAL * 2, trained * 2)
    p = stats.ttest_rel(trained * 2, INITIAL * 2, alternative="less").pvalue
    assert 0.01 < p < 0.05
    assert (verdict.standing, verdict.level, verdict.reason) == ("undecided", 0.01, "too much noise")


# Between nets


@pytest.mark.parametrize(("deep", "standing"), [(HIGHER, "supported"), (SLIGHTLY_LOWER, "undecided")])
def test_shares_of_two_nets_are_compared_by_welchs_test(deep: list[float], standing: str) -> None:
    runs = [records(TABLE3, cell, ERRORS) for cell in (SHALLOW, DEEP)]
    found = [*analyses(runs[0], INITIAL, is_trained=True), *analyses(runs[1], deep, is_trained=True)]
    verdict = judge(LOWER, [*runs[0], *runs[1]], found)
    assert (verdict.standing, verdict.test) == (standing, "Welch's test")
    text = f"{welch_text(INITIAL, deep)} points in share of y_l < 0, {p_text(welch_p(INITIAL, deep))}"
    assert verdict.findings == (f"{SHALLOW} - {DEEP} = {text}",)


def test_nets_that_a_profile_makes_equal_are_not_compared() -> None:
    verdict = judge(LOWER, [], [], profile="shallow")
    assert verdict.reason == f"in profile shallow, {SHALLOW} and {DEEP} train the same"


# What is missing


def test_reason_names_the_command_that_makes_what_is_missing() -> None:
    runs = records(TABLE3, SHALLOW, ERRORS)
    initial, trained = analyses(runs, INITIAL, is_trained=False), analyses(runs, SLIGHTLY_LOWER, is_trained=True)
    for found, reason in (
        ([], f"{SHALLOW}: 0 of 5 initial nets are analysed ({FOR_INITIAL})"),
        ([*initial[:4], *trained], f"{SHALLOW}: 4 of 5 initial nets are analysed ({FOR_INITIAL})"),
        ([*initial, *trained[1:]], f"{SHALLOW}: 4 of 5 trained nets are analysed ({FOR_TRAINED})"),
    ):
        verdict = judge(DECLINES, runs, found)
        assert (verdict.standing, verdict.findings, verdict.reason) == ("undecided", (), reason)


def test_command_names_the_profile_and_all_cells() -> None:
    other = "cifar10_resnet110/original"
    runs = [run for cell in (SHALLOW, other) for run in records(TABLE3, cell, ERRORS[:2], profile="smoke")]
    table = with_claim(TABLE3, "lower", SHALLOW, other, measure="negative_share")
    verdict = judge(table, runs, [], profile="smoke", seeds=2)
    command = f"`paperbench analyze table3 --cells {SHALLOW} {other} --profile smoke --trained`"
    assert verdict.reason == f"{SHALLOW}: 0 of 2 trained nets are analysed ({command})"


@pytest.mark.parametrize(
    ("errors", "standing", "reason"),
    [
        ([], "not run", f"no runs of our own: {SHALLOW}"),
        ([*ERRORS[:4], None], "undecided", f"{SHALLOW}: too few runs: 4 of 5"),  # a partial run
    ],
)
def test_claim_waits_for_runs(errors: list[float | None], standing: str, reason: str) -> None:
    runs = records(TABLE3, SHALLOW, errors)
    found = [one for run in runs for one in (analysis(run, 30, is_trained=False), analysis(run, 20, is_trained=True))]
    verdict = judge(DECLINES, runs, found)
    assert (verdict.standing, verdict.reason) == (standing, reason)


def test_diverged_run_has_no_trained_net() -> None:
    runs = records(TABLE3, SHALLOW, [*ERRORS[:4], math.inf])
    found = [*analyses(runs, INITIAL, is_trained=False), *analyses(runs, SLIGHTLY_LOWER, is_trained=True)]
    verdict = judge(DECLINES, runs, found)
    assert (verdict.standing, verdict.reason) == ("undecided", f"run {runs[4].run} (seed 4 of {SHALLOW}) diverged")


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
    runs = records(TABLE3, SHALLOW, ERRORS)
    found = [
        *analyses(runs, INITIAL, is_trained=False, **({} if is_trained else changes)),
        *analyses(runs, SLIGHTLY_LOWER, is_trained=True, **(changes if is_trained else {})),
    ]
    state = "trained" if is_trained else "initial"
    assert judge(DECLINES, runs, found).reason.startswith(f"{SHALLOW}: 0 of 5 {state} nets")


def test_other_analyses_beside_the_right_ones_change_nothing() -> None:
    runs = records(TABLE3, SHALLOW, ERRORS)
    right = [*analyses(runs, INITIAL, is_trained=False), *analyses(runs, SLIGHTLY_LOWER, is_trained=True)]
    other = [
        *analyses(runs, HIGHER, is_trained=True, precision="fp32"),
        *analyses(runs, HIGHER, is_trained=True, iteration=100),
        *analyses(records(TABLE3, SHALLOW, ERRORS, data=COPY), HIGHER, is_trained=True),
        *analyses(records(TABLE3, SHALLOW, ERRORS, precision="bf16"), HIGHER, is_trained=True),
    ]
    assert judge(DECLINES, runs, [*other, *right, *other]) == judge(DECLINES, runs, right)


def test_analyses_that_measured_more_count() -> None:
    runs = records(TABLE3, SHALLOW, ERRORS)
    found = [
        *analyses(runs, INITIAL, is_trained=False, measures=("channels",)),
        *analyses(runs, SLIGHTLY_LOWER, is_trained=True, measures=("paths",)),
    ]
    assert judge(DECLINES, runs, found).standing == "supported"


# The results directory


def stored(root: Path) -> list[Path]:
    """Write runs of both cells and their analyses, as the claims of Table 3 need them; return the analyses."""
    files = []
    for cell, trained in ((SHALLOW, SLIGHTLY_LOWER), (DEEP, HIGHER)):
        runs = records(TABLE3, cell, ERRORS)
        make_store(root, runs)
        found = [*analyses(runs, INITIAL, is_trained=False), *analyses(runs, trained, is_trained=True)]
        files += [write_analysis(root, one) for one in found]
    return files


def standings(judged: api.JudgedTable) -> list[str]:
    return [claim.standing for claim in judged.claims if claim.claim.measure == "negative_share"]


def test_claims_of_table_3_are_judged_by_the_results_directory(tmp_path: Path) -> None:
    stored(tmp_path)
    judged = api.load_table("table3", ROOT).compare(tmp_path)
    assert standings(judged) == ["supported", "supported"]
    text = " ".join(judged.render("markdown").split())
    assert "trained - initial = -0.46" in text
    assert "By one-sample t-test on differences from initialisation at alpha = 0.05; 5 runs per net" in text


def test_damaged_analysis_is_left_out_with_a_complaint(tmp_path: Path) -> None:
    damaged = stored(tmp_path)[0]  # at initialisation, which only one claim needs
    damaged.write_text(damaged.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    judged = api.load_table("table3", ROOT).compare(tmp_path)
    assert standings(judged) == ["undecided", "supported"]
    assert [text for text in judged.left_out if str(damaged) in text]


def test_analyses_are_read_once_and_only_for_claims_about_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path)
    reads: list[Path] = []

    def read(root: Path) -> tuple[list[Analysis], list[str]]:
        reads.append(root)
        return read_analyses(root)

    monkeypatch.setattr("paperbench.api.read_analyses", read)
    api.load_table("table2", ROOT).compare(tmp_path)
    assert reads == []
    api.load_table("table3", ROOT).compare(tmp_path)
    assert reads == [tmp_path]


@pytest.mark.full
def test_claims_are_judged_on_trained_nets(tmp_path: Path) -> None:
    root, results = copy_of_tiny_specs(tmp_path / "specs"), tmp_path / "results"
    cells = ("cifar10_resnet110/original", SHALLOW)
    about = {"section": "Sec. 1", "says": "It is so", "measure": "negative_share"}
    claims = [
        {"id": "first", "kind": "declines", "cells": [SHALLOW], **about},
        {"id": "second", "kind": "lower", "cells": list(cells), **about},
    ]
    change_yaml(root / "expected" / "table3.yaml", (("claims",), claims))
    how: dict[str, Any] = {"profile": "smoke", "cells": cells, "seeds": 2}
    outcome = api.run(api.plan("table3", results, device="cpu", root=root, **how))
    assert [claim.reason.partition(" nets")[0] for claim in outcome.judged.claims] == [
        f"{SHALLOW}: 0 of 2 initial",
        f"{cells[0]}: 0 of 2 trained",
    ]
    further: dict[str, Any] = {"results": results, "root": root, "device": "cpu"}
    initial = api.analyze("table3", **how, **further)
    trained = api.analyze("table3", trained=True, profile="smoke", cells=cells, **further)
    judged = api.load_table("table3", root).compare(results, **how)

    def shares(found: Sequence[Analysis], family: str) -> list[float]:
        chosen = sorted((one for one in found if one.spec.net["family"] == family), key=lambda one: one.seed)
        return [100 * float(np.mean(one.passes.negative)) for one in chosen]

    paired = stats.ttest_rel(shares(trained, "bottleneck"), shares(initial, "bottleneck"), alternative="less")
    welch = welch_p(shares(trained, "basic"), shares(trained, "bottleneck"))
    for claim, p in zip(judged.claims, (float(paired.pvalue), welch), strict=True):
        (finding,) = claim.findings
        assert p_text(1 - p if claim.standing == "contradicted" else p) in finding
