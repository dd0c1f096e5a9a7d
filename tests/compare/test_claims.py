"""Verdicts on claims, against scipy's tests. The wording is in tests/printed/claims.txt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paperbench.compare.claims import ClaimVerdict
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    FIRST,
    SECOND,
    Errors,
    Histories,
    a_table,
    check_finding,
    compared,
    contrast_by_definition,
    external,
    record,
    records,
    runs_of,
    table_prior,
    the_claim,
    welch,
    with_claim,
)
from tests.fuzz.strategies import share_of_examples
from tests.golden import assert_golden

TABLE1, TABLE2, TABLE3, TABLE4 = (a_table(f"table{i}") for i in (1, 2, 3, 4))
A, B, C, D = "preact/resnet110", "original/resnet110", "bn_after_addition/resnet110", "relu_only_preact/resnet110"
HIGHWAY, OURS = "highway/cifar10", "preact_resnet164/cifar10"
HIGHWAY_NUMBER = 7.72

LOW = [6.31, 6.42, 6.25, 6.51, 6.38]
MIDDLE = [6.40, 6.72, 6.31, 6.55, 6.61]
HIGH = [8.10, 8.43, 7.98, 8.20, 8.29]
LOSS_LOW = [0.021, 0.024, 0.020, 0.022, 0.023]
LOSS_HIGH = [0.031, 0.036, 0.033, 0.030, 0.034]
LOSSES = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}
RIGHT, WRONG = {A: LOW, B: HIGH}, {A: HIGH, B: LOW}

ERROR, LOSS = "test_error", "train_loss"
TF32 = {"precision": "tf32"}
A_BELOW_B = with_claim(TABLE2, "lower", A, B)
AGAINST_HIGHWAY = with_claim(TABLE4, "lower", OURS, HIGHWAY)


def lower(errors: Errors, table: Table = TABLE2, **how: Any) -> ClaimVerdict:
    """The claim that the first cell is lower than the others."""
    return the_claim(with_claim(table, "lower", *errors), *runs_of(table, errors), **how)


def with_means(
    errors: Errors, means: Mapping[tuple[str, str], Sequence[float]], table: Table = TABLE2, **how: Any
) -> tuple[list[Record], Histories]:
    """Runs, and means of a measure over their histories."""
    histories, runs = Histories(), []
    for cell, found in errors.items():
        its = records(table, cell, found, **how)
        for (named, measure), values in means.items():
            if named == cell:
                histories.put(its[: len(values)], measure, values)
        runs += its
    return runs, histories


# Means, by definition


@dataclass(frozen=True)
class Form:
    """A claim about means, and what its parts mean.

    Attributes:
        parts: Of each part its measure, the weights of the cells, and the cell that only this part compares.
        bound: Of the difference, or the margin of a "close" claim.
    """

    kind: str
    parts: tuple[tuple[str, Mapping[str, float], str], ...]
    cells: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    bound: float = 0.0
    table: Table = TABLE2
    constant: float = 0.0

    def p_values(self, estimate: float, error: float, degrees: float) -> tuple[float, float]:
        """Of the alternatives that the claim holds, and that it does not."""
        size, bound = (abs(estimate), self.bound) if self.kind == "close" else (estimate, self.bound)
        below, above, beyond = stats.t.sf(np.array([bound - size, size - bound, size + bound]) / error, degrees)
        if self.kind == "close":
            return float(below), min(1.0, float(above + beyond))
        return (float(above), float(below)) if self.kind == "largest_gain" else (float(below), float(above))

    def estimates(self, samples: Mapping[str, Mapping[str, list[float]]], n: int) -> list[tuple[float, float, float]]:
        """Of each part after the first n runs: estimate, standard error and degrees of freedom."""
        found = []
        for measure, weights, _ in self.parts:
            its = samples[measure]
            priors = {cell: table_prior(its, cell, n) for cell in its}
            first = {cell: one[:n] for cell, one in its.items()}
            estimate, error, degrees = contrast_by_definition(first, weights, priors if measure == ERROR else None)
            found.append((estimate - self.constant, error, degrees))
        return found


THREE_GAINS = ((A, B), (A, C), (A, D))
FORMS = {
    "lower": Form("lower", ((ERROR, {A: 1, B: -1}, B),), (A, B)),
    "lower than two": Form("lower", ((ERROR, {A: 1, B: -1}, B), (ERROR, {A: 1, C: -1}, C)), (A, B, C)),
    "lower by": Form("lower", ((ERROR, {A: 1, B: -1}, B),), (A, B), {"by": 0.7}, -0.7),
    "lower error": Form("lower", (("train_error", {A: 1, B: -1}, B),), (A, B), {"measure": "train_error"}),
    "lower loss": Form("lower", ((LOSS, {A: 1, B: -1}, B),), (A, B), {"measure": LOSS, "by": 0.02}, -0.02),
    "published": Form("lower", ((ERROR, {OURS: 1}, OURS),), (OURS, HIGHWAY), {}, table=TABLE4, constant=HIGHWAY_NUMBER),
    "close": Form("close", ((ERROR, {A: 1, B: -1}, B),), (A, B), {"within": 0.5}, 0.5),
    "narrow": Form("close", ((ERROR, {A: 1, B: -1}, B),), (A, B), {"within": 0.02}, 0.02),  # both tails count
    "gain": Form("largest_gain", ((ERROR, {A: 1, B: -1, C: -1, D: 1}, D),), (), {"pairs": ((A, B), (C, D))}),
    "shared": Form("largest_gain", ((ERROR, {C: 1, B: -1}, B),), (), {"pairs": ((C, A), (B, A))}),  # which cancels
    "twice": Form("largest_gain", ((ERROR, {C: 1, A: -2, B: 1}, B),), (), {"pairs": ((C, A), (A, B))}),
    "three": Form("largest_gain", ((ERROR, {B: -1, C: 1}, C), (ERROR, {B: -1, D: 1}, D)), (), {"pairs": THREE_GAINS}),
    "loss and error": Form("higher_loss_lower_error", ((LOSS, {B: 1, A: -1}, B), (ERROR, {A: 1, B: -1}, B)), (A, B)),
    "early": Form("early", ((LOSS, {A: 1, B: -1}, B),), (A, B), {"measure": LOSS, "iteration": 8_000}),
}
QUANTILES = st.sampled_from([1e-4, 0.004, 0.02, 0.03, 0.049, 0.051, 0.48, 0.949, 0.951, 0.97, 0.98, 0.996, 0.9999])


@pytest.mark.parametrize("name", FORMS)
@share_of_examples(2)
@given(
    targets=st.tuples(QUANTILES, QUANTILES),
    runs=st.sampled_from([5, 7, 10, 12]),
    has_neighbours=st.booleans(),
    sign=st.sampled_from([-1, 1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_claims_on_means_match_their_definition(
    name: str, targets: tuple[float, float], runs: int, has_neighbours: bool, sign: int, seed: int
) -> None:
    """A p-value of each part after 5 or 10 runs is what is drawn; runs beyond an analysis are arbitrary."""
    form, rng, n = FORMS[name], np.random.default_rng(seed), runs // 5 * 5
    table = with_claim(form.table, form.kind, *form.cells, **form.values)
    used = [cell for cell in table.expected.claims[0].all_cells if cell != HIGHWAY]
    others = ("resnet110/cifar10", "preact_resnet1001/cifar10") if form.table is TABLE4 else (C, D, "preact/resnet164")
    cells = [*used, *(cell for cell in others if has_neighbours and cell not in used)]

    def draw() -> dict[str, list[float]]:
        scales = 0.15 * np.exp(0.3 * rng.standard_normal(len(cells)))
        counted = 7 + scales[:, None] * rng.standard_normal((len(cells), n))
        return {c: [*x, *rng.uniform(1, 12, runs - n)] for c, x in zip(cells, counted, strict=True)}

    samples = {measure: draw() for measure in (ERROR, *(measure for measure, *_ in form.parts))}
    for i, (measure, weights, moving) in enumerate(form.parts):
        estimate, error, degrees = form.estimates(samples, n)[i]
        middle = sign * form.bound if form.kind == "close" else form.bound
        shift = (middle + float(stats.t.ppf(targets[i], degrees)) * error - estimate) / weights[moving]
        samples[measure][moving] = [x + shift for x in samples[measure][moving]]
    expected, level, numbers = "undecided", 0.0, []
    for number, level in ((1, FIRST), (2, SECOND)) if n == 10 else ((1, FIRST),):
        numbers = form.estimates(samples, 5 * number)
        p_values = [form.p_values(*one) for one in numbers]
        if all(p <= level for p, _ in p_values):
            expected = "supported"
        elif any(p <= level / len(form.parts) for _, p in p_values):
            expected = "contradicted"
        if expected != "undecided":
            break
    means = {(c, m): x for m, of_cells in samples.items() if m != ERROR for c, x in of_cells.items()}
    runs_found, histories = with_means(samples[ERROR], means, form.table)
    verdict = the_claim(table, *runs_found, histories=histories)
    assert (verdict.standing, verdict.level) == (expected, level)
    for (estimate, error, degrees), found, p in zip(numbers, verdict.findings, p_values, strict=True):
        reach = float(stats.t.isf(FIRST, degrees)) * error
        check_finding(found, estimate, reach, p[expected == "contradicted"])
    has_prior = any(table_prior(samples[ERROR], cell, 5 * number)[1] for cell in used)
    assert ("noise of the table" in verdict.test) == (has_prior and ERROR in {measure for measure, *_ in form.parts})
    last = 8_000 if name == "early" else 64_000
    asked = {(run.run, m, last - 1_000, last) for run in runs_found for m in samples if m != ERROR and run.seed < n}
    assert set(histories.asked) <= asked


# Diverged runs


@pytest.mark.parametrize(
    ("table", "cells", "guessing"),
    [(TABLE2, (A, B), 90.0), (TABLE3, ("cifar100_resnet164/preact", "cifar100_resnet164/original"), 99.0)],
)
def test_diverged_run_counts_as_guessing(table: Table, cells: tuple[str, str], guessing: float) -> None:
    verdict = lower({cells[0]: LOW, cells[1]: [math.inf, 6.5, math.inf, 8.1, 6.6]}, table)
    check_finding(verdict.findings[0], *welch(LOW, [guessing, 6.5, guessing, 8.1, 6.6]))
    assert lower({cells[0]: [math.inf] * 5, cells[1]: [math.inf] * 5}, table).standing == "undecided"


@pytest.mark.parametrize(("measure", "guessing"), [("train_loss", math.log(10)), ("train_error", 90.0)])
def test_run_that_diverged_by_the_window_counts_as_guessing(measure: str, guessing: float) -> None:
    """The last run of B diverged before the window; the mean of the first is not finite."""
    means = {(A, measure): LOSS_LOW, (B, measure): [math.inf, *LOSS_HIGH[1:4]]}
    runs, histories = with_means({A: LOW, B: [*HIGH[:4], math.inf]}, means)
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure=measure), *runs, histories=histories)
    check_finding(verdict.findings[0], *welch(LOSS_LOW, [guessing, *LOSS_HIGH[1:4], guessing]))
    assert {run for run, *_ in histories.asked} == {run.run for run in runs[:9]}
    before = with_claim(TABLE2, "early", A, B, measure=measure, iteration=999)
    gone = [record(TABLE2, B, math.inf, seed=seed, iteration=998) for seed in range(5)]
    verdict = the_claim(before, *runs[:5], *gone, histories=histories)
    assert f"= {np.mean(LOSS_LOW) - guessing:+.2f}" in verdict.findings[0]


# Training


def test_window_is_a_64th_of_each_recipes_schedule() -> None:
    cells = ("preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10")
    means = {(cells[0], LOSS): LOSS_LOW, (cells[1], LOSS): LOSS_HIGH}
    runs, histories = with_means(dict.fromkeys(cells, LOW), means, TABLE4)
    verdict = the_claim(with_claim(TABLE4, "lower", *cells, measure=LOSS), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert {window[2:] for window in histories.asked} == {(156_250 - 2_441, 156_250), (63_000, 64_000)}


EARLY = with_claim(TABLE2, "early", A, B, measure=LOSS, iteration=8_000)


@pytest.mark.parametrize(
    ("errors", "reached", "standing"),
    [
        ({A: [None] * 5, B: [None] * 5}, 8_000, "supported"),
        ({A: [None, *LOW[1:]], B: [*HIGH[:4], None]}, 9_000, "supported"),  # prefixes and ended runs
        ({A: [None] * 5, B: [math.inf] * 5}, 8_000, "supported"),  # what diverged later counts as it was
        ({A: [*LOW[1:], None], B: HIGH}, 7_999, "undecided"),
        ({A: LOW, B: HIGH[:4]}, 8_000, "undecided"),
    ],
)
def test_early_claim_needs_only_its_iteration(errors: Errors, reached: int, standing: str) -> None:
    """The window is 1/64 of the whole schedule."""
    runs, histories = with_means(errors, {key: LOSSES[key][: len(errors[key[0]])] for key in LOSSES}, iteration=reached)
    assert the_claim(EARLY, *runs, histories=histories).standing == standing
    expected = [(r.run, LOSS, 7_000, 8_000) for r in runs] if standing == "supported" else []
    assert sorted(histories.asked) == sorted(expected)


# Failing


SMOKE: dict[str, Any] = {"profile": "smoke", "seeds": 5}
PLAIN, UNSCALED = "plain/resnet110", "constant_scaling_unscaled/resnet110"
SWEEP, LABELS = "exclusive_gating_0_to_5/resnet110", [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
BAD, GOOD = [90.0] * 5, [12.0] * 5


def fails(kind: str, errors: Errors, **how: Any) -> ClaimVerdict:
    return the_claim(with_claim(TABLE1, kind, *errors), *runs_of(TABLE1, errors), **how)


@pytest.mark.parametrize(
    ("plain", "unscaled", "seeds", "diverge", "converge"),
    [
        (BAD, BAD, 5, "supported", "contradicted"),
        (GOOD, GOOD, 5, "contradicted", "supported"),
        (BAD, GOOD, 5, "contradicted", "contradicted"),
        ([30.0, 12.0, 30.0], BAD, 5, "undecided", "contradicted"),
        ([30.0, 12.0, 30.0, 30.0], BAD, 2, "supported", "contradicted"),  # at the second analysis
        (BAD[:2], GOOD, 5, "contradicted", "undecided"),  # one sure counterexample is enough, whatever is missing
        ([], BAD, 5, "undecided", "contradicted"),
        ([None], BAD, 5, "undecided", "contradicted"),
        ([], [], 5, "not run", "not run"),
    ],
)
def test_all_nets_must_fail_or_none(
    plain: list[float | None], unscaled: list[float], seeds: int, diverge: str, converge: str
) -> None:
    errors: Errors = {PLAIN: plain, UNSCALED: unscaled}
    found = [fails(kind, errors, seeds=seeds) for kind in ("diverges", "converges")]
    assert [one.standing for one in found] == [diverge, converge]
    assert [len(one.findings) for one in found] == [bool(plain) + bool(unscaled)] * 2


# What can be compared


DEEP, LESS, NO_WARM_UP = "cifar10_resnet1001/preact", "cifar10_resnet164/preact", "cifar10_resnet164_no_warm_up/preact"
COPIES, BF16_COPIES = {"data": COPY}, {"data": COPY, "precision": "bf16", "numerics": 3}


def test_published_results_of_table2_support_all_claims() -> None:
    """Runs that scatter by 0.05 around the printed medians, and losses as in Fig. 6."""
    histories, runs = Histories(), []
    for cell in TABLE2.cells():
        errors = [cell.number + d for d in (-0.06, 0.03, 0.0, -0.02, 0.05)]  # type: ignore[operator]
        found = records(TABLE2, cell.id, errors)
        start = {"preact": 0.5, "original": 0.6}.get(cell.row.id, 0.9)
        runs += histories.put(found, LOSS, [start + d for d in (-0.01, 0.02, 0.0, 0.01, -0.02)])
    comparison = compared(TABLE2, *runs, training_mean=histories)
    assert [(v.claim.id, v.standing) for v in comparison.claims] == [
        (claim.id, "supported") for claim in TABLE2.expected.claims
    ]
    assert {c.verdict for c in comparison.cells} == {"reproduced"}


# Wording


def lower_of(*runs: tuple[Errors, dict[str, Any]]) -> ClaimVerdict:
    """The claim that A is lower than B, by runs of several conditions."""
    return the_claim(A_BELOW_B, *(run for errors, how in runs for run in runs_of(TABLE2, errors, **how)))


def swept(*lacking: str) -> ClaimVerdict:
    runs = [run for label in LABELS if label not in lacking for run in records(TABLE1, SWEEP, BAD, setting=label)]
    return the_claim(with_claim(TABLE1, "diverges", SWEEP), *runs)


def both_fail(*runs: tuple[str, Sequence[float], dict[str, Any]]) -> ClaimVerdict:
    found = [run for cell, errors, how in runs for run in records(TABLE1, cell, errors, **how)]
    return the_claim(with_claim(TABLE1, "diverges", PLAIN, UNSCALED), *found)


def entered(table: Table, errors: Errors) -> dict[str, Any]:
    return {"externals": [external(table, c, e, seed=i) for c, its in errors.items() for i, e in enumerate(its)]}


def of_table3(kind: str, errors: Errors, profile: str, **values: Any) -> ClaimVerdict:
    """In the order of the cells, of which several may train the same net in a profile."""
    table = with_claim(TABLE3, kind, *errors, **values)
    return the_claim(table, *runs_of(TABLE3, errors, profile=profile), profile=profile, seeds=5)


def smoothed(measure: str) -> ClaimVerdict:
    """Of two recipes, one of which smooths the labels."""
    recipe = TABLE4.recipes["paper", "cifar_torch"]
    recipes = {**TABLE4.recipes, ("paper", "cifar_torch"): replace(recipe, label_smoothing=0.1)}
    cells = ("preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10")
    return the_claim(with_claim(replace(TABLE4, recipes=recipes), "lower", *cells, measure=measure))


def situations() -> list[tuple[str, str, ClaimVerdict]]:
    """A title, the expected standing, and the verdict."""
    apart: Errors = {**RIGHT, A: [*LOW[:4], None, 6.4]}
    late = [*records(TABLE2, A, LOW), *records(TABLE2, B, [*HIGH[:3], None, 8.4], iteration=7_999)]
    has_one, of_one = with_means(RIGHT, {(A, LOSS): LOSS_LOW})
    has_both, of_both = with_means(RIGHT, {**LOSSES, (A, "train_error"): LOW, (B, "train_error"): HIGH})
    briefly = runs_of(TABLE2, RIGHT, profile="smoke")
    on_digits, gone = (records(TABLE1, PLAIN, e, profile="smoke") for e in (BAD, [math.inf, 25.0, math.inf, math.inf]))
    noisy = runs_of(TABLE2, {A: LOW, B: [x + 0.3 for x in MIDDLE], C: HIGH, D: [6.9, 6.4, 7.1, 6.2, 6.7]})
    pairs = ((C, A), (B, D))
    by_loss = with_claim(TABLE2, "lower", A, B, measure=LOSS, by=0.02)
    by_train_error = with_claim(TABLE2, "lower", A, B, measure="train_error")
    both = with_claim(TABLE2, "higher_loss_lower_error", A, B)
    diverges = with_claim(TABLE1, "diverges", PLAIN)
    ours, copies, few = (
        records(TABLE4, OURS, errors, **how) for errors, how in ((LOW, {}), (LOW, COPIES), (LOW[:2], {}))
    )
    faster = records(TABLE4, OURS, LOW, precision="bf16")
    same: Errors = {DEEP: [], "cifar10_resnet110/original": [], LESS: []}
    one_more = {**same, DEEP: LOW}
    return [
        ("supported", "supported", lower(RIGHT)),
        ("contradicted", "contradicted", lower(WRONG)),
        ("beyond doubt", "supported", lower({A: LOW, B: [x + 30 for x in LOW]})),
        ("too much noise", "undecided", lower({A: LOW, B: [6.0, 9.5, 6.2, 9.1, 6.1]})),
        ("with the noise of the table", "supported", the_claim(A_BELOW_B, *noisy)),
        ("by", "undecided", the_claim(with_claim(TABLE2, "lower", A, B, by=0.3), *noisy)),
        ("close", "contradicted", the_claim(with_claim(TABLE2, "close", A, B, within=0.2), *noisy)),
        ("gain", "supported", the_claim(with_claim(TABLE2, "largest_gain", pairs=pairs), *noisy)),
        ("training loss", "contradicted", the_claim(by_loss, *has_both, histories=of_both)),
        ("training error", "supported", the_claim(by_train_error, *has_both, histories=of_both)),
        ("smoothed training loss", "undecided", smoothed(LOSS)),
        ("smoothed training error", "not run", smoothed("train_error")),
        ("loss and error", "contradicted", the_claim(both, *has_both, histories=of_both)),
        ("early", "supported", the_claim(EARLY, *has_both, histories=of_both)),
        ("no history of one", "undecided", the_claim(EARLY, *has_one, histories=of_one)),
        ("no histories", "undecided", the_claim(EARLY, *has_one)),
        ("run too short", "undecided", the_claim(EARLY, *late)),
        ("profile too short", "undecided", the_claim(EARLY, *briefly, **SMOKE)),
        ("no run has ended", "undecided", lower({A: [None] * 5, B: HIGH})),
        ("a seed is missing", "undecided", lower(apart)),
        ("one run planned", "undecided", lower(RIGHT, seeds=1)),
        ("cells without runs", "not run", lower({A: LOW, B: [], C: []})),
        ("external results only", "not run", lower({A: LOW, B: []}, **entered(TABLE2, RIGHT))),
        ("external results, too", "contradicted", lower(WRONG, **entered(TABLE2, RIGHT))),
        ("different conditions", "not run", lower_of(({A: LOW}, {}), ({B: HIGH}, {"numerics": 2}))),
        ("other conditions", "supported", lower_of((RIGHT, BF16_COPIES))),
        ("the nearest in common", "contradicted", lower_of(({A: LOW}, {}), (RIGHT, BF16_COPIES), (WRONG, TF32))),
        ("complete before nearer", "supported", lower_of(({A: HIGH, B: LOW[:4]}, {}), (RIGHT, COPIES))),
        ("none complete", "undecided", lower_of(({A: LOW, B: HIGH[:4]}, COPIES), ({A: LOW[:1], B: LOW[:2]}, {}))),
        ("the same training", "undecided", of_table3("close", same, "shallow", within=0.5)),
        ("the same training, with runs", "undecided", of_table3("close", one_more, "shallow", within=0.5)),
        ("not the same in the paper", "not run", of_table3("close", same, "paper", within=0.5)),
        ("the same can fail", "supported", of_table3("diverges", {DEEP: [math.inf] * 5, LESS: []}, "smoke")),
        ("other recipes", "supported", of_table3("lower", {LESS: LOW, NO_WARM_UP: HIGH}, "paper")),
        ("other reduced recipes", "supported", of_table3("lower", {LESS: LOW, NO_WARM_UP: HIGH}, "smoke")),
        ("other data", "not run", of_table3("lower", {LESS: [], "cifar100_resnet164/preact": []}, "paper")),
        ("the same digits", "undecided", of_table3("lower", {LESS: [], "cifar100_resnet164/preact": []}, "smoke")),
        ("published", "supported", the_claim(AGAINST_HIGHWAY, *ours)),
        ("published, other pixels", "not run", the_claim(AGAINST_HIGHWAY, *copies)),
        ("published, too few on its pixels", "undecided", the_claim(AGAINST_HIGHWAY, *copies, *few)),
        ("published, less precise on its pixels", "supported", the_claim(AGAINST_HIGHWAY, *copies, *faster)),
        ("published, reduced", "undecided", the_claim(AGAINST_HIGHWAY, profile="shallow")),
        ("diverges", "supported", fails("diverges", {PLAIN: BAD})),
        ("converges", "contradicted", fails("converges", {PLAIN: [12.0, 30.0, 30.0, 30.0, 12.0]})),
        ("others converge", "supported", fails("diverges", {PLAIN: BAD}, **entered(TABLE1, {PLAIN: GOOD}))),
        ("too few", "undecided", fails("diverges", {PLAIN: [30.0, 12.0, 30.0]})),
        ("too few to count", "undecided", fails("diverges", {PLAIN: [None], UNSCALED: BAD})),
        ("a net without runs", "undecided", fails("diverges", {PLAIN: [], UNSCALED: BAD})),
        ("each by its nearest", "supported", both_fail((PLAIN, BAD, {}), (UNSCALED, BAD, TF32))),
        ("complete by its nearest", "contradicted", both_fail((PLAIN, BAD[:1], {}), (PLAIN, GOOD, TF32))),
        ("sweep", "supported", swept()),
        ("a setting without runs", "undecided", swept("gate_bias=-2")),
        ("failed on digits", "undecided", the_claim(diverges, *on_digits, **SMOKE)),
        ("diverged on digits", "supported", the_claim(diverges, *gone, **SMOKE)),
    ]


def test_wording_of_verdicts() -> None:
    lines = []
    for title, standing, verdict in situations():
        assert verdict.standing == standing, title
        lines += [f"# {title}: {verdict.standing}. {verdict.test}, {verdict.level}", *verdict.findings]
        lines += [f"{name}: {text}" for name in ("basis", "reason") if (text := getattr(verdict, name))]
    assert_golden("claims", "\n".join(lines) + "\n")
