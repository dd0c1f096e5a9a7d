from __future__ import annotations

import copy
import dataclasses
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import jsonschema
import pytest
from scipy import stats

from paperbench import __version__
from paperbench.compare.comparison import Comparison
from paperbench.report.json_format import render, schema
from paperbench.specs.claim import Kind
from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT
from tests.report.comparing import (
    COPY,
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    external,
    more_than_looked_at,
    record,
    records,
)


@pytest.fixture(scope="module")
def table1() -> Table:
    return load_table("table1", ROOT)


@pytest.fixture(scope="module")
def numbers(table2: Table) -> Comparison:
    return every_verdict_of_numbers(table2)


@pytest.fixture(scope="module")
def failing(table1: Table) -> Comparison:
    return every_verdict_of_failing(table1)


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


def read(text: str) -> dict[str, Any]:
    assert text.endswith("}\n")
    value: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return value


def errors(value: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def by_id(value: dict[str, Any], what: str = "cells") -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in value[what]}


def objects(value: object) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(part)


def test_the_schema_is_one_and_leaves_nothing_open() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    closed = [o for o in objects(schema()) if isinstance(o.get("properties"), dict) and "type" in o]
    assert len(closed) > 10
    for one in closed:
        assert one["additionalProperties"] is False
        assert one["required"] == list(one["properties"])
        assert one["description"]
        for name, part in one["properties"].items():
            assert part.keys() & {"description", "$ref"} or one["description"].startswith("Number of"), name


def test_what_comes_out_is_as_the_schema_says(
    table1: Table, table2: Table, numbers: Comparison, failing: Comparison
) -> None:
    smoke = record(table2, "preact/resnet110", 9.0, profile="smoke")
    unknown_spread = external(table2, "original/resnet110", 6.7)
    for comparison in (
        numbers,
        failing,
        compared(table1),
        compared(table2, [smoke], profile="smoke"),
        compared(table2, [], [unknown_spread], seeds=1),
        *(compared(load_table(name, ROOT)) for name in ("table3", "table4", "table5")),
    ):
        assert errors(read(render(comparison, ["a file was damaged"]))) == []


def test_the_schema_notices_each_key_that_is_missing_or_too_many(numbers: Comparison) -> None:
    whole = read(render(numbers))
    open_ended = [id(whole["footnotes"]), *(id(cell["labels"]) for cell in whole["cells"])]
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in objects(whole):
        if id(one) not in open_ended:
            kinds.setdefault(tuple(one), one)
    assert len(kinds) >= 15
    for one in kinds.values():
        before = copy.copy(one)
        one["surprise"] = 1
        assert errors(whole), before
        for key in before:
            one.clear()
            one.update({k: v for k, v in before.items() if k != key})
            assert errors(whole), (key, before)
        one.clear()
        one.update(before)
    assert errors(whole) == []


def test_a_wrong_verdict_and_an_impossible_error_are_noticed(numbers: Comparison) -> None:
    for key, wrong in (("verdict", "fine"), ("difference", "0.1"), ("p_value", 1.5), ("look", 3)):
        value = read(render(numbers))
        value["cells"][0][key] = wrong
        assert errors(value), key


def test_every_situation_has_its_verdict(numbers: Comparison, failing: Comparison) -> None:
    value = read(render(numbers))
    assert {name: cell["verdict"] for name, cell in by_id(value).items()} == {
        "original/resnet110": "reproduced",
        "original/resnet164": "reproduced",
        "bn_after_addition/resnet110": "worse",
        "bn_after_addition/resnet164": "better",
        "relu_before_addition/resnet110": "underpowered",
        "relu_before_addition/resnet164": "underpowered",
        "relu_only_preact/resnet110": "not comparable",
        "relu_only_preact/resnet164": "not run",
        "preact/resnet110": "worse",
        "preact/resnet164": "reproduced",
    }
    summary = value["summary"]
    assert summary["verdicts"] == {
        "reproduced": 3,
        "worse": 2,
        "better": 1,
        "underpowered": 2,
        "not comparable": 1,
        "not run": 1,
    }
    assert summary["differing"] == ["bn_after_addition/resnet110", "bn_after_addition/resnet164"]
    assert (summary["holds"], summary["all_reproduced"]) == (False, False)
    assert sum(summary["standings"].values()) == len(value["claims"]) == len(numbers.claims) > 5
    found = {name: cell["verdict"] for name, cell in by_id(read(render(failing))).items()}
    assert {name: verdict for name, verdict in found.items() if verdict != "not run"} == {
        "plain/resnet110": "reproduced",
        "constant_scaling_unscaled/resnet110": "better",
        "exclusive_gating_0_to_5/resnet110": "reproduced",
        "conv_shortcut/resnet110": "worse",
    }


