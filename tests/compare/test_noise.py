"""The noise of a cell: by itself, and with a prior from the other cells of its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special

from paperbench.compare.evidence import Evidence
from paperbench.compare.noise import (
    NO_PRIOR,
    PUBLISHED_DEGREES,
    PUBLISHED_FACTOR,
    SINGLE_RUN_FACTOR,
    Noise,
    Prior,
    estimate_noise,
    prior_degrees,
    prior_from_others,
    variance_of,
)
from paperbench.compare.verdicts import CellFacts
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    SECOND,
    Expectation,
    a_table,
    compared,
    expectation,
    external,
    in_cell,
    prior_by_definition,
    records,
    with_expected,
)

A = [6.31, 6.52, 6.18, 6.77, 6.40]

# A cell by itself


def test_variance_is_at_least_that_of_rounding() -> None:
    assert variance_of(A, 0.1) == pytest.approx(np.var(A, ddof=1))
    rounding = integrate.quad(lambda x: x**2 / 0.1, -0.05, 0.05)[0]
    assert variance_of([6.4] * 3, 0.1) == variance_of([6.4, 6.41, 6.4], 0.1) == pytest.approx(rounding)
    assert variance_of([0.1] * 3, 0.0) == 0


def test_noise_without_a_published_std() -> None:
    assert estimate_noise(0.04, 5, None, 5) == Noise(pytest.approx(0.2), 4, "ours", 0, 0)
    assert [estimate_noise(0.04, n, None, 5) for n in range(3)] == [None] * 3


def test_noise_with_a_published_std() -> None:
    weight = PUBLISHED_DEGREES / (4 + PUBLISHED_DEGREES)
    pooled = math.sqrt((1 - weight) * 0.04 + weight * (PUBLISHED_FACTOR * 0.16) ** 2)
    expected = Noise(pytest.approx(pooled), 4 + PUBLISHED_DEGREES, "both", pytest.approx(weight), 0)
    assert estimate_noise(0.04, 5, 0.16, 5) == expected
    assert estimate_noise(0.0, 1, 0.16, 5) == Noise(SINGLE_RUN_FACTOR * 0.16, None, "published", 1, 0)
    assert estimate_noise(0.0, 0, 0.16, 5) is None


@pytest.mark.parametrize(("std", "runs"), [(0.0, 5), (math.nan, 5), (math.inf, 5), (0.16, 1)])
def test_published_std_must_be_of_several_runs(std: float, runs: int) -> None:
    with pytest.raises(ValueError, match="not a standard deviation"):
        estimate_noise(0.04, 5, std, runs)


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_variance_needs_finite_errors(error: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        variance_of([*A, error], 0.01)


# Priors


def test_prior_degrees_invert_the_trigamma_function() -> None:
    excess = np.logspace(-5, 3, 200)
    assert special.polygamma(1, prior_degrees(excess) / 2) == pytest.approx(excess, rel=1e-9)
    assert np.isinf(prior_degrees([0.0, -1.0])).all()


@pytest.mark.parametrize("cells", [1, 2, 3, 4, 5, 10, 12])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_prior_matches_its_definition(cells: int, spread: float) -> None:
    """Tables of cells with equal or unequal degrees of freedom, with and without an outlier."""
    rng = np.random.default_rng([cells, int(10 * spread)])
    tables = 40
    degrees = rng.choice([2.0, 4.0, 9.0], (tables, cells))
    degrees[::2] = 4
    variances = 0.04 * np.exp(2 * spread * rng.standard_normal((tables, cells))) * rng.chisquare(degrees) / degrees
    variances[::4, 0] *= 100
    found = np.stack(prior_from_others(variances, degrees), axis=-1)
    is_alone = set()
    for table in range(tables):
        for cell in range(cells):
            variance, counted = prior_by_definition(list(variances[table]), list(degrees[table]), cell)
            assert found[table, cell, 1] == pytest.approx(counted, rel=1e-8)
            if counted:
                assert found[table, cell, 0] == pytest.approx(variance, rel=1e-10)
            is_alone.add(counted == 0)
    if cells > 3 and spread:
        assert is_alone == {True, False}


def test_prior_scales_with_the_variances() -> None:
    variances = np.random.default_rng(1).chisquare(4, (20, 8))
    (variance, degrees), (scaled, same) = (prior_from_others(scale * variances, 4) for scale in (1, 9))
    assert (scaled, same) == (pytest.approx(9 * variance), pytest.approx(degrees))


LANGAAS = [1.3425032, 0.4647155, 1.1993444, 0.9428569, 0.9421509]
LANGAAS_DEGREES = [6.0, 6.0, 6.0, 6.0, 4.0]


def test_prior_and_moderated_variances_match_limma() -> None:
    """The method's author prints these numbers in limma's test log.

    Source: github.com/bioc/limma, tests/limma-Tests.Rout.save of release 3.16, "Similar to Mette Langaas 19 May 2004";
    the method is that of Smyth (2004). limma includes the cell itself and has no limit, so its cells are here the
    others of one more cell. Their prior variance is a geometric mean with correction, ours the pooled variance.
    """
    variances = np.square([*LANGAAS, 1.0])
    pooled, degrees = prior_from_others(variances, [*LANGAAS_DEGREES, 5.0])
    assert degrees[-1] == pytest.approx(9.306153, abs=1e-6)
    assert pooled[-1] == pytest.approx(np.dot(LANGAAS_DEGREES, variances[:5]) / 28)
    moderated = [
        Prior(0.923179, 9.306153).moderate(std**2, int(own)) for std, own in zip(LANGAAS, LANGAAS_DEGREES, strict=True)
    ]
    printed = [1.2677996, 0.6459499, 1.1251558, 0.9097727, 0.9124980]
    assert [noise.std**2 for noise in moderated] == pytest.approx(printed, abs=1e-6)
    assert [noise.degrees for noise in moderated] == pytest.approx([15.30615] * 4 + [13.30615], abs=1e-5)


@pytest.mark.parametrize(
    ("variances", "degrees", "prior"),
    [
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
def test_degrees_of_freedom_match_limma_on_data_sets_of_r(
    variances: list[float], degrees: float | list[float], prior: float
) -> None:
    """The references are df.prior of limma 3.54.1's squeezeVar, where the limit allows."""
    number = len(variances)
    of_all = [*np.broadcast_to(degrees, number), 9.0]
    found = prior_from_others([*variances, float(np.median(variances))], of_all)[1][-1]
    assert found == pytest.approx(prior, rel=1e-7)


