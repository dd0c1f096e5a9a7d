"""A report as JUnit XML, for the machinery that shows test results.

One suite has a test case for each cell, another one for each claim. A cell fails where it makes the exit status 1: if
it is worse or better even after Holm's correction; or, if that is required, if it is not reproduced though the paper
prints a result and it is not left to a request. What cannot be judged yet is skipped, with the reason. A claim fails if
it is contradicted in the paper's profile, which the exit status does not tell. Properties of the suite of cells say
where our runs deviate from the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from xml.etree import ElementTree

from paperbench import __version__
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Requirement
from paperbench.report.layout import published
from paperbench.report.model import CellReport, NetReport, Report, method, percent

_VERSION = ("paperbench", __version__)
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, 2.2


_Outcome = Literal["passed", "failure", "skipped"]


def render(report: Report, requirement: Requirement = "no difference") -> str:
    """The report as XML, in ASCII, with a newline at the end.

    Args:
        requirement: What the exit status tells.
    """
    profile = report.comparison.profile
    name = f"paperbench.{report.comparison.table.id}.{profile}"
    root = ElementTree.Element("testsuites", name=_legal(name))
    cells = _add(root, "testsuite", name=f"{name} cells")
    deviations = [("deviation", text) for text in report.deviations]
    _add_properties(cells, [_VERSION, *deviations, *(("choice", text) for text in report.choices)])
    for cell in report.cells:
        _add_cell(cells, name, cell, requirement)
    claims = _add(root, "testsuite", name=f"{name} claims")
    _add_properties(claims, [_VERSION])
    for claim in report.comparison.claims:
        _add_claim(claims, name, claim, profile)
    for suite in (root, cells, claims):
        for count, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(count, str(sum(1 for _ in suite.iter(tag))))
    ElementTree.indent(root, " ")
    text: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode("ascii") + "\n"


def _add(parent: ElementTree.Element, tag: str, content: str = "", **attributes: str) -> ElementTree.Element:
    legal = {name: _legal(value) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, legal)
    element.text = _legal(content) or None
    return element


def _legal(text: str) -> str:
    """The text without characters that XML cannot hold, however they are escaped."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _add_properties(element: ElementTree.Element, properties: Iterable[tuple[str, object]]) -> None:
    parent = _add(element, "properties")
    for name, value in properties:
        _add(parent, "property", name=name, value=str(value))


def _add_outcome(case: ElementTree.Element, outcome: _Outcome, kind: str, message: str, details: Iterable[str]) -> None:
    """Say how a test case ended.

    Args:
        kind: Verdict or standing.
        message: Why it failed or was skipped, in a line.
        details: All that is known, in several.
    """
    if outcome == "failure":
        _add(case, "failure", "\n".join(details), type=kind, message=message)
        return
    if outcome == "skipped":
        _add(case, "skipped", message=message)
    _add(case, "system-out", "\n".join(details))


def _add_cell(suite: ElementTree.Element, name: str, report: CellReport, requirement: Requirement) -> None:
    compared, verdict = report.compared, report.compared.verdict
    outcome: _Outcome = "skipped"
    notes = list(dict.fromkeys(filter(None, (compared.reason, *report.notes))))
    if verdict == "reproduced":
        outcome = "passed"
    elif report.differs or (requirement == "reproduced" and compared.asks_for_reproduction):
        outcome = "failure"
    elif compared.cell.row.on_request and not any(net.shown for net in compared.nets):
        notes.append("run on request only")
    found = "; ".join([*notes, *([report.difference] if report.difference else [])])
    message = f"{verdict}: {found}" if found else verdict
    case = _add(suite, "testcase", classname=name, name=compared.cell.id)
    _add_properties(case, _properties(report))
    _add_outcome(case, outcome, verdict, message, _details(report, notes))


def _details(report: CellReport, notes: Sequence[str]) -> Iterator[str]:
    cell = report.compared.cell
    yield f"{cell.row.title}, {cell.column.title}: published {published(cell)}"
    yield from notes
    if report.difference:
        yield report.difference
    for net in report.nets:
        yield f"{net.name}: {_runs(net)}"
        yield from (f"{net.name}: not pooled: {text}" for text in net.others)


def _runs(report: NetReport) -> str:
    shown = report.net.shown
    return f"{shown.conditions}; test error (%) by seed from 0 on: {report.errors or '-'}" if shown else "no runs"


def _properties(report: CellReport) -> Iterator[tuple[str, object]]:
    compared, judgement = report.compared, report.compared.judgement
    yield "verdict", compared.verdict
    yield "published", compared.cell.expected.value
    net = compared.nets[0]
    if len(compared.nets) == 1 and net.shown:
        if net.median is not None:
            yield "median", percent(net.median)
        yield "n", len(net.errors)
    if compared.failing.runs:
        yield "failed", f"{compared.failing.failed} of {compared.failing.runs}"
    if judgement.interval is not None:
        yield "difference", judgement.interval.difference
        yield "interval", f"{judgement.interval.low} {judgement.interval.high}"
        yield "level", judgement.interval.level
        yield "tolerance", compared.cell.tolerance
    if judgement.p_value is not None:
        yield "p_value", judgement.p_value


def _add_claim(suite: ElementTree.Element, name: str, judged: ClaimVerdict, profile: str) -> None:
    claim, standing = judged.claim, judged.standing
    says = f"{claim.says} ({claim.section})"
    because = judged.reason or "; ".join(judged.findings)
    outcome: _Outcome = "skipped"
    if standing == "supported":
        outcome = "passed"
    elif standing == "contradicted" and profile == "paper":
        outcome, because = "failure", says
    elif standing == "contradicted":
        because = f"the reduced nets or data of profile {profile} say nothing about the paper's; {because}"
    case = _add(suite, "testcase", classname=name, name=claim.id)
    _add_properties(case, {"standing": standing, "section": claim.section}.items())
    _add_outcome(case, outcome, standing, f"{standing}: {because}", [says, method(judged), *judged.findings])
