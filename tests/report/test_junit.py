from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args
from xml.etree.ElementTree import Element, fromstring

from paperbench import __version__
from paperbench.compare.comparison import Comparison, Requirement
from paperbench.report import junit
from paperbench.report.report import Report
from paperbench.specs.table import Table
from tests.compare.judging import compared, record, records
from tests.golden import assert_golden
from tests.report.conftest import SWEEP


def suites(comparison: Comparison, requirement: Requirement = "no difference") -> tuple[Element, Element]:
    """Return the suites of cells and of claims, after checking their totals."""
    text = junit.render(Report(comparison), requirement)
    assert text.isascii()
    assert text.endswith("</testsuites>\n")
    root = fromstring(text)
    assert root.tag == "testsuites"
    cells, claims = root
    for suite in (root, cells, claims):
        outcomes = Counter(outcome(case) for case in suite.iter("testcase"))
        totals = [int(suite.get(key, "")) for key in ("tests", "failures", "errors", "skipped")]
        assert totals == [outcomes.total(), outcomes["failure"], 0, outcomes["skipped"]]
    return cells, claims


def cases(comparison: Comparison, requirement: Requirement = "no difference") -> dict[str, Element]:
    """Return the test cases of cells and claims by name."""
    found = [case for suite in suites(comparison, requirement) for case in suite.findall("testcase")]
    assert len({case.get("name") for case in found}) == len(found)
    return {case.get("name", ""): case for case in found}


def outcome(case: Element) -> str:
    (bad,) = [e.tag for e in case if e.tag in ("failure", "skipped", "error")] or ["passed"]
    return bad


def outcomes(comparison: Comparison, requirement: Requirement = "no difference") -> dict[str, str]:
    return {name: outcome(case) for name, case in cases(comparison, requirement).items()}


def message(case: Element) -> str:
    return str(case.find(outcome(case)).get("message"))  # type: ignore[union-attr]


def text_of(case: Element) -> str:
    return "".join(case.itertext())


def properties(element: Element) -> list[tuple[str | None, str | None]]:
    return [(p.get("name"), p.get("value")) for p in element.findall("properties/property")]


def test_outcomes_follow_from_verdicts_and_standings(numbers: Comparison, failing: Comparison) -> None:
    found = outcomes(numbers)
    for cell in numbers.cells:
        expected = "failure" if cell.differs else "passed" if cell.verdict == "reproduced" else "skipped"
        assert found[cell.id] == expected
    assert found["preact/resnet110"] == "skipped", "worse, but for Holm's correction"
    expected_of = {"supported": "passed", "contradicted": "failure"}
    for claim in numbers.claims:
        assert found[claim.claim.id] == expected_of.get(claim.standing, "skipped")
    assert (found["bn_after_addition_worse_110"], found["bn_after_addition_worse_164"]) == ("passed", "failure")
    by_rule = {name.partition("/")[0]: found for name, found in outcomes(failing).items()}
    assert by_rule["plain"] == by_rule["exclusive_gating_0_to_5"] == "passed"
    assert by_rule["constant_scaling_unscaled"] == by_rule["conv_shortcut"] == "failure"
    assert by_rule["dropout_shortcut"] == "skipped"


def test_cases_have_reasons_numbers_and_runs(shared: Comparison) -> None:
    assert_golden("junit", junit.render(Report(shared)).replace(f'"{__version__}"', '"VERSION"'))


def test_better_cell_with_failing_runs_is_skipped(table1: Table) -> None:
    comparison = compared(table1, *records(table1, "plain/resnet110", (12.0, 12.1, 12.2, 90.0, 90.0)))
    case = cases(comparison)["plain/resnet110"]
    assert outcome(case) == "skipped"
    assert message(case).startswith("better: 2 of 5 failed")
    assert "the runs disagree" in message(case)


