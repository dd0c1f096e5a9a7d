"""Claims: keys by kind, wrong values, and the claims of the paper."""

from __future__ import annotations

from typing import Any

import pytest

from paperbench.specs.table import Table
from tests.specs.small_specs import ONE_EXPECTED, SmallSpecs

A, B, C = "preact/basic", "original/basic", "preact/deep"
VALUES: dict[str, Any] = {
    "cells": [A, B],
    "pairs": [[B, A], [B, C]],
    "measure": "train_loss",
    "within": 0.5,
    "iteration": 8000,
}
KEYS = {
    "lower": ("cells", "measure"),
    "close": ("cells", "measure", "within"),
    "diverges": ("cells",),
    "largest_gain": ("pairs", "measure"),
    "higher_loss_lower_error": ("cells",),
    "early": ("cells", "measure", "iteration"),
}


def set_claim(specs: SmallSpecs, kind: str, **changes: Any) -> None:
    """Replace the claims of table `one` by one of a kind, without the keys whose change is None."""
    values = {**{key: VALUES[key] for key in KEYS[kind]}, **changes}
    claim = {"id": "mine", "says": "It is so", "section": "Sec. 9", "kind": kind}
    specs.set(ONE_EXPECTED, ("claims",), [{**claim, **{k: v for k, v in values.items() if v is not None}}])


def messages(specs: SmallSpecs) -> list[str]:
    return [message for _, _, message in specs.complaints()]


@pytest.mark.parametrize("kind", KEYS)
def test_claim_needs_exactly_the_keys_of_its_kind(specs: SmallSpecs, kind: str) -> None:
    set_claim(specs, kind)
    (claim,) = specs.load().expected.claims
    assert claim.all_cells == ((B, A, C) if kind == "largest_gain" else (A, B))
    set_claim(specs, kind, **dict.fromkeys(KEYS[kind]))
    assert messages(specs) == [f"claims[0].kind: a claim of kind {kind} needs {key}." for key in sorted(KEYS[kind])]
    others = {key: value for key, value in VALUES.items() if key not in KEYS[kind]}
    set_claim(specs, kind, **others)
    found = messages(specs)
    assert {f"claims[0].{key}: is not used by claims of kind {kind}." for key in others} <= set(found)


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("lower", "measure", "test_eror", "must be 'test_error', 'train_loss' or 'train_error', not 'test_eror'."),
        ("lower", "cells", [A], "a claim of kind lower needs at least 2 cells, not 1."),
        ("lower", "cells", [A, B, A], "lists a cell twice."),
        ("lower", "cells", ["preact/bsic", B], f"unknown cell 'preact/bsic'. Did you mean '{A}'?"),
        ("close", "cells", [B, "preact/bsic"], "unknown cell 'preact/bsic'."),
        ("close", "within", 0, "must be above 0, not 0."),
        ("early", "iteration", 0, "must be at least 1, not 0."),
        ("early", "measure", "test_error", "must be train_loss or train_error: runs have no test error before they"),
        ("higher_loss_lower_error", "cells", [A, B, C], "needs exactly 2 cells, not 3."),
        ("largest_gain", "pairs", [[B, A]], "a claim of kind largest_gain needs at least 2 pairs of 2 cells."),
        ("largest_gain", "pairs", [[B, A], [B, A, C]], "needs at least 2 pairs of 2 cells."),
        ("largest_gain", "pairs", [B, A], "must be a list, not "),
        ("largest_gain", "pairs", [[B, A], [B, "nowhere"]], "unknown cell 'nowhere'. Known: gating/basic, "),
        ("lower", "cells", [A, "gating/basic"], "gating/basic is a sweep over several nets"),
    ],
)
def test_wrong_claim_is_refused(specs: SmallSpecs, kind: str, key: str, value: Any, message: str) -> None:
    set_claim(specs, kind, **{key: value})
    assert any(found.startswith(f"claims[0].{key}") and message in found for found in messages(specs))


def test_failing_can_be_claimed_of_a_sweep(specs: SmallSpecs) -> None:
    set_claim(specs, "diverges", cells=["gating/basic"])
    assert specs.load().expected.claims[0].cells == ("gating/basic",)


def test_only_test_errors_can_be_compared_with_literature(specs: SmallSpecs) -> None:
    set_claim(specs, "lower", cells=[A, "nin/basic"], measure="test_error")
    assert specs.load().expected.claims[0].cells == (A, "nin/basic")
    for cells, measure in ((["nin/basic", A], "test_error"), ([A, "nin/basic"], "train_loss")):
        set_claim(specs, "lower", cells=cells, measure=measure)
        assert ["unknown cell 'nin/basic'" in message for message in messages(specs)] == [True]