def test_unlimited_degrees_of_freedom_match_limma() -> None:
    """PlantGrowth by group: limma's variance beyond chance, and df.prior."""
    assert prior_degrees(0.09276544949) == pytest.approx(22.54431439, rel=1e-8)


# The other cells of a table


TABLE2, TABLE3, TABLE5 = (a_table(f"table{i}") for i in (2, 3, 5))
NUMBERS = {cell.id: float(cell.number or 0) for cell in TABLE2.cells()}
CELL, *OTHERS = (cell for cell in NUMBERS if cell != "original/resnet110")
BASELINE = "original/resnet110"
Errors = Mapping[str, Sequence[float]]


def errors_of_table(std: float = 0.2, runs: int = 5, seed: int = 0, cells: Sequence[str] = tuple(NUMBERS)) -> Errors:
    """Random errors of each cell around the published numbers."""
    rng = np.random.default_rng(seed)
    drawn = {cell: (NUMBERS[cell] + std * rng.standard_normal(runs)).round(2).tolist() for cell in NUMBERS}
    return {cell: drawn[cell] for cell in cells}


def runs_of(errors: Errors, table: Table = TABLE2, **how: Any) -> list[Record]:
    return [run for cell, found in errors.items() for run in records(table, cell, found, **how)]


def prior_of(
    cell_id: str,
    runs: Sequence[Record],
    *,
    table: Table = TABLE2,
    profile: str = "paper",
    analysis: int = 1,
    planned: int = 5,
    externals: Sequence[ExternalResult] = (),
) -> Prior:
    """The prior of a cell for the conditions of its runs that are closest to the paper."""
    evidence = Evidence(table, profile, planned, runs, externals, tuple)
    cell = table.cell(cell_id)
    group, *_ = evidence.groups(cell, cell.settings[0])
    return evidence.prior(cell, cell.settings[0], group.conditions, analysis)