def test_properties_are_of_the_counted_runs(
    numbers: Comparison, more_numbers: Comparison, more_failing: Comparison
) -> None:
    case = cases(more_numbers)["original/resnet110"]
    assert {("median", "6.60"), ("n", "5"), ("failed", "0 of 5")} <= set(properties(case))
    assert "6.71, 6.60; not counted: seed 5: 9.00, 9.00" in text_of(case)
    gating = dict(properties(cases(more_failing)[SWEEP]))
    assert gating["failed"] == "30 of 30"
    assert "median" not in gating
    running = cases(numbers)["relu_before_addition/resnet164"]
    assert "6.10, 6.20; seed 2 is at iteration 1,000" in text_of(running)
    assert ("n", "2") in properties(running)


def test_contradicted_claim_of_a_reduced_profile_is_no_failure(numbers: Comparison) -> None:
    _, claims = suites(replace(numbers, profile="smoke"))
    by_name = {case.get("name"): case for case in claims.findall("testcase")}
    assert message(by_name["bn_after_addition_worse_164"]).startswith(
        "contradicted: profile smoke trains other nets or data"
    )
    assert {outcome(case) for case in by_name.values()} == {"passed", "skipped"}


def test_cells_fail_exactly_if_the_exit_status_is_1(
    tables: dict[str, Table], table2: Table, numbers: Comparison, failing: Comparison
) -> None:
    alone = compared(table2, *records(table2, "preact/resnet110", (7.3, 7.6, 7.25, 7.5, 7.1)))
    assert not alone.holds()  # compared alone, so without Holm's correction
    runs = records(table2, "preact/resnet110", (6.3, 6.4, 6.5))
    reproduced = compared(table2, *runs, seeds=3, cells="preact/resnet110")
    assert reproduced.holds("reproduced")
    unprinted = compared(tables["table3"], cells="cifar10_resnet164_no_warm_up")
    requirements: tuple[Requirement, ...] = get_args(Requirement)
    for comparison in (numbers, failing, alone, compared(table2), reproduced, unprinted):
        for requirement in requirements:
            cells, _ = suites(comparison, requirement)
            assert (cells.get("failures") == "0") == comparison.holds(requirement)


def test_unprinted_and_unrequested_cells_are_not_required(
    tables: dict[str, Table],
) -> None:
    found = outcomes(compared(tables["table3"], on_request=True), "reproduced")
    assert found["cifar10_resnet164_no_warm_up/preact"] == "skipped"
    assert found["cifar10_resnet164/preact"] == "failure"
    table4, on_request = tables["table4"], "resnet1202/cifar10"
    of_table4 = cases(compared(table4, on_request=True), "reproduced")
    assert message(of_table4[on_request]) == "not run: run on request only"
    assert outcome(of_table4["preact_resnet164/cifar10"]) == "failure"
    begun = compared(table4, record(table4, on_request, None), on_request=True)
    assert outcomes(begun, "reproduced")[on_request] == "failure"
    assert outcomes(begun)[on_request] == "skipped"


def test_names_contain_table_and_profile(table2: Table) -> None:
    comparison = compared(table2, record(table2, "preact/resnet110", 9.0, profile="smoke"), profile="smoke")
    assert {case.get("classname") for case in cases(comparison).values()} == {"paperbench.table2.smoke"}
    assert [suite.get("name") for suite in suites(comparison)] == [
        "paperbench.table2.smoke cells",
        "paperbench.table2.smoke claims",
    ]


def test_characters_not_allowed_in_xml_are_replaced(table2: Table) -> None:
    nasty = "".join(map(chr, range(32))) + "\x7f\ud800\udfff\ufffe\uffff <&>\"' ]]> é † 中 \U0001f600"
    comparison = compared(table2)
    first, *others = comparison.cells
    edited = replace(first, reason=nasty)
    text = message(cases(replace(comparison, cells=(edited, *others)))[first.id]).removeprefix("not run: ")
    assert text.replace("\ufffd", "") == "\t\n\r\x7f <&>\"' ]]> é † 中 \U0001f600"
    assert text.count("\ufffd") == 29 + 4  # control characters but three, two surrogates, two that are no characters