def test_a_sceptic_can_compute_every_verdict_from_what_is_there(numbers: Comparison) -> None:
    judged = [cell for cell in read(render(numbers))["cells"] if cell["interval"]]
    assert len(judged) == 6
    for cell in judged:
        (net,) = cell["nets"]
        interval, noise, published = cell["interval"], cell["noise"], cell["published"]
        looked_at = [run["error"] for run in net["groups"][0]["runs"] if run["looked_at"]]
        assert len(looked_at) == 5 * cell["look"]
        assert interval["difference"] == pytest.approx(statistics.median(looked_at) - published["value"])
        assert cell["difference"] == pytest.approx(interval["difference"])
        reach = stats.t.ppf(1 - interval["level"], interval["degrees"]) * interval["standard_error"]
        assert interval["low"] == pytest.approx(interval["difference"] - reach)
        assert interval["high"] == pytest.approx(interval["difference"] + reach)
        if noise["rests_on"] == "ours":
            assert noise["std"] == pytest.approx(statistics.stdev(looked_at))
        within = -published["tolerance"] <= interval["low"] and interval["high"] <= published["tolerance"]
        assert (cell["verdict"] == "reproduced") == within
        assert (cell["shift"] is not None) == (within and not interval["low"] <= 0 <= interval["high"])
        if cell["verdict"] in ("worse", "better"):
            near = interval["low"] if cell["verdict"] == "worse" else -interval["high"]
            assert near > published["tolerance"]
    assert {cell["look"] for cell in judged} == {1, 2}
    assert {cell["noise"]["rests_on"] for cell in judged} == {"ours", "both"}


def test_runs_that_were_not_looked_at_are_there_and_count_for_nothing(table1: Table, table2: Table) -> None:
    sweep, numbers = (read(render(comparison)) for comparison in more_than_looked_at(table1, table2))
    cell = by_id(numbers)["original/resnet110"]
    (group,) = cell["nets"][0]["groups"]
    assert [run["looked_at"] for run in group["runs"]] == [True] * 5 + [False] * 15
    assert (group["median"], cell["difference"]) == (6.6, pytest.approx(6.6 - 6.61))
    assert cell["failing"] == cell["nets"][0]["failing"] == {"failed": 0, "runs": 5}
    gating = by_id(sweep)["exclusive_gating_0_to_5/resnet110"]
    assert gating["failing"] == {"failed": 30, "runs": 30}
    assert [net["failing"] for net in gating["nets"]] == [{"failed": 5, "runs": 5}] * 6
    assert {net["groups"][0]["median"] for net in gating["nets"]} == {92.0}
    assert errors(sweep) == errors(numbers) == []


def test_failures_of_a_sweep_are_those_of_all_its_nets_whatever_decided(table1: Table) -> None:
    cell = "exclusive_gating_0_to_5/resnet110"
    first, second, *_ = table1.cell(cell).settings
    runs = [*records(table1, cell, [12.0] * 5, first.label), *records(table1, cell, [90.0] * 4, second.label)]
    judged = by_id(read(render(compared(table1, runs))))[cell]
    assert (judged["verdict"], judged["failing"]) == ("better", {"failed": 4, "runs": 9})
    assert [net["failing"] for net in judged["nets"][:3]] == [
        {"failed": 0, "runs": 5},
        {"failed": 4, "runs": 4},
        None,
    ]


def test_runs_in_other_groups_and_under_way_are_not_looked_at(numbers: Comparison) -> None:
    value = by_id(read(render(numbers)))
    (net,) = value["original/resnet110"]["nets"]
    assert [[run["looked_at"] for run in group["runs"]] for group in net["groups"]] == [[True] * 5, [False]]
    assert [group["median"] for group in net["groups"]] == [6.6, 6.7]
    (early,) = value["relu_before_addition/resnet164"]["nets"]
    assert [run["looked_at"] for run in early["groups"][0]["runs"]] == [True, True, False]


def test_results_of_another_source_are_not_looked_at_though_they_are_equal(table2: Table) -> None:
    results = [external(table2, "preact/resnet164", 5.5, source=source) for source in ("one", "another")]
    (net,) = by_id(read(render(compared(table2, [], results))))["preact/resnet164"]["nets"]
    assert [[run["looked_at"] for run in group["runs"]] for group in net["groups"]] == [[True], [False]]


