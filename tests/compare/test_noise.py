"""The noise of a cell: by itself, and with a prior from the other cells of its table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special

from paperbench.compare.evidence import Evidence, errors_of
from paperbench.compare.noise import Noise, Prior, estimate_noise, prior_degrees, prior_from_others, variance_of
from tests.compare.judging import (
    COPY,
    a_table,
    compared,
    external,
    in_cell,
    prior_by_definition,
    records,
    runs_of,
    table_prior,
)
from tests.fuzz.strategies import share_of_examples

TABLE2, TABLE3 = a_table("table2"), a_table("table3")
NUMBERS = {cell.id: float(cell.number or 0) for cell in TABLE2.cells()}
SEEDS = st.integers(0, 2**32 - 1)

# A cell by itself


@given(errors=st.lists(st.floats(0, 100), min_size=1, max_size=12), resolution=st.sampled_from([0.0, 0.01, 0.1]))
def test_variance_is_at_least_that_of_rounding(errors: list[float], resolution: float) -> None:
    rounding = integrate.quad(lambda x: x**2 / resolution, -resolution / 2, resolution / 2)[0] if resolution else 0.0
    own = float(np.var(errors, ddof=1)) if len(set(errors)) > 1 else 0.0
    assert variance_of(errors, resolution) == pytest.approx(max(own, rounding), rel=1e-9)
    assert variance_of([[0.1] * 3, [1, 2, 3]]).tolist() == [0, 1]


@given(std=st.floats(1e-3, 5), runs=st.integers(0, 12), published=st.floats(1e-3, 5))
def test_noise_of_a_cell_by_itself(std: float, runs: int, published: float) -> None:
    alone, pooled = estimate_noise(std**2, runs, None), estimate_noise(std**2, runs, published)
    assert alone == (Noise(pytest.approx(std), runs - 1, "ours", 0, 0) if runs >= 3 else None)
    if runs < 2:
        assert pooled == (Noise(1.55 * published, None, "published", 1, 0) if runs else None)
    else:
        variance = ((runs - 1) * std**2 + 2 * (1.4 * published) ** 2) / (runs + 1)
        weight = pytest.approx(2 / (runs + 1))
        assert pooled == Noise(pytest.approx(math.sqrt(variance)), runs + 1, "both", weight, 0)


# Priors


def test_prior_degrees_invert_the_trigamma_function() -> None:
    excess = np.logspace(-5, 3, 200)
    assert special.polygamma(1, prior_degrees(excess) / 2) == pytest.approx(excess, rel=1e-9)
    assert np.isinf(prior_degrees([0.0, -1.0])).all()


@given(cells=st.integers(1, 12), spread=st.sampled_from([0.0, 0.5, 1.5]), is_even=st.booleans(), seed=SEEDS)
def test_prior_matches_its_definition(cells: int, spread: float, is_even: bool, seed: int) -> None:
    """Tables of cells with equal or unequal degrees of freedom, with and without an outlier."""
    rng, tables = np.random.default_rng(seed), 8
    degrees = np.full((tables, cells), 4.0) if is_even else rng.choice([2.0, 4.0, 9.0], (tables, cells))
    variances = 0.04 * np.exp(2 * spread * rng.standard_normal((tables, cells))) * rng.chisquare(degrees) / degrees
    variances[::4, 0] *= 100
    found = np.stack(prior_from_others(variances, degrees), axis=-1)
    for table in range(tables):
        for cell in range(cells):
            variance, counted = prior_by_definition(list(variances[table]), list(degrees[table]), cell)
            assert found[table, cell, 1] == pytest.approx(counted, rel=1e-8)
            if counted:
                assert found[table, cell, 0] == pytest.approx(variance, rel=1e-10)


LANGAAS = [1.3425032, 0.4647155, 1.1993444, 0.9428569, 0.9421509]


@pytest.mark.parametrize(
    ("variances", "degrees", "prior"),
    [
        # limma's test log, see below
        ([std**2 for std in LANGAAS], [6.0, 6.0, 6.0, 6.0, 4.0], 9.306153),
        # InsectSprays by spray
        ([22.27272727, 18.24242424, 3.901515152, 6.265151515, 3.0, 38.60606061], 11.0, 3.150220909),
        # morley by experiment
        ([11009.47368, 3741.052632, 6257.894737, 3605.0, 2939.736842], 19.0, 12.41592274),
        # chickwts by feed: limma's answer is infinite, which is limited here
        (
            [4151.719697, 1491.955556, 2728.568182, 4212.090909, 2929.956044, 2384.992424],
            [11.0, 9.0, 11.0, 10.0, 13.0, 11.0],
            65 * 5 / 6 / 2,
        ),
        # PlantGrowth by group: limma's 22.5 is limited, too
        ([0.3399955556, 0.6299211111, 0.1958711111], 9.0, 27 * 2 / 3 / 2),
    ],
)
def test_degrees_of_freedom_match_limma(variances: list[float], degrees: float | list[float], prior: float) -> None:
    """The references are df.prior of limma 3.54.1's squeezeVar on data sets of R, where the limit allows.

    limma includes the cell itself and has no limit, so its cells are here the others of one more cell. Their prior
    variance is a geometric mean with correction, ours the pooled variance.
    """
    of_all = [*np.broadcast_to(degrees, len(variances)), 9.0]
    pooled, found = prior_from_others([*variances, float(np.median(variances))], of_all)
    assert found[-1] == pytest.approx(prior, rel=1e-6)
    assert pooled[-1] == pytest.approx(np.average(variances, weights=of_all[:-1]))


def test_moderated_variances_match_limma() -> None:
    """limma's test log: github.com/bioc/limma, tests/limma-Tests.Rout.save of 3.16, "Similar to Mette Langaas".

    The method is that of Smyth (2004). The last number is limma's for PlantGrowth by group, with variance and df.prior.
    """
    moderated = [
        Prior(0.923179, 9.306153).moderate(std**2, own) for std, own in zip(LANGAAS, (6, 6, 6, 6, 4), strict=True)
    ]
    printed = [1.2677996, 0.6459499, 1.1251558, 0.9097727, 0.9124980]
    assert [noise.std**2 for noise in moderated] == pytest.approx(printed, abs=1e-6)
    assert [noise.degrees for noise in moderated] == pytest.approx([15.30615] * 4 + [13.30615], abs=1e-5)
    assert {noise.rests_on for noise in moderated} == {"table"}
    assert prior_degrees(0.09276544949) == pytest.approx(22.54431439, rel=1e-8)


# The other cells of a table


CONDITIONS: dict[str, dict[str, Any]] = {
    "": {},
    "tf32": {"precision": "tf32"},
    "numerics": {"numerics": 2},
    "copy": {"data": COPY},
    "a paper": {"source": "a paper"},
    "a blog": {"source": "a blog"},
}


@pytest.mark.parametrize(
    ("name", "conditions"),
    [("table2", list(CONDITIONS)), ("table3", ["", "", "tf32"]), ("table5", ["a paper", "a paper", "a blog"])],
)
@share_of_examples(2)
@given(planned=st.sampled_from([2, 3, 5]), seed=SEEDS)
def test_prior_is_of_nets_with_the_same_conditions_data_and_metric(
    name: str, conditions: Sequence[str], planned: int, seed: int
) -> None:
    """As far as they have all runs of an analysis, or at least of the first, and none has failed."""
    rng, table = np.random.default_rng(seed), a_table(name)
    cells = table.cells(["*_resnet152/*", "*_resnet200/*"]) if name == "table5" else table.cells()
    common = rng.choice(conditions)
    errors: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(dict)
    runs, entered = [], []
    for cell in cells:
        for condition in dict.fromkeys([common, rng.choice(conditions)]):
            if condition != common and {condition, common} == {"", "numerics"}:
                continue  # two records of one run would contradict each other
            count = int(rng.choice([planned, planned, planned, planned - 1, planned + 1, 2 * planned]))
            its = (6 + rng.choice([0.2, 0.2, 2.0]) * rng.standard_normal(count)).clip(0.1).round(2).tolist()
            if cell.dataset == "cifar10" and rng.random() < 0.1:
                its[0] = float(rng.choice([25.0, 25.0, math.inf]))
            errors[condition, cell.dataset, cell.column.metric][cell.id] = its
            how = CONDITIONS[condition]
            if "source" in how:
                entered += [external(table, cell.id, e if e < 99 else None, seed=s, **how) for s, e in enumerate(its)]
            else:
                runs += records(table, cell.id, its, **how)
    evidence = Evidence(table, "paper", planned, runs, entered, tuple)
    for cell in cells:
        for group in evidence.groups(cell, cell.settings[0]):
            own = errors_of(group.runs)
            alike = next(found for found in errors.values() if found.get(cell.id) == own)
            for analysis in (1, 2):
                prior = evidence.prior(cell, cell.settings[0], group.conditions, analysis)
                expected = table_prior(alike, cell.id, analysis * planned, planned, cell.resolution)
                if expected[1]:
                    assert (prior.variance, prior.degrees) == pytest.approx(expected, rel=1e-9)
                else:
                    assert prior.degrees == 0


def errors_of_table(seed: int = 0) -> dict[str, list[float]]:
    """Random errors of each cell of Table 2 around the published numbers."""
    rng = np.random.default_rng(seed)
    return {cell: (number + 0.2 * rng.standard_normal(5)).round(2).tolist() for cell, number in NUMBERS.items()}


def test_verdict_does_not_depend_on_the_cells_compared() -> None:
    runs, cell = runs_of(TABLE2, errors_of_table()), "preact/resnet110"
    found = in_cell(compared(TABLE2, *runs), cell)
    assert found.noise
    assert (found.noise.rests_on, in_cell(compared(TABLE2, *runs, cells=cell), cell)) == ("table", found)


def test_net_in_two_cells_counts_once() -> None:
    """The profile shallow trains the same net for ResNet-164 and ResNet-1001."""
    cells = ["cifar10_resnet164/original", "cifar10_resnet164/preact", "cifar10_resnet110/original"]
    errors = dict(zip(cells, errors_of_table(4).values(), strict=False))
    evidence = Evidence(TABLE3, "shallow", 5, runs_of(TABLE3, errors, profile="shallow"), (), tuple)
    for cell_id, its in ((cells[2], cells[2]), ("cifar10_resnet1001/preact", cells[1])):
        cell = TABLE3.cell(cell_id)
        (group,) = evidence.groups(cell, cell.settings[0])
        prior = evidence.prior(cell, cell.settings[0], group.conditions, 1)
        assert (prior.variance, prior.degrees) == pytest.approx(table_prior(errors, its))


def test_identical_runs_everywhere_have_the_noise_of_rounding() -> None:
    comparison = compared(TABLE2, *runs_of(TABLE2, {cell: [number + 0.1] * 5 for cell, number in NUMBERS.items()}))
    for cell in comparison.cells:
        assert cell.noise
        assert cell.interval
        assert (cell.verdict, cell.noise.std) == ("reproduced", pytest.approx(0.01 / math.sqrt(12)))
        assert math.isfinite(cell.interval.low + cell.interval.high + cell.interval.degrees)
    assert "not run" not in [claim.standing for claim in comparison.claims]