def by_definition(errors: Errors, cell: str) -> Prior:
    """The prior of a cell, given the errors that count."""
    variances = [variance_of(found, 0.01) for found in errors.values()]
    degrees = [len(found) - 1.0 for found in errors.values()]
    return approximately(*prior_by_definition(variances, degrees, list(errors).index(cell)))


def approximately(variance: float, degrees: float) -> Prior:
    return Prior(pytest.approx(variance, rel=1e-9), pytest.approx(degrees, rel=1e-9))


def check_interval(found: CellFacts, expected: Expectation) -> None:
    assert found.interval
    numbers = (found.interval.difference, found.interval.low, found.interval.high, found.p_value)
    assert numbers == pytest.approx((expected.difference, expected.low, expected.high, expected.p_value), rel=1e-6)


def test_prior_comes_from_the_other_cells() -> None:
    errors = errors_of_table()
    prior = prior_of(CELL, runs_of(errors))
    assert prior == by_definition(errors, CELL)
    assert prior.degrees > 0
    changed = {**errors, CELL: [6.2, 6.9, 6.4, 6.5, 6.1]}
    assert prior_of(CELL, runs_of(changed)) == prior
    assert prior_of(OTHERS[0], runs_of(changed)) != prior_of(OTHERS[0], runs_of(errors))


def test_verdict_uses_the_noise_of_the_table() -> None:
    errors = errors_of_table()
    found = in_cell(compared(TABLE2, *runs_of(errors)), CELL)
    prior = by_definition(errors, CELL)
    assert found.noise
    assert found.noise.rests_on == "table"
    assert found.noise.degrees == pytest.approx(4 + prior_of(CELL, runs_of(errors)).degrees)
    assert found.noise.table_weight == pytest.approx(1 - 4 / found.noise.degrees)
    variance, degrees = (getattr(prior, name).expected for name in ("variance", "degrees"))
    check_interval(found, expectation(errors[CELL], NUMBERS[CELL], prior=(variance, degrees)))


def test_prior_does_not_depend_on_the_cells_compared() -> None:
    runs = runs_of(errors_of_table())
    whole, alone = compared(TABLE2, *runs), compared(TABLE2, *runs, cells=CELL)
    assert in_cell(alone, CELL) == in_cell(whole, CELL)


@pytest.mark.parametrize("count", [2, 4])
def test_only_cells_with_all_runs_give_noise(count: int) -> None:
    """A cell whose seeds 5 to 9 are incomplete counts with its first five."""
    errors = errors_of_table(runs=7)
    cells = [CELL, *OTHERS[:3]]
    first = {cell: errors[cell][:5] for cell in cells}
    incomplete = {OTHERS[4]: errors[OTHERS[4]][:count]}
    beyond = {**first, OTHERS[0]: errors[OTHERS[0]]}
    assert prior_of(CELL, runs_of({**beyond, **incomplete})) == by_definition(first, CELL)
    assert prior_of(OTHERS[4], runs_of({**first, **incomplete})) == NO_PRIOR


@pytest.mark.parametrize("how", [{"precision": "tf32"}, {"numerics": 2}, {"data": COPY}])
def test_prior_does_not_cross_conditions(how: dict[str, Any]) -> None:
    errors = errors_of_table()
    others = {cell: errors[cell] for cell in OTHERS}
    runs = runs_of({CELL: errors[CELL]})
    assert prior_of(CELL, [*runs, *runs_of(others, **how)]) == approximately(0, 0)
    assert prior_of(OTHERS[0], runs_of(others, **how)) == by_definition(others, OTHERS[0])
    if "numerics" not in how:  # two records of one run would contradict each other
        both = [*runs_of(errors), *runs_of(errors_of_table(seed=1), **how)]
        assert prior_of(CELL, both) == by_definition(errors, CELL)


def test_prior_does_not_cross_versions() -> None:
    errors = errors_of_table()
    runs = runs_of({cell: errors[cell] for cell in OTHERS}, numerics=2)
    assert prior_of(CELL, [*runs, *runs_of({CELL: errors[CELL]})]).degrees == 0


