from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args
from xml.dom import minidom

import pytest

from paperbench.compare.comparison import Comparison, Requirement
from paperbench.report.junit import render
from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT
from tests.report.comparing import (
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    more_than_looked_at,
    record,
    records,
)


@pytest.fixture(scope="module")
def numbers(table2: Table) -> Comparison:
    return every_verdict_of_numbers(table2)


@pytest.fixture(scope="module")
def failing() -> Comparison:
    return every_verdict_of_failing(load_table("table1", ROOT))


def read(text: str) -> tuple[minidom.Element, minidom.Element, minidom.Element]:
    """The root and its suites of cells and of claims."""
    root = minidom.parseString(text.encode()).documentElement
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
    _, cells, _ = read(render(numbers))
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
    _, cells, _ = read(render(failing))
    found = {name.partition("/")[0]: outcome(case) for name, case in cases(cells).items()}
    assert found["plain"] == found["exclusive_gating_0_to_5"] == "passed"
    assert found["constant_scaling_unscaled"] == found["conv_shortcut"] == "failure"
    assert found["dropout_shortcut"] == "skipped"


def test_a_net_that_fails_in_some_runs_where_the_paper_has_it_fail_is_not_sure_to_be_better() -> None:
    table1 = load_table("table1", ROOT)
    comparison = compared(table1, records(table1, "plain/resnet110", (12.0, 12.1, 12.2, 90.0, 90.0)))
    case = cases(read(render(comparison))[1])["plain/resnet110"]
    assert outcome(case) == "skipped"
    assert message(case).startswith("not sure to be better: 2 of 5 failed")
    assert "its runs do not agree" in message(case)


def test_only_the_runs_looked_at_are_in_numbers(table2: Table) -> None:
    sweep, numbers = (read(render(c))[1] for c in more_than_looked_at(load_table("table1", ROOT), table2))
    case = cases(numbers)["original/resnet110"]
    found = properties(case)
    assert (found["median"], found["n"], found["failed"]) == ("6.60", "5", "0 of 5")
    assert "4: 6.60; not looked at: 5: 9.00, 6: 9.00" in text_of(case, "system-out")
    gating = cases(sweep)["exclusive_gating_0_to_5/resnet110"]
    assert properties(gating)["failed"] == "30 of 30"
    assert "median" not in properties(gating)


def test_a_run_under_way_is_told_and_not_looked_at(numbers: Comparison) -> None:
    case = cases(read(render(numbers))[1])["relu_before_addition/resnet164"]
    assert "1: 6.20; not looked at: 2: (at 1,000)" in text_of(case, "system-out")
    assert properties(case)["n"] == "2"


def test_claims_pass_if_supported_and_fail_if_contradicted(numbers: Comparison) -> None:
    _, _, claims = read(render(numbers))
    expected = {"supported": "passed", "contradicted": "failure", "undecided": "skipped", "not run": "skipped"}
    assert {name: outcome(case) for name, case in cases(claims).items()} == {
        claim.claim.id: expected[claim.standing] for claim in numbers.claims
    }
    assert outcome(cases(claims)["bn_after_addition_worse_110"]) == "passed"
    assert outcome(cases(claims)["bn_after_addition_worse_164"]) == "failure"


def test_a_contradicted_claim_of_a_reduced_net_is_no_failure(numbers: Comparison) -> None:
    _, _, claims = read(render(replace(numbers, profile="smoke")))
    case = cases(claims)["bn_after_addition_worse_164"]
    assert outcome(case) == "skipped"
    assert message(case).startswith("contradicted: the reduced nets or data of profile smoke say nothing about the pap")
    assert "failure" not in {outcome(case) for case in cases(claims).values()}
    assert outcome(cases(claims)["bn_after_addition_worse_110"]) == "passed"


def test_deviations_are_properties_of_the_suite_of_cells(numbers: Comparison) -> None:
    _, cells, claims = read(render(numbers))
    told = [value for name, value in listed_properties(cells) if name == "deviation"]
    assert len(told) == len(numbers.deviations) > 3
    assert "data: CIFAR-10 -> CIFAR-10 (some copy) (re-encoded) (relu_only_preact/resnet110)" in told
    framework = next(d for d in numbers.deviations if d.topic == "framework")
    assert f"framework: Caffe -> {framework.ours} (all cells with runs)" in told
    assert "initialisation: not said -> fan_out (all cells with runs)" in told
    assert [name for name, _ in listed_properties(claims)] == ["paperbench"]


def test_the_totals_are_those_of_the_cases(numbers: Comparison, failing: Comparison) -> None:
    for comparison in (numbers, failing):
        root, *suites = read(render(comparison))
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


