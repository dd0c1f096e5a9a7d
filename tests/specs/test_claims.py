"""Claims: keys by kind, wrong values, and the claims of the paper."""

from __future__ import annotations

from collections import Counter
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
    "declines": ("cells", "measure"),
}


def set_claim(specs: SmallSpecs, kind: str, **changes: Any) -> None:
    """Replace the claims of table `one` by one of a kind, without the keys whose change is None."""
    values = {**{key: VALUES[key] for key in KEYS[kind]}, **changes}
    if kind == "declines" and "measure" not in changes:
        values["measure"] = "negative_share"
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
        ("lower", "measure", "test_eror", "must be 'test_error', 'train_loss', 'train_error' or 'negative_share', not"),
        ("lower", "cells", [A], "a claim of kind lower needs at least 2 cells, not 1."),
        ("lower", "cells", [A, B, A], "lists a cell twice."),
        ("lower", "cells", ["preact/bsic", B], f"unknown cell 'preact/bsic'. Did you mean '{A}'?"),
        ("close", "within", 0, "must be above 0, not 0."),
        ("early", "measure", "test_error", "must be train_loss or train_error: runs have no others before they"),
        ("early", "measure", "negative_share", "must be train_loss or train_error: runs have no others before they"),
        ("declines", "measure", "train_loss", "must be negative_share: no others are measured at initialisation."),
        ("declines", "cells", ["gating/basic"], "gating/basic is a sweep over several nets"),
        ("higher_loss_lower_error", "cells", [A, B, C], "needs exactly 2 cells, not 3."),
        ("largest_gain", "pairs", [[B, A]], "a claim of kind largest_gain needs at least 2 pairs of 2 cells."),
        ("largest_gain", "pairs", [[B, A], [B, A, C]], "needs at least 2 pairs of 2 cells."),
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


KINDS = {
    "table1": {"lower": 14, "early": 1, "diverges": 4, "converges": 1, "close": 1},
    "table2": {"lower": 17, "early": 2, "converges": 1, "close": 2},
    "table3": {
        "lower": 11,
        "early": 1,
        "converges": 1,
        "close": 1,
        "largest_gain": 2,
        "higher_loss_lower_error": 4,
        "declines": 1,
    },
    "table4": {"lower": 1},
    "table5": {"lower": 9, "early": 5, "close": 2},
}


@pytest.mark.parametrize("table", KINDS)
def test_number_of_the_papers_claims_by_kind(tables: dict[str, Table], table: str) -> None:
    assert Counter(claim.kind for claim in tables[table].expected.claims) == KINDS[table]


@pytest.mark.parametrize("table", KINDS)
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