def test_prior_does_not_cross_sources_of_external_results() -> None:
    errors = errors_of_table()

    def entered(sources: Mapping[str, str]) -> list[ExternalResult]:
        return [
            external(TABLE2, cell, error, seed=seed, source=source)
            for cell, source in sources.items()
            for seed, error in enumerate(errors[cell])
        ]

    same, other = entered(dict.fromkeys(NUMBERS, "one")), entered(dict.fromkeys(NUMBERS, "other") | {CELL: "one"})
    assert prior_of(CELL, [], externals=same) == by_definition(errors, CELL)
    assert prior_of(CELL, [], externals=other).degrees == 0
    ours = runs_of({cell: errors[cell] for cell in OTHERS})
    assert prior_of(CELL, ours, externals=entered({CELL: "one"})).degrees == 0


def test_prior_does_not_cross_data_sets() -> None:
    on_cifar10 = ["cifar10_resnet110/original", "cifar10_resnet164/original", "cifar10_resnet164/preact"]
    on_cifar100 = ["cifar100_resnet164/original", "cifar100_resnet1001/original", "cifar100_resnet164/preact"]
    rng = np.random.default_rng(3)
    errors = {cell: (6 + 0.2 * rng.standard_normal(5)).tolist() for cell in (*on_cifar10, *on_cifar100)}
    runs = runs_of(errors, TABLE3)
    for cells in (on_cifar10, on_cifar100):
        expected = by_definition({cell: errors[cell] for cell in cells}, cells[0])
        assert prior_of(cells[0], runs, table=TABLE3) == expected


def test_net_in_two_cells_counts_once() -> None:
    """The profile shallow trains the same net for ResNet-164 and ResNet-1001."""
    cells = ["cifar10_resnet164/original", "cifar10_resnet164/preact", "cifar10_resnet110/original"]
    rng = np.random.default_rng(4)
    errors = {cell: (6 + 0.2 * rng.standard_normal(5)).tolist() for cell in cells}
    runs = runs_of(errors, TABLE3, profile="shallow")
    how: dict[str, Any] = {"table": TABLE3, "profile": "shallow"}
    assert prior_of(cells[2], runs, **how) == by_definition(errors, cells[2])
    assert prior_of("cifar10_resnet1001/preact", runs, **how) == by_definition(errors, cells[1])


@pytest.mark.parametrize("error", [math.inf, 25.0])
def test_cell_with_a_failed_run_neither_gives_nor_takes(error: float) -> None:
    errors = errors_of_table()
    failed = {**errors, OTHERS[0]: [*errors[OTHERS[0]][:4], error]}
    rest = {cell: found for cell, found in errors.items() if cell != OTHERS[0]}
    assert prior_of(CELL, runs_of(failed)) == by_definition(rest, CELL)
    assert prior_of(OTHERS[0], runs_of(failed)) == NO_PRIOR


def test_half_diverged_cell_leaves_its_neighbours_as_they_are() -> None:
    errors = errors_of_table()
    odd = OTHERS[0]
    with_odd = {**errors, odd: [*errors[odd][:4], NUMBERS[odd] + 3]}
    rest = {cell: found for cell, found in errors.items() if cell != odd}
    found, without = compared(TABLE2, *runs_of(with_odd)), compared(TABLE2, *runs_of(rest))
    for cell in rest:
        one, other = in_cell(found, cell), in_cell(without, cell)
        assert (one.verdict, one.p_value) == (other.verdict, pytest.approx(other.p_value, rel=1e-9))
    alone = compared(TABLE2, *runs_of({odd: with_odd[odd]}))
    assert in_cell(found, odd) == in_cell(alone, odd)


def test_two_cells_are_judged_by_themselves() -> None:
    errors = errors_of_table(cells=[CELL, BASELINE])
    for cell, found in errors.items():
        alone = compared(TABLE2, *runs_of({cell: found}))
        assert in_cell(compared(TABLE2, *runs_of(errors)), cell) == in_cell(alone, cell)
    three = compared(TABLE2, *runs_of(errors_of_table(cells=[CELL, BASELINE, OTHERS[0]])))
    noise = in_cell(three, CELL).noise
    assert noise
    assert (noise.rests_on, noise.degrees) == ("table", 4 + 2)


def test_two_planned_runs_give_no_noise() -> None:
    runs = runs_of(errors_of_table(runs=2))
    assert prior_of(CELL, runs, planned=2) == NO_PRIOR
    more = runs_of(errors_of_table(runs=4))
    assert prior_of(CELL, more, planned=2).degrees == 0
    assert prior_of(CELL, more, planned=2, analysis=2).degrees > 0