CLAIMS = {  # by kind
    "table1": {
        "lower": """
            identity_lowest_error identity_lowest_training_loss frozen_gating_worse frozen_gating_higher_training_loss
            exclusive_gating_6_best exclusive_gating_far_behind exclusive_gating_7_better_than_poor_ones
            shortcut_only_gating_0_poor shortcut_only_gating_0_higher_training_loss shortcut_only_gating_bias_matters
            shortcut_only_gating_better_than_exclusive conv_shortcut_poorer conv_shortcut_higher_training_loss
            more_parameters_higher_training_error
        """,
        "early": "identity_fastest_error_reduction",
        "diverges": "plain_fails constant_scaling_unscaled_fails exclusive_gating_0_to_5_fails dropout_fails",
        "converges": "frozen_gating_converges",
        "close": "shortcut_only_gating_6_near_baseline",
    },
    "table2": {
        "lower": """
            bn_after_addition_worse_110 bn_after_addition_worse_164 relu_before_addition_worse_110
            relu_before_addition_worse_164 relu_before_better_than_bn_after_addition_110
            relu_before_better_than_bn_after_addition_164 relu_only_better_than_relu_before_110 preact_lowest_110
            preact_lowest_164
        """,
        "early": "bn_after_addition_slow_start_110 original_slightly_slower_start_164",
        "converges": "original_164_goes_healthy",
        "close": "relu_only_preact_close_110 relu_only_preact_close_164",
    },
    "table3": {
        "lower": """
            preact_better_cifar10_resnet110_1layer preact_better_cifar10_resnet110 preact_better_cifar10_resnet164
            preact_better_cifar10_resnet1001 preact_better_cifar100_resnet164 preact_better_cifar100_resnet1001
            preact_1001_lowest_training_loss original_1001_worse_than_164_cifar10 original_1001_worse_than_110_cifar10
            original_1001_worse_than_164_cifar100
        """,
        "converges": "original_1001_converges_cifar10",
        "largest_gain": "largest_gain_at_1001_cifar10 largest_gain_at_1001_cifar100",
        "early": "original_1001_slow_start",
        "higher_loss_lower_error": """
            regularised_cifar10_resnet110_1layer regularised_cifar10_resnet110 regularised_cifar10_resnet164
            regularised_cifar100_resnet164
        """,
        "close": "warm_up_not_necessary",
    },
    "table4": {
        "lower": "batch_64_slightly_better",
    },
    "table5": {
        "early": """
            constant_scaling_higher_training_error_101 exclusive_gating_higher_training_error_101
            shortcut_only_gating_higher_training_error_101 conv_shortcut_higher_training_error_101
            dropout_shortcut_higher_training_error_101
        """,
        "lower": """
            bn_after_addition_worse_101_top1 bn_after_addition_worse_101_top5
            bn_after_addition_higher_training_loss_101 original_200_worse_than_152 original_200_lower_training_error
            preact_200_better_than_original_200 preact_200_better_than_152 aspect_200_better_than_inception_v3_top1
            aspect_200_better_than_inception_v3_top5
        """,
        "close": "preact_152_gain_small_top1 preact_152_gain_small_top5",
    },
}


@pytest.mark.parametrize("table", CLAIMS)
def test_claims_of_the_paper_by_kind(tables: dict[str, Table], table: str) -> None:
    found = sorted((claim.kind, claim.id) for claim in tables[table].expected.claims)
    assert found == sorted((kind, claim) for kind, claims in CLAIMS[table].items() for claim in claims.split())


@pytest.mark.parametrize("table", CLAIMS)
def test_published_numbers_support_the_claims(tables: dict[str, Table], table: str) -> None:
    """Otherwise a claim would name the wrong cells, or in the wrong order."""
    expected = tables[table].expected
    numbers = {cell.id: cell.number for cell in tables[table].all_cells}
    numbers |= {f"{row.id}/{column}": number for row in expected.literature for column, number in row.cells.items()}
    failing = {cell.id for cell in tables[table].all_cells if cell.expected.value == "fail"}
    for claim in expected.claims:
        printed = [numbers[cell] or (100.0 if cell in failing else None) for cell in claim.cells]
        first, *others = printed or [None]
        if claim.kind == "diverges":
            assert set(claim.cells) <= failing, claim.id
        elif claim.kind == "converges":
            assert not set(claim.cells) & failing, claim.id
        elif claim.kind == "lower" and claim.measure == "test_error":
            assert all(first + (claim.by or 0) < other for other in others if first and other), claim.id
        elif claim.kind == "close":
            assert all(abs(first - other) <= (claim.within or 0) for other in others if first and other), claim.id
        elif claim.kind == "higher_loss_lower_error":
            assert (first or 100) < (others[0] or 0), claim.id
        elif claim.kind == "largest_gain":
            gains = [(numbers[before] or 0) - (numbers[after] or 0) for before, after in claim.pairs]
            assert all(gains[0] > gain for gain in gains[1:]), claim.id


@pytest.mark.parametrize(
    ("table", "cells"),
    [
        ("table1", {"constant_scaling/resnet110", "shortcut_only_gating_0/resnet110", "conv_shortcut/resnet110"}),
        ("table2", {"original/resnet164", "relu_only_preact/resnet164"}),
    ],
)
def test_no_claim_is_about_an_order_within_the_noise(tables: dict[str, Table], table: str, cells: set[str]) -> None:
    """12.22 < 12.35 < 12.86 and 5.91 < 5.93 are printed, but the text does not mention these orders."""
    for claim in tables[table].expected.claims:
        if claim.kind == "lower" and claim.cells[0] in cells:
            assert not cells & set(claim.cells[1:]), claim.id


def test_early_claims_are_before_the_first_drop(tables: dict[str, Table]) -> None:
    for table in tables.values():
        first_drop = table.recipe_in(table.profiles.named("paper")).drops.at[0]
        iterations = [claim.iteration for claim in table.expected.claims if claim.kind == "early"]
        assert all(iteration is not None and iteration < first_drop for iteration in iterations)


def test_claims_compare_cells_of_one_data_set_and_recipe(tables: dict[str, Table]) -> None:
    """Except for the two claims about recipes."""
    of_recipes = {"warm_up_not_necessary", "batch_64_slightly_better"}
    for table in tables.values():
        cells = {cell.id: cell for cell in table.all_cells}
        for claim in table.expected.claims:
            about = [cells[cell] for cell in claim.all_cells if cell in cells]
            assert len({cell.dataset for cell in about}) == 1, claim.id
            assert len({cell.column.metric for cell in about}) == 1, claim.id
            assert len({cell.recipe for cell in about}) == (2 if claim.id in of_recipes else 1), claim.id