def test_there_is_a_failing_cell_just_where_the_exit_code_is_1(
    table2: Table, numbers: Comparison, failing: Comparison
) -> None:
    alone = compared(table2, records(table2, "preact/resnet110", (7.3, 7.6, 7.25, 7.5, 7.1)))
    assert not alone.holds()  # without others, what Holm's correction spares elsewhere differs
    reproduced = compared(
        table2, records(table2, "preact/resnet110", (6.3, 6.4, 6.5)), seeds=3, cells="preact/resnet110"
    )
    table3 = load_table("table3", ROOT)
    unprinted = compared(table3, cells="cifar10_resnet164_no_warm_up")
    requirements: tuple[Requirement, ...] = get_args(Requirement)
    for comparison in (numbers, failing, alone, compared(table2), reproduced, unprinted):
        for requirement in requirements:
            _, cells, _ = read(render(comparison, requirement))
            assert (cells.getAttribute("failures") == "0") == comparison.holds(requirement)


def test_where_all_must_be_reproduced_everything_else_fails(table2: Table, numbers: Comparison) -> None:
    _, cells, _ = read(render(numbers, "reproduced"))
    outcomes = {name: outcome(case) for name, case in cases(cells).items()}
    assert {c.cell.id for c in numbers.cells if c.verdict == "reproduced"} == {
        name for name, found in outcomes.items() if found == "passed"
    }
    assert set(outcomes.values()) == {"passed", "failure"}
    one = compared(table2, records(table2, "preact/resnet110", (6.3, 6.4, 6.5)), seeds=3, cells="preact/resnet110")
    assert one.holds("reproduced")
    assert read(render(one, "reproduced"))[1].getAttribute("failures") == "0"


def test_what_the_paper_does_not_print_and_what_is_not_asked_for_need_not_be_reproduced() -> None:
    table3, table4 = load_table("table3", ROOT), load_table("table4", ROOT)
    _, cells, _ = read(render(compared(table3), "reproduced"))
    unprinted = cases(cells)["cifar10_resnet164_no_warm_up/preact"]
    assert outcome(unprinted) == "skipped"
    assert {outcome(case) for name, case in cases(cells).items() if "no_warm_up" not in name} == {"failure"}
    on_request = "resnet1202/cifar10"
    _, cells, _ = read(render(compared(table4), "reproduced"))
    assert message(cases(cells)[on_request]) == "not run (it is run on request only)"
    assert outcome(cases(cells)["preact_resnet164/cifar10"]) == "failure"
    begun = compared(table4, [record(table4, on_request, None, status="partial")])
    assert outcome(cases(read(render(begun, "reproduced"))[1])[on_request]) == "failure"
    assert outcome(cases(read(render(begun))[1])[on_request]) == "skipped"


def test_what_is_skipped_says_why(numbers: Comparison) -> None:
    _, cells, claims = read(render(numbers))
    assert message(cases(cells)["relu_only_preact/resnet110"]).startswith("not comparable: CIFAR-10 (some copy)")
    assert message(cases(cells)["relu_before_addition/resnet164"]) == "underpowered: 2 of 5 runs"
    assert message(cases(cells)["relu_only_preact/resnet164"]).startswith("not run: the farthest run is at")
    assert "not after Holm's correction" in message(cases(cells)["preact/resnet110"])
    for case in cases(claims).values():
        if outcome(case) == "skipped":
            standing, _, reason = message(case).partition(": ")
            assert standing in ("undecided", "not run")
            assert reason


def test_a_failure_says_what_was_found_and_by_which_runs(numbers: Comparison) -> None:
    _, cells, claims = read(render(numbers))
    case = cases(cells)["bn_after_addition/resnet110"]
    assert message(case).startswith("worse; +1.85 points [")
    details = text_of(case, "failure")
    for error in ("9.95", "10.10", "10.02", "9.90", "10.20", "8.17", "CIFAR-10, fp32, numerics 1"):
        assert error in details
    contradicted = cases(claims)["bn_after_addition_worse_164"]
    assert message(contradicted).startswith("contradicted: BN after addition is considerably worse")
    assert "+1.0" in text_of(contradicted, "failure")


def test_properties_hold_the_numbers(numbers: Comparison) -> None:
    _, cells, _ = read(render(numbers))
    found = properties(cases(cells)["bn_after_addition/resnet110"])
    assert (found["published"], found["median"], found["n"], found["verdict"]) == ("8.17", "10.02", "5", "worse")
    low, high = map(float, found["interval"].split())
    assert low < 10.02 - 8.17 < high
    assert float(found["difference"]) == pytest.approx(10.02 - 8.17)
    assert "median" not in properties(cases(cells)["relu_only_preact/resnet164"])


def test_names_tell_table_and_profile(table2: Table) -> None:
    comparison = compared(table2, [record(table2, "preact/resnet110", 9.0, profile="smoke")], profile="smoke")
    root, cells, claims = read(render(comparison))
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
    text = render(replace(comparison, cells=(edited, *others)))
    _, cells, _ = read(text)
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
