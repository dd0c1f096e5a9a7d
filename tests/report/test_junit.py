from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args
from xml.dom import minidom

import pytest

from paperbench.compare.comparison import Comparison, Requirement
from paperbench.report import junit
from paperbench.report.model import Report
from paperbench.specs.table import Table
from tests.compare.judging import compared, in_cell, record, records
from tests.report.conftest import SWEEP


def render(comparison: Comparison, requirement: Requirement = "no difference") -> str:
    return junit.render(Report(comparison), requirement)


def read(
    comparison: Comparison, requirement: Requirement = "no difference"
) -> tuple[minidom.Element, minidom.Element, minidom.Element]:
    """The root and its suites of cells and of claims."""
    root = minidom.parseString(render(comparison, requirement).encode()).documentElement
    assert root is not None
    assert root.tagName == "testsuites"
    cells, claims = children(root, "testsuite")
    return root, cells, claims


def children(element: minidom.Element, tag: str) -> list[minidom.Element]:
    return [n for n in element.childNodes if isinstance(n, minidom.Element) and n.tagName == tag]


def cases(suite: minidom.Element) -> dict[str, minidom.Element]:
    found = children(suite, "testcase")
    assert len({case.getAttribute("name") for case in found}) == len(found)
    return {case.getAttribute("name"): case for case in found}


def outcome(case: minidom.Element) -> str:
    marks = [n.tagName for n in case.childNodes if isinstance(n, minidom.Element)]
    bad = [tag for tag in marks if tag in ("failure", "skipped", "error")]
    assert len(bad) <= 1
    return bad[0] if bad else "passed"


def message(case: minidom.Element) -> str:
    (mark,) = children(case, outcome(case))
    return mark.getAttribute("message")


def text_of(case: minidom.Element, tag: str) -> str:
    (element,) = children(case, tag)
    return "".join(node.data for node in element.childNodes if isinstance(node, minidom.Text))


def properties(case: minidom.Element) -> dict[str, str]:
    return dict(listed_properties(case))


def listed_properties(element: minidom.Element) -> list[tuple[str, str]]:
    (parent,) = children(element, "properties")
    return [(p.getAttribute("name"), p.getAttribute("value")) for p in children(parent, "property")]


def test_cells_pass_fail_or_are_skipped_by_their_verdicts(numbers: Comparison) -> None:
    _, cells, _ = read(numbers)
    assert {name: outcome(case) for name, case in cases(cells).items()} == {
        "original/resnet110": "passed",
        "original/resnet164": "passed",
        "bn_after_addition/resnet110": "failure",
        "bn_after_addition/resnet164": "failure",
        "relu_before_addition/resnet110": "skipped",
        "relu_before_addition/resnet164": "skipped",
        "relu_only_preact/resnet110": "skipped",
        "relu_only_preact/resnet164": "skipped",
        "preact/resnet110": "skipped",
        "preact/resnet164": "passed",
    }


def test_failing_nets_are_judged_by_their_rule(failing: Comparison) -> None:
    _, cells, _ = read(failing)
    found = {name.partition("/")[0]: outcome(case) for name, case in cases(cells).items()}
    assert found["plain"] == found["exclusive_gating_0_to_5"] == "passed"
    assert found["constant_scaling_unscaled"] == found["conv_shortcut"] == "failure"
    assert found["dropout_shortcut"] == "skipped"


def test_a_net_that_fails_in_some_runs_where_the_paper_has_it_fail_is_not_sure_to_be_better(table1: Table) -> None:
    comparison = compared(table1, *records(table1, "plain/resnet110", (12.0, 12.1, 12.2, 90.0, 90.0)))
    case = cases(read(comparison)[1])["plain/resnet110"]
    assert outcome(case) == "skipped"
    assert message(case).startswith("better: 2 of 5 failed")
    assert "the runs disagree" in message(case)


def test_only_the_runs_that_count_are_in_numbers(more_numbers: Comparison, more_failing: Comparison) -> None:
    case = cases(read(more_numbers)[1])["original/resnet110"]
    found = properties(case)
    assert (found["median"], found["n"], found["failed"]) == ("6.60", "5", "0 of 5")
    assert "6.71, 6.60; not counted: seed 5: 9.00, 9.00" in text_of(case, "system-out")
    gating = cases(read(more_failing)[1])[SWEEP]
    assert properties(gating)["failed"] == "30 of 30"
    assert "median" not in properties(gating)