def test_second_analysis_takes_what_neighbours_have() -> None:
    """Ten runs of the cell and of one neighbour, five of the others."""
    errors = errors_of_table(std=0.2, runs=10)
    counted = {cell: found if cell in (CELL, OTHERS[0]) else found[:5] for cell, found in errors.items()}
    shift = 0.6
    counted[CELL] = [round(error + shift, 2) for error in counted[CELL]]
    found = in_cell(compared(TABLE2, *runs_of(counted)), CELL)
    assert found.interval
    assert (found.analysis, found.interval.level) == (2, SECOND)
    prior = by_definition(counted, CELL)
    variance, degrees = (getattr(prior, name).expected for name in ("variance", "degrees"))
    check_interval(found, expectation(counted[CELL], NUMBERS[CELL], prior=(variance, degrees), level=SECOND))
    at_five = {cell: found[:5] for cell, found in counted.items()}
    assert prior_of(CELL, runs_of(counted), analysis=1) == by_definition(at_five, CELL)


def test_three_runs_share_noise_in_table5() -> None:
    cells = ["original_resnet152/top1", "preact_resnet152/top1", "original_resnet200/top1", "preact_resnet200/top1"]
    rng = np.random.default_rng(5)
    errors = {cell: (21 + 0.2 * rng.standard_normal(3)).tolist() for cell in cells}
    entered = [external(TABLE5, cell, e, seed=seed) for cell, found in errors.items() for seed, e in enumerate(found)]
    variances = [variance_of(found, 0.1) for found in errors.values()]
    prior = prior_of(cells[0], [], table=TABLE5, planned=3, externals=entered)
    assert prior == approximately(*prior_by_definition(variances, [2.0] * 4, 0))
    assert 0 < prior.degrees <= 2
    comparison = compared(TABLE5, externals=entered)
    noise = in_cell(comparison, cells[0]).noise
    assert noise
    assert (noise.rests_on, noise.degrees) == ("table", pytest.approx(2 + prior.degrees))


def test_prior_does_not_cross_metrics() -> None:
    """Top-5 errors vary less than the top-1 errors of the same nets."""
    nets = ["original_resnet152", "preact_resnet152", "original_resnet200", "preact_resnet200"]
    rng = np.random.default_rng(6)
    errors = {f"{net}/top1": (21 + 0.4 * rng.standard_normal(3)).tolist() for net in nets}
    of_top5 = {f"{net}/top5": (6 + 0.1 * rng.standard_normal(3)).tolist() for net in nets}

    def prior(found: Errors, cell: str) -> Prior:
        entered = [external(TABLE5, one, e, seed=seed) for one, its in found.items() for seed, e in enumerate(its)]
        return prior_of(cell, [], table=TABLE5, planned=3, externals=entered)

    for own in (errors, of_top5):
        for cell in own:
            assert prior({**errors, **of_top5}, cell) == prior(own, cell)


@pytest.mark.parametrize(("std", "is_wider"), [(0.6, True), (0.05, False)])
def test_published_std_only_widens(std: float, is_wider: bool) -> None:
    errors = errors_of_table()
    with_std = in_cell(compared(with_expected(TABLE2, CELL, std=std, std_source="a text"), *runs_of(errors)), CELL)
    without = in_cell(compared(TABLE2, *runs_of(errors)), CELL)
    assert (with_std.interval != without.interval) == is_wider
    prior = by_definition(errors, CELL)
    variance, degrees = (getattr(prior, name).expected for name in ("variance", "degrees"))
    check_interval(with_std, expectation(errors[CELL], NUMBERS[CELL], prior=(variance, degrees), std=std))


def test_identical_runs_everywhere_have_the_noise_of_rounding() -> None:
    comparison = compared(TABLE2, *runs_of({cell: [number + 0.1] * 5 for cell, number in NUMBERS.items()}))
    for cell in comparison.cells:
        found = cell
        assert found.noise
        assert found.interval
        assert found.verdict == "reproduced"
        assert found.noise.std == pytest.approx(0.01 / math.sqrt(12))
        assert math.isfinite(found.interval.low + found.interval.high + found.interval.degrees)
    assert [claim.standing for claim in comparison.claims].count("not run") == 0
