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


def outcome(case: Element) -> str:
    (bad,) = [e.tag for e in case if e.tag in ("failure", "skipped", "error")] or ["passed"]
    return bad


def printed(case: Element) -> str:
    """Return a case in a line: outcome, name, message, properties and what the runs gave."""
    found = case.find(outcome(case))
    facts = [f"{p.get('name')}={p.get('value')}" for p in case.findall("properties/property")]
    said = "" if found is None else f"{found.get('message')}; {' '.join((found.text or '').split())}"
    return f"{outcome(case)}: {case.get('classname')} {case.get('name')}: {said} [{', '.join(facts)}]"


def test_cases_have_reasons_numbers_and_runs(shared: Comparison) -> None:
    assert_golden("junit", junit.render(Report(shared)).replace(f'"{__version__}"', '"VERSION"'))


def test_outcomes(
    tables: dict[str, Table],
    table1: Table,
    table2: Table,
    numbers: Comparison,
    failing: Comparison,
    more_numbers: Comparison,
    more_failing: Comparison,
) -> None:
    table3, table4 = tables["table3"], tables["table4"]
    on_request = record(table4, "resnet1202/cifar10", None)
    smoke = record(table2, "preact/resnet110", 9.0, profile="smoke")
    disagreeing = records(table1, "plain/resnet110", (12.0, 12.1, 12.2, 90.0, 90.0))
    judged = {
        "numbers": numbers,
        "failing": failing,
        "more runs than planned": more_numbers,
        "more runs of a sweep than planned": more_failing,
        "runs that disagree": compared(table1, *disagreeing),
        "a contradicted claim of a reduced profile": replace(numbers, profile="smoke"),
        "a reduced profile": compared(table2, smoke, profile="smoke"),
        "a cell on request that has begun": compared(table4, on_request, on_request=True),
    }
    required = {
        "all required, one unprinted": compared(table3, on_request=True),
        "all required, one on request": compared(table4, on_request=True),
        "all required, one on request that has begun": compared(table4, on_request, on_request=True),
    }
    lines: list[str] = []
    for name, comparison in (judged | required).items():
        cells, claims = suites(comparison, "reproduced" if name in required else "no difference")
        found = [printed(case) for case in (*cells.iter("testcase"), *claims.iter("testcase"))]
        assert len(found) == len(comparison.cells) + len(comparison.claims)
        lines += [f"{name}:", *(f"  {line}" for line in found if f"  {line}" not in lines)]
    assert_golden("junit_outcomes", "\n".join(lines))


def test_outcomes_follow_from_verdicts_and_standings(numbers: Comparison) -> None:
    found = {case.get("name"): outcome(case) for suite in suites(numbers) for case in suite.findall("testcase")}
    for cell in numbers.cells:
        assert found[cell.id] == (
            "failure" if cell.differs else "passed" if cell.verdict == "reproduced" else "skipped"
        )
    expected_of = {"supported": "passed", "contradicted": "failure"}
    for claim in numbers.claims:
        assert found[claim.claim.id] == expected_of.get(claim.standing, "skipped")


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


def test_characters_not_allowed_in_xml_are_replaced(table2: Table) -> None:
    nasty = "".join(map(chr, range(32))) + "\x7f\ud800\udfff\ufffe\uffff <&>\"' ]]> é † 中 \U0001f600"
    comparison = compared(table2)
    first, *others = comparison.cells
    edited = replace(first, reason=nasty)
    cells, _ = suites(replace(comparison, cells=(edited, *others)))
    text = next(skipped.get("message", "") for skipped in cells.iter("skipped")).removeprefix("not run: ")
    assert text.replace("\ufffd", "") == "\t\n\r\x7f <&>\"' ]]> é † 中 \U0001f600"
    assert text.count("\ufffd") == 29 + 4  # control characters but three, two surrogates, two that are no characters