def test_a_run_under_way_is_told_and_does_not_count(numbers: Comparison) -> None:
    case = cases(read(numbers)[1])["relu_before_addition/resnet164"]
    assert "6.10, 6.20; seed 2 is at iteration 1,000" in text_of(case, "system-out")
    assert properties(case)["n"] == "2"


def test_claims_pass_if_supported_and_fail_if_contradicted(numbers: Comparison) -> None:
    _, _, claims = read(numbers)
    expected = {"supported": "passed", "contradicted": "failure", "undecided": "skipped", "not run": "skipped"}
    assert {name: outcome(case) for name, case in cases(claims).items()} == {
        claim.claim.id: expected[claim.standing] for claim in numbers.claims
    }
    assert outcome(cases(claims)["bn_after_addition_worse_110"]) == "passed"
    assert outcome(cases(claims)["bn_after_addition_worse_164"]) == "failure"


def test_a_contradicted_claim_of_a_reduced_net_is_no_failure(numbers: Comparison) -> None:
    _, _, claims = read(replace(numbers, profile="smoke"))
    case = cases(claims)["bn_after_addition_worse_164"]
    assert outcome(case) == "skipped"
    assert message(case).startswith("contradicted: the reduced nets or data of profile smoke say nothing about the pap")
    assert "failure" not in {outcome(case) for case in cases(claims).values()}
    assert outcome(cases(claims)["bn_after_addition_worse_110"]) == "passed"


def test_deviations_are_properties_of_the_suite_of_cells(numbers: Comparison) -> None:
    _, cells, claims = read(numbers)
    listed = listed_properties(cells)
    assert len(listed) == 1 + len(numbers.deviations) > 3
    assert ("deviation", "data: CIFAR-10 -> CIFAR-10 (some copy) (re-encoded) (relu_only_preact/resnet110)") in listed
    framework = next(d for d in numbers.deviations if d.topic == "framework")
    assert ("deviation", f"framework: Caffe -> {framework.ours}") in listed
    assert ("choice", "initialisation: fan_out") in listed
    assert [name for name, _ in listed_properties(claims)] == ["paperbench"]


def test_the_totals_are_those_of_the_cases(numbers: Comparison, failing: Comparison) -> None:
    for comparison in (numbers, failing):
        root, *suites = read(comparison)
        sums: Counter[str] = Counter()
        for suite in suites:
            counted = Counter(outcome(case) for case in cases(suite).values())
            there = {key: int(suite.getAttribute(key)) for key in ("tests", "failures", "errors", "skipped")}
            assert there == {
                "tests": counted.total(),
                "failures": counted["failure"],
                "errors": 0,
                "skipped": counted["skipped"],
            }
            sums.update(there)
        assert {key: int(root.getAttribute(key)) for key in sums} == sums


def test_there_is_a_failing_cell_just_where_the_exit_status_is_1(
    tables: dict[str, Table], table2: Table, numbers: Comparison, failing: Comparison
) -> None:
    alone = compared(table2, *records(table2, "preact/resnet110", (7.3, 7.6, 7.25, 7.5, 7.1)))
    assert not alone.holds()  # without others, what Holm's correction spares elsewhere differs
    runs = records(table2, "preact/resnet110", (6.3, 6.4, 6.5))
    reproduced = compared(table2, *runs, seeds=3, cells="preact/resnet110")
    assert reproduced.holds("reproduced")
    unprinted = compared(tables["table3"], cells="cifar10_resnet164_no_warm_up")
    requirements: tuple[Requirement, ...] = get_args(Requirement)
    for comparison in (numbers, failing, alone, compared(table2), reproduced, unprinted):
        for requirement in requirements:
            _, cells, _ = read(comparison, requirement)
            assert (cells.getAttribute("failures") == "0") == comparison.holds(requirement)


def test_where_all_must_be_reproduced_everything_else_fails(numbers: Comparison) -> None:
    _, cells, _ = read(numbers, "reproduced")
    outcomes = {name: outcome(case) for name, case in cases(cells).items()}
    assert {c.cell.id for c in numbers.cells if c.verdict == "reproduced"} == {
        name for name, found in outcomes.items() if found == "passed"
    }
    assert set(outcomes.values()) == {"passed", "failure"}


