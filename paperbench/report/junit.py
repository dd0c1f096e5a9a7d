"""A comparison as JUnit XML, for the machinery that shows test results.

One suite has a test case for each cell, another one for each claim. A cell fails where it makes the exit code 1: if it
is worse or better even after Holm's correction over the table; or, if that is required, if it is not reproduced though
the paper prints a result and it is not left to a request. What cannot be judged yet is skipped, with the reason. A
claim fails if it is contradicted in the paper's profile; the exit code does not tell that. Properties of the suite of
cells say where our runs deviate from the paper's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree

from paperbench import __version__
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison, Requirement
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Group, Run
from paperbench.compare.statistics import Interval
from paperbench.compare.verdicts import CellComparison, NetComparison, in_words

_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, 2.2


@dataclass(frozen=True)
class _Case:
    """One test case.

    Attributes:
        message: Why it failed or was skipped, in a line.
        details: All that is known, in several.
    """

    name: str
    outcome: Literal["passed", "failure", "skipped"]
    kind: str
    message: str
    details: str
    properties: Mapping[str, str] = field(default_factory=dict)


def render(comparison: Comparison, requirement: Requirement = "no difference") -> str:
    """The comparison as XML, in ASCII, with a newline at the end.

    Args:
        requirement: What the exit code is to tell.
    """
    name = f"paperbench.{comparison.table.id}.{comparison.profile}"
    deviations = [("deviation", _deviation(deviation)) for deviation in comparison.deviations]
    suites = [
        _suite("cells", name, [_of_cell(comparison, cell, requirement) for cell in comparison.cells], deviations),
        _suite("claims", name, [_of_claim(claim, comparison.profile) for claim in comparison.claims]),
    ]
    root = ElementTree.Element("testsuites", {"name": _legal(name), **_sum(suites)})
    root.extend(suites)
    ElementTree.indent(root, " ")
    text: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode("ascii") + "\n"


def _suite(
    what: str, name: str, cases: Sequence[_Case], properties: Sequence[tuple[str, str]] = ()
) -> ElementTree.Element:
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.outcome == "skipped" for case in cases)),
    }
    suite = ElementTree.Element("testsuite", {"name": _legal(f"{name} {what}"), **counts})
    _add_properties(suite, [("paperbench", __version__), *properties])
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", {"classname": _legal(name), "name": _legal(case.name)})
        _add_properties(element, list(case.properties.items()))
        if case.outcome == "failure":
            attributes = {"type": case.kind, "message": _legal(case.message)}
            ElementTree.SubElement(element, "failure", attributes).text = _legal(case.details)
        elif case.outcome == "skipped":
            ElementTree.SubElement(element, "skipped", {"message": _legal(case.message)})
        if case.outcome != "failure":
            ElementTree.SubElement(element, "system-out").text = _legal(case.details)
    return suite


def _sum(suites: Iterable[ElementTree.Element]) -> dict[str, str]:
    found = list(suites)
    return {
        key: str(sum(int(suite.attrib[key]) for suite in found)) for key in ("tests", "failures", "errors", "skipped")
    }


def _add_properties(element: ElementTree.Element, properties: Sequence[tuple[str, str]]) -> None:
    if properties:
        parent = ElementTree.SubElement(element, "properties")
        for name, value in properties:
            ElementTree.SubElement(parent, "property", {"name": name, "value": _legal(value)})


def _deviation(deviation: Deviation) -> str:
    cells = ", ".join(deviation.cells) or "all cells with runs"
    return f"{deviation.topic}: {deviation.paper or 'not said'} -> {deviation.ours} ({cells})"


def _of_cell(comparison: Comparison, compared: CellComparison, requirement: Requirement) -> _Case:
    verdict, reason = compared.verdict, compared.reason
    outcome: Literal["passed", "failure", "skipped"] = "skipped"
    message = f"{verdict}: {reason}" if reason else verdict
    if verdict == "reproduced":
        outcome = "passed"
    elif compared in comparison.differing or (requirement == "reproduced" and compared.asks_for_reproduction):
        outcome = "failure"
    elif verdict in ("worse", "better"):
        spared = (
            "by itself, but not after Holm's correction over the table"
            if compared.judgement.p_value is not None
            else "as its runs do not agree"
        )
        message = f"not sure to be {message} ({spared})"
    elif compared.cell.row.on_request and not any(net.shown for net in compared.nets):
        message += " (it is run on request only)"
    if compared.judgement.interval:
        message += f"; {_difference(compared, compared.judgement.interval)}"
    details = "\n".join(_details(compared))
    return _Case(compared.cell.id, outcome, verdict, message, details, dict(_properties(compared)))


def _difference(compared: CellComparison, interval: Interval) -> str:
    return f"{interval.difference:+.2f} points {in_words(interval)} at a tolerance of {compared.cell.tolerance:g}"


def _properties(compared: CellComparison) -> Iterator[tuple[str, str]]:
    yield "verdict", compared.verdict
    cell, judgement = compared.cell, compared.judgement
    yield "published", str(cell.expected.value)
    net = compared.nets[0]
    if len(compared.nets) == 1 and net.shown is not None:
        if net.median is not None:
            yield "median", _percent(net.median)
        yield "n", str(len(net.errors))
    if compared.failing.runs:
        yield "failed", f"{compared.failing.failed} of {compared.failing.runs}"
    if judgement.interval is not None:
        yield "difference", str(judgement.interval.difference)
        yield "interval", f"{judgement.interval.low} {judgement.interval.high}"
        yield "level", str(judgement.interval.level)
        yield "tolerance", str(cell.tolerance)
    if judgement.p_value is not None:
        yield "p_value", str(judgement.p_value)


def _details(compared: CellComparison) -> Iterator[str]:
    cell = compared.cell
    yield f"{cell.row.title}, {cell.column.title}: published {cell.expected.value}"
    if compared.reason:
        yield compared.reason
    if compared.judgement.interval:
        yield _difference(compared, compared.judgement.interval)
    for net in compared.nets:
        yield from _net_details(net)


def _net_details(net: NetComparison) -> Iterator[str]:
    name = f"{net.setting.label}: " if net.setting.label else ""
    if net.shown is None:
        yield f"{name}no runs"
        return
    later = [run for run in net.shown.runs if run not in net.counted]
    not_looked_at = f"; not looked at: {_runs(later)}" if later else ""
    yield f"{name}{_errors(net.shown, net.counted)}{not_looked_at}"
    for group in net.others:
        yield f"{name}not pooled: {_errors(group, group.runs)}"


def _errors(group: Group, runs: Iterable[Run]) -> str:
    return f"{group.conditions}; test error (%) by seed: {_runs(runs) or 'none yet'}"


def _runs(runs: Iterable[Run]) -> str:
    return ", ".join(f"{run.seed}: {_run(run)}" for run in runs)


def _run(run: Run) -> str:
    if run.error is not None:
        return _percent(run.error)
    return f"(at {run.record.iteration:,})" if run.record else "-"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def _of_claim(judged: ClaimVerdict, profile: str) -> _Case:
    claim, standing = judged.claim, judged.standing
    outcome: Literal["passed", "failure", "skipped"] = "skipped"
    because = judged.reason or "; ".join(judged.findings)
    if standing == "supported":
        outcome = "passed"
    elif standing == "contradicted" and profile == "paper":
        outcome = "failure"
    elif standing == "contradicted":
        because = f"the reduced nets or data of profile {profile} say nothing about the paper's; {because}"
    message = f"{standing}: {claim.says} ({claim.section})" if outcome == "failure" else f"{standing}: {because}"
    level = f" at a level of {judged.level:g}" if judged.level is not None else ""
    details = [
        f"{claim.says} ({claim.section})",
        f"{judged.test}{level}",
        judged.basis,
        judged.reason,
        *judged.findings,
    ]
    properties = {"standing": standing, "section": claim.section}
    return _Case(claim.id, outcome, standing, message, "\n".join(filter(None, details)), properties)


def _legal(text: str) -> str:
    """The text without characters that XML cannot hold, however they are escaped."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