def test_a_diverged_run_has_no_error_and_a_flag(numbers: Comparison, failing: Comparison) -> None:
    (net,) = by_id(read(render(numbers)))["relu_before_addition/resnet110"]["nets"]
    runs = net["groups"][0]["runs"]
    assert [(run["error"], run["diverged"], run["status"]) for run in runs[1:4]] == [
        (7.9, False, "finished"),
        (None, True, "diverged"),
        (7.7, False, "finished"),
    ]
    assert runs[2]["iteration"] == 1000
    assert net["failing"] == {"failed": 1, "runs": 5}
    worst = by_id(read(render(failing)))["conv_shortcut/resnet110"]
    (group,) = worst["nets"][0]["groups"]
    assert (group["median"], group["median_diverged"], worst["difference"]) == (None, True, None)


def test_a_run_under_way_has_neither_an_error_nor_the_flag(numbers: Comparison) -> None:
    (net,) = by_id(read(render(numbers)))["relu_only_preact/resnet164"]["nets"]
    (run,) = net["groups"][0]["runs"]
    assert (run["status"], run["error"], run["diverged"], run["iteration"]) == ("partial", None, False, 1000)
    assert (net["groups"][0]["median"], net["groups"][0]["median_diverged"]) == (None, False)


def test_each_net_of_a_sweep_stands_for_itself(failing: Comparison) -> None:
    cell = by_id(read(render(failing)))["exclusive_gating_0_to_5/resnet110"]
    assert [net["setting"] for net in cell["nets"]] == [f"gate_bias={-bias}" for bias in range(6)]
    assert {net["verdict"] for net in cell["nets"]} == {"reproduced"}
    assert all(net["net"] == f"resnet110_exclusive_gating({net['setting']})" for net in cell["nets"])
    assert len({run["run"] for net in cell["nets"] for run in net["groups"][0]["runs"]}) == 30
    assert (cell["published"]["value"], cell["published"]["tolerance"]) == ("fail", None)
    assert cell["failing"] == {"failed": 30, "runs": 30}


def test_what_is_not_pooled_follows_what_is_shown(numbers: Comparison) -> None:
    (net,) = by_id(read(render(numbers)))["original/resnet110"]["nets"]
    assert [group["conditions"]["precision"] for group in net["groups"]] == ["fp32", "bf16"]
    assert [len(group["runs"]) for group in net["groups"]] == [5, 1]


def test_pixels_are_told_by_name_origin_and_fingerprint(numbers: Comparison) -> None:
    (net,) = by_id(read(render(numbers)))["relu_only_preact/resnet110"]["nets"]
    assert net["groups"][0]["conditions"]["data"] == {
        "name": COPY.name,
        "origin": COPY.origin,
        "canonical": False,
        "fingerprint": COPY.fingerprint,
    }


def test_of_a_result_from_elsewhere_only_the_source_is_known(numbers: Comparison) -> None:
    (net,) = by_id(read(render(numbers)))["preact/resnet164"]["nets"]
    (group,) = net["groups"]
    assert group["conditions"] == {
        "data": None,
        "precision": None,
        "numerics": [],
        "mixed": False,
        "source": "=A lab, by e-mail",
    }
    assert {(run["run"], run["iteration"], run["status"]) for run in group["runs"]} == {(None, None, "finished")}


def test_a_diverged_result_from_elsewhere_is_one(table2: Table) -> None:
    comparison = compared(table2, [], [external(table2, "preact/resnet164", None)])
    (net,) = by_id(read(render(comparison)))["preact/resnet164"]["nets"]
    (run,) = net["groups"][0]["runs"]
    assert (run["status"], run["diverged"], run["error"]) == ("diverged", True, None)


def test_infinite_degrees_of_freedom_are_null(table2: Table) -> None:
    comparison = compared(table2, records(table2, "original/resnet110", [6.7]), seeds=1)
    value = read(render(comparison))
    cell = by_id(value)["original/resnet110"]
    assert (cell["noise"]["degrees"], cell["interval"]["degrees"]) == (None, None)
    assert cell["noise"]["rests_on"] == "published"
    reach = stats.norm.ppf(1 - cell["interval"]["level"]) * cell["interval"]["standard_error"]
    assert cell["interval"]["high"] == pytest.approx(cell["interval"]["difference"] + reach)
    assert value["planned"] == 1


def test_the_published_result_comes_with_its_provenance(table1: Table) -> None:
    cell = by_id(read(render(compared(table1))))["original/resnet110"]["published"]
    assert (cell["value"], cell["std"], cell["statistic"], cell["n"]) == (6.61, 0.16, "median", 5)
    assert cell["std_source"].startswith("arXiv:1512.03385")
    assert cell["home"] == "table2/original/resnet110"
    table4 = read(render(compared(load_table("table4", ROOT))))
    marked = by_id(table4)["preact_resnet1001_batch64/cifar10"]
    assert (marked["published"]["mark"], marked["recipe"], marked["published"]["params"]) == (
        "†",
        "cifar_torch",
        "10.2M",
    )
    assert "mini-batches of 64" in table4["footnotes"]["†"]
    table5 = by_id(read(render(compared(load_table("table5", ROOT)))))
    assert table5["original_resnet152/top5"]["evaluation"] == {"crop": 320, "scale": 320}
    assert table5["original_resnet152/top5"]["metric"] == "top5"


