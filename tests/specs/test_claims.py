"""The claims: those of paper.md 4.3 are there, about cells that there are; a broken one is refused at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.specs.table import Table, load_table
from tests.helpers import edit, line_of
from tests.specs.conftest import Problems

FILE = "expected/table3.yaml"
PLACE = "claims:\n  # One a row"
A, B, C = "cifar10_resnet110/preact", "cifar10_resnet110/original", "cifar10_resnet164/preact"
GIVEN = {
    "cells": f"[{A}, {B}]",
    "pairs": f"[[{B}, {A}], [{B}, {C}]]",
    "measure": "train_loss",
    "within": "0.5",
    "iteration": "8000",
}
KEYS = {
    "lower": ("cells", "measure"),
    "close": ("cells", "measure", "within"),
    "diverges": ("cells",),
    "largest_gain": ("pairs", "measure"),
    "higher_loss_lower_error": ("cells",),
    "early": ("cells", "measure", "iteration"),
}


def claim_of(kind: str, /, **changes: str) -> dict[str, str]:
    given = {key: GIVEN[key] for key in KEYS[kind]}
    return {"id": "mine", "says": "it is so", "section": "Sec. 9", "kind": kind, **given, **changes}


def written(claim: dict[str, str]) -> tuple[str, str]:
    """The claim as the first of Table 3's, each key in a line of its own."""
    lines = "\n    ".join(f"{key}: {value}" for key, value in claim.items())
    return PLACE, f"claims:\n  - {lines}\n  # One a row"


def line_of_key(specs: Path, claim: dict[str, str], key: str) -> int:
    return line_of(specs / FILE, "id: mine") + list(claim).index(key)


@pytest.mark.parametrize("kind", KEYS)
def test_a_claim_of_each_kind_is_read(specs: Path, kind: str) -> None:
    edit(specs / FILE, *written(claim_of(kind)))
    claim = load_table("table3", specs).expected.claims[0]
    assert (claim.id, claim.kind) == ("mine", kind)
    assert claim.all_cells == ((B, A, C) if kind == "largest_gain" else (A, B))


@pytest.mark.parametrize("kind", KEYS)
def test_a_claim_has_all_keys_of_its_kind(problems: Problems, specs: Path, kind: str) -> None:
    claim = {key: value for key, value in claim_of(kind).items() if key not in KEYS[kind]}
    line = {message: line for line, message in problems("table3", FILE, written(claim))}
    assert set(line) == {f"claims[0].kind: a claim of kind {kind} needs {key}." for key in KEYS[kind]}
    assert set(line.values()) == {line_of_key(specs, claim, "kind")}


@pytest.mark.parametrize("kind", KEYS)
def test_a_claim_has_no_keys_of_other_kinds(problems: Problems, specs: Path, kind: str) -> None:
    others = {key: value for key, value in GIVEN.items() if key not in KEYS[kind]}
    claim = claim_of(kind, **others)
    found = [problem for problem in problems("table3", FILE, written(claim)) if "no use for it" in problem[1]]
    assert found == [
        (line_of_key(specs, claim, key), f"claims[0].{key}: a claim of kind {kind} has no use for it.")
        for key in others
    ]


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("lower", "measure", "test_eror", "must be 'test_error', 'train_loss' or 'train_error', not 'test_eror'."),
        ("lower", "cells", f"[{A}]", "a claim of kind lower is not about 1 cells."),
        ("lower", "cells", f"[{A}, {B}, {A}]", "a cell stands twice."),
        (
            "lower",
            "cells",
            f"[cifar10_resnet11/preact, {B}]",
            f"unknown cell 'cifar10_resnet11/preact'. Did you mean '{A}'?",
        ),
        ("close", "cells", f"[{B}, cifar10_resnet110/preac]", "unknown cell 'cifar10_resnet110/preac'. Did you mean"),
        ("diverges", "cells", "[original/resnet110]", "unknown cell 'original/resnet110'. "),
        ("close", "within", "0", "must be above 0, not 0."),
        ("early", "iteration", "0", "must be at least 1, not 0."),
        ("early", "measure", "test_error", "must be train_loss or train_error: a prefix of a run has no test error."),
        ("higher_loss_lower_error", "cells", f"[{A}, {B}, {C}]", "is not about 3 cells."),
        ("largest_gain", "pairs", f"[[{B}, {A}]]", "a largest gain needs two or more pairs of two cells."),
        ("largest_gain", "pairs", f"[[{B}, {A}], [{B}, {A}, {C}]]", "a largest gain needs two or more pairs of two"),
        ("largest_gain", "pairs", f"[{B}, {A}]", "must be a list, not "),
        ("largest_gain", "pairs", f"[[{B}, {A}], [{B}, nowhere]]", "unknown cell 'nowhere'. Known: cifar100_"),
    ],
)
def test_a_value_that_makes_no_claim_is_refused(
    problems: Problems, specs: Path, kind: str, key: str, value: str, message: str
) -> None:
    claim = claim_of(kind, **{key: value})
    line, told = problems("table3", FILE, written(claim))[0]
    assert line == line_of_key(specs, claim, key)
    assert message in told


