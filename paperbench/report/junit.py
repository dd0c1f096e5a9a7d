"""A comparison as JUnit XML, for the machinery that shows test results.

One suite has a test case for each cell, another one for each claim. A cell fails where it makes the exit code 1: if it
is worse or better even after Holm's correction over the table; or, if that is required, if it is not reproduced. What
cannot be judged yet is skipped, with the reason. A claim fails if it is contradicted; the exit code does not tell that.
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
    suites = [
        _suite("cells", name, [_of_cell(comparison, cell, requirement) for cell in comparison.cells]),
        _suite("claims", name, [_of_claim(claim) for claim in comparison.claims]),
    ]
    root = ElementTree.Element("testsuites", {"name": _legal(name), **_sum(suites)})
    root.extend(suites)
    ElementTree.indent(root, " ")
    text: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode("ascii") + "\n"


def _suite(what: str, name: str, cases: Sequence[_Case]) -> ElementTree.Element:
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.outcome == "skipped" for case in cases)),
    }
    suite = ElementTree.Element("testsuite", {"name": _legal(f"{name} {what}"), **counts})
    _add_properties(suite, {"paperbench": __version__})
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", {"classname": _legal(name), "name": _legal(case.name)})
        _add_properties(element, case.properties)
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


def _add_properties(element: ElementTree.Element, properties: Mapping[str, str]) -> None:
    if properties:
        parent = ElementTree.SubElement(element, "properties")
        for name, value in properties.items():
            ElementTree.SubElement(parent, "property", {"name": name, "value": _legal(value)})


def _of_cell(comparison: Comparison, compared: CellComparison, requirement: Requirement) -> _Case:
    verdict, reason = compared.verdict, compared.reason
    outcome: Literal["passed", "failure", "skipped"] = "skipped"
    message = f"{verdict}: {reason}" if reason else verdict
    if verdict == "reproduced":
        outcome = "passed"
    elif requirement == "reproduced" or compared in comparison.differing:
        outcome = "failure"
    elif verdict in ("worse", "better"):
        spared = (
            "by itself, but not after Holm's correction over the table"
            if compared.judgement.p_value is not None
            else "as its runs do not agree"
        )
        message = f"not sure to be {message} ({spared})"
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
    if len(compared.nets) == 1 and compared.shown is not None:
        if compared.shown.median is not None:
            yield "median", _percent(compared.shown.median)
        yield "n", str(len(compared.shown.ended))
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
    yield f"{name}{_group(net.shown)}"
    for group in net.others:
        yield f"{name}not pooled: {_group(group)}"


def _group(group: Group) -> str:
    runs = ", ".join(f"{run.seed}: {_run(run)}" for run in group.runs)
    return f"{group.conditions}; test error (%) by seed: {runs}"


def _run(run: Run) -> str:
    if run.error is not None:
        return _percent(run.error)
    return f"(at {run.record.iteration:,})" if run.record else "-"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def _of_claim(judged: ClaimVerdict) -> _Case:
    claim, standing = judged.claim, judged.standing
    outcome: Literal["passed", "failure", "skipped"] = "skipped"
    if standing in ("supported", "contradicted"):
        outcome = "passed" if standing == "supported" else "failure"
    because = judged.reason or "; ".join(judged.findings)
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