def test_what_the_paper_does_not_print_and_what_is_not_asked_for_need_not_be_reproduced(
    tables: dict[str, Table],
) -> None:
    table4, on_request = tables["table4"], "resnet1202/cifar10"
    _, cells, _ = read(compared(tables["table3"], on_request=True), "reproduced")
    assert outcome(cases(cells)["cifar10_resnet164_no_warm_up/preact"]) == "skipped"
    assert {outcome(case) for name, case in cases(cells).items() if "no_warm_up" not in name} == {"failure"}
    _, cells, _ = read(compared(table4, on_request=True), "reproduced")
    assert message(cases(cells)[on_request]) == "not run: run on request only"
    assert outcome(cases(cells)["preact_resnet164/cifar10"]) == "failure"
    begun = compared(table4, record(table4, on_request, None), on_request=True)
    assert outcome(cases(read(begun, "reproduced")[1])[on_request]) == "failure"
    assert outcome(cases(read(begun)[1])[on_request]) == "skipped"


def test_what_is_skipped_says_why(numbers: Comparison) -> None:
    _, cells, claims = read(numbers)
    for cell, verdict in (
        ("relu_only_preact/resnet110", "not comparable"),
        ("relu_before_addition/resnet164", "underpowered"),
        ("relu_only_preact/resnet164", "not run"),
    ):
        assert message(cases(cells)[cell]) == f"{verdict}: {in_cell(numbers, cell).reason}"
    assert "not after Holm's correction" in message(cases(cells)["preact/resnet110"])
    for case in cases(claims).values():
        if outcome(case) == "skipped":
            standing, _, reason = message(case).partition(": ")
            assert standing in ("undecided", "not run")
            assert reason


def test_a_failure_says_what_was_found_and_by_which_runs(numbers: Comparison) -> None:
    _, cells, claims = read(numbers)
    case = cases(cells)["bn_after_addition/resnet110"]
    assert message(case).startswith("worse: +1.85 points [")
    details = text_of(case, "failure")
    for error in ("9.95", "10.10", "10.02", "9.90", "10.20", "8.17", "CIFAR-10, fp32, numerics 1"):
        assert error in details
    contradicted = cases(claims)["bn_after_addition_worse_164"]
    assert message(contradicted).startswith("contradicted: BN after addition is considerably worse")
    assert "+1.0" in text_of(contradicted, "failure")


def test_properties_hold_the_numbers(numbers: Comparison) -> None:
    _, cells, _ = read(numbers)
    found = properties(cases(cells)["bn_after_addition/resnet110"])
    assert (found["published"], found["median"], found["n"], found["verdict"]) == ("8.17", "10.02", "5", "worse")
    low, high = map(float, found["interval"].split())
    assert low < 10.02 - 8.17 < high
    assert float(found["difference"]) == pytest.approx(10.02 - 8.17)
    assert "median" not in properties(cases(cells)["relu_only_preact/resnet164"])


def test_names_tell_table_and_profile(table2: Table) -> None:
    comparison = compared(table2, record(table2, "preact/resnet110", 9.0, profile="smoke"), profile="smoke")
    root, cells, claims = read(comparison)
    for suite in (cells, claims):
        for case in cases(suite).values():
            assert case.getAttribute("classname") == "paperbench.table2.smoke"
    assert root.getAttribute("name") == "paperbench.table2.smoke"
    assert cells.getAttribute("name") != claims.getAttribute("name")


def test_characters_that_xml_cannot_hold_are_replaced_and_all_others_kept(table2: Table) -> None:
    nasty = "".join(map(chr, range(32))) + "\x7f\ud800\udfff\ufffe\uffff <&>\"' ]]> é † 中 \U0001f600"
    comparison = compared(table2)
    first, *others = comparison.cells
    edited = replace(first, judgement=replace(first.judgement, reason=nasty))
    _, cells, _ = read(replace(comparison, cells=(edited, *others)))
    said = message(cases(cells)[first.cell.id])
    assert said.startswith("not run: ")
    kept = "\t\n\r\x7f <&>\"' ]]> é † 中 \U0001f600"
    assert said.removeprefix("not run: ").replace("\ufffd", "") == kept
    assert said.count("\ufffd") == 29 + 4  # control characters but three, two surrogates, two that are no characters


def test_the_declaration_is_true_whatever_the_text_is_written_in(numbers: Comparison) -> None:
    text = render(numbers)
    assert text.startswith("<?xml version='1.0' encoding='us-ascii'?>\n<testsuites ")
    assert text.isascii()
    assert text.endswith("</testsuites>\n")