OF_TABLE4 = "expected/table4.yaml", "    cells: [preact_resnet1001_batch64/cifar10, preact_resnet1001/cifar10]"


@pytest.mark.parametrize(
    ("cells", "measure"),
    [
        ("[elu/cifar10, preact_resnet1001/cifar10]", "test_error"),
        ("[preact_resnet1001/cifar10, elu/cifar10]", "train_loss"),
        ("[preact_resnet1001/cifar10, elu/cifar11]", "test_error"),
    ],
)
def test_only_the_test_errors_of_others_can_be_beaten(problems: Problems, cells: str, measure: str) -> None:
    name, old = OF_TABLE4
    edits = [(old, f"    cells: {cells}"), ("    measure: test_error", f"    measure: {measure}")]
    ((_, message),) = problems("table4", name, *edits)
    assert "unknown cell 'elu/cifar1" in message


def test_a_claim_may_be_about_the_number_of_others(specs: Path) -> None:
    name, old = OF_TABLE4
    edit(specs / name, old, "    cells: [preact_resnet1001/cifar10, elu/cifar10]")
    assert load_table("table4", specs).expected.claims[0].cells == ("preact_resnet1001/cifar10", "elu/cifar10")


def test_only_a_failure_can_be_claimed_of_several_nets_at_once(problems: Problems) -> None:
    old = "    cells: [exclusive_gating_6/resnet110, exclusive_gating_7/resnet110]"
    new = "    cells: [exclusive_gating_6/resnet110, exclusive_gating_0_to_5/resnet110]"
    ((_, message),) = problems("table1", "expected/table1.yaml", (old, new))
    assert message.endswith("exclusive_gating_0_to_5/resnet110 stands for several nets.")


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
def test_every_claim_of_the_paper_is_there_and_of_the_right_kind(tables: dict[str, Table], table: str) -> None:
    found = sorted((claim.kind, claim.id) for claim in tables[table].expected.claims)
    assert found == sorted((kind, claim) for kind, claims in CLAIMS[table].items() for claim in claims.split())


@pytest.mark.parametrize("table", CLAIMS)
def test_the_papers_own_numbers_bear_out_its_claims(tables: dict[str, Table], table: str) -> None:
    """A claim that its own table contradicts has its cells in the wrong order, or is about the wrong ones."""
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
    """12.22 < 12.35 < 12.86 and 5.91 < 5.93 are orders that the paper prints and does not speak of."""
    for claim in tables[table].expected.claims:
        if claim.kind == "lower" and claim.cells[0] in cells:
            assert not cells & set(claim.cells[1:]), claim.id


def test_early_claims_are_about_the_time_before_the_first_drop_of_the_rate(tables: dict[str, Table]) -> None:
    for table in tables.values():
        first_drop = table.recipe_in(table.profiles.named("paper")).drops.at[0]
        iterations = [claim.iteration for claim in table.expected.claims if claim.kind == "early"]
        assert all(iteration is not None and iteration < first_drop for iteration in iterations)


def test_claims_compare_runs_of_one_data_set_and_for_losses_of_one_recipe(tables: dict[str, Table]) -> None:
    """But for the two that are about another recipe."""
    of_recipes = {"warm_up_not_necessary", "batch_64_slightly_better"}
    for table in tables.values():
        cells = {cell.id: cell for cell in table.all_cells}
        for claim in table.expected.claims:
            about = [cells[cell] for cell in claim.all_cells if cell in cells]
            assert len({cell.dataset for cell in about}) == 1, claim.id
            assert len({cell.column.metric for cell in about}) == 1, claim.id
            assert len({cell.recipe for cell in about}) == (2 if claim.id in of_recipes else 1), claim.id