def test_an_unprinted_result_has_no_number_of_runs() -> None:
    table3 = load_table("table3", ROOT)
    comparison = compared(table3, cells="cifar10_resnet164_no_warm_up")
    published = by_id(read(render(comparison)))["cifar10_resnet164_no_warm_up/preact"]["published"]
    assert (published["value"], published["statistic"], published["n"], published["tolerance"]) == (
        "unprinted",
        None,
        None,
        None,
    )


def test_claims_say_what_was_tested_and_found(numbers: Comparison) -> None:
    claim = by_id(read(render(numbers)), "claims")["bn_after_addition_worse_110"]
    assert (claim["standing"], claim["kind"], claim["measure"], claim["level"]) == (
        "supported",
        "lower",
        "test_error",
        0.05,
    )
    assert claim["cells"] == ["original/resnet110", "bn_after_addition/resnet110"]
    assert len(claim["findings"]) == 1
    assert claim["section"] == "Sec. 4.1"


def test_claims_have_all_that_the_expected_results_say_of_them(numbers: Comparison) -> None:
    claim = numbers.claims[0].claim
    fields = {field.name for field in dataclasses.fields(claim)} - {"where"}
    first, *others = numbers.claims
    for edited in (replace(claim, by=0.25), replace(claim, kind="converges", measure=None, by=None)):
        value = read(render(replace(numbers, claims=(replace(first, claim=edited), *others))))
        assert errors(value) == []
        written = value["claims"][0]
        assert written.keys() >= fields
        assert (written["by"], written["kind"]) == (edited.by, edited.kind)


def test_every_kind_of_claim_is_in_the_schema() -> None:
    assert schema()["$defs"]["claim"]["properties"]["kind"]["enum"] == list(get_args(Kind))


def test_deviations_name_their_cells_even_where_they_are_all(numbers: Comparison) -> None:
    deviations = {d["topic"]: d for d in read(render(numbers))["deviations"]}
    with_runs_of_ours = [c.cell.id for c in numbers.cells if c.cell.id != "preact/resnet164"]
    assert deviations["framework"]["cells"] == with_runs_of_ours
    assert deviations["data"]["cells"] == ["relu_only_preact/resnet110"]
    assert deviations["initialisation"]["paper"] is None


def test_what_was_not_used_and_what_was_damaged_is_named(table2: Table) -> None:
    one, other = (record(table2, "preact/resnet110", error) for error in (6.4, 6.5))
    comparison = compared(table2, [one, other])
    value = read(render(comparison, ["runs/x/record.json is no JSON", *comparison.left_out]))
    assert value["complaints"] == ["runs/x/record.json is no JSON"]
    (left_out,) = value["left_out"]
    assert one.run in left_out


def test_the_same_results_give_the_same_text_in_whatever_order_they_come(table2: Table) -> None:
    runs = [
        *records(table2, "preact/resnet110", (6.4, 6.2, 6.9)),
        record(table2, "preact/resnet110", 6.6, precision="bf16"),
        record(table2, "preact/resnet110", 9.6, data=COPY),
    ]
    assert render(compared(table2, runs)) == render(compared(table2, runs[::-1]))


def test_it_says_which_version_and_format_it_is(numbers: Comparison) -> None:
    value = read(render(numbers))
    assert (value["schema"], value["paperbench"], value["table"], value["profile"]) == (
        1,
        __version__,
        "table2",
        "paper",
    )
    assert value["source"]["arxiv"] == "1603.05027"
    assert math.isclose(value["summary"]["expected_false_alarms"], 0.05 * 6)


def test_a_table_without_differences_holds_but_is_not_all_reproduced_by_that(table2: Table) -> None:
    summary = read(render(compared(table2)))["summary"]
    assert (summary["holds"], summary["all_reproduced"]) == (True, False)
    runs = records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3))
    summary = read(render(compared(table2, runs, cells="preact/resnet110")))["summary"]
    assert (summary["holds"], summary["all_reproduced"]) == (True, True)


def test_a_number_that_json_has_not_is_an_error_and_not_written(table2: Table) -> None:
    comparison = compared(table2, cells="preact/resnet110")
    (cell,) = comparison.cells
    broken = replace(cell, judgement=replace(cell.judgement, shift=math.nan))
    with pytest.raises(ValueError, match="not JSON compliant"):
        render(replace(comparison, cells=(broken,)))
