"""A report as JUnit XML, for CI systems.

One suite has a test case for each cell, another one for each claim. A cell fails if it makes the exit status 1: if it
is worse or better after Holm's correction or, with `--require reproduced`, if it is not reproduced although it should
be. A cell or claim that cannot be judged yet is skipped, with the reason. A claim fails if it is contradicted in the
paper's profile, which does not change the exit status. Properties of the suite of cells list our deviations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal
from xml.etree import ElementTree

from paperbench import __version__
from paperbench.compare.against import Changes
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison, Requirement
from paperbench.report.against import mean_error
from paperbench.report.grid import NOTHING, published
from paperbench.report.report import CellReport, Report, format_interval, method, percent

_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, 2.2

_Outcome = Literal["passed", "failure", "skipped"]
_OF_CHANGES: dict[str, _Outcome] = {"identical": "passed", "equivalent": "passed", "different": "failure"}


def render(report: Report, requirement: Requirement = "no difference") -> str:
    """Return the report as XML, in ASCII, with a newline at the end; `requirement` is that for exit status 0."""
    profile = report.comparison.profile
    name = f"paperbench.{report.comparison.table.id}.{profile}"
    root = ElementTree.Element("testsuites", name=name)
    cells, claims = (_add(root, "testsuite", name=f"{name} {what}") for what in ("cells", "claims"))
    version = ("paperbench", __version__)
    deviations = [("deviation", text) for text in report.deviations]
    _add_properties(cells, [version, *deviations, *(("choice", text) for text in report.choices)])
    _add_properties(claims, [version])
    for cell in report.cells:
        _add_cell(_add(cells, "testcase", classname=name, name=cell.cell.id), cell, requirement, report.comparison)
    for claim in report.comparison.claims:
        _add_claim(_add(claims, "testcase", classname=name, name=claim.claim.id), claim, profile)
    return _document(root)


def render_changes(changes: Changes) -> str:
    """Return what changed against a baseline as XML, with a case for each net."""
    name = f"paperbench.{changes.table}.{changes.profile}.against"
    root = ElementTree.Element("testsuites", name=name)
    suite = _add(root, "testsuite", name=name)
    for net in changes.nets:
        case = _add(suite, "testcase", classname=name, name=net.name)
        errors = [f"new: {mean_error(net.new)}", f"baseline: {mean_error(net.baseline)}"]
        _add_outcome(case, _OF_CHANGES.get(net.outcome, "skipped"), f"{net.outcome}: {net.reason}", errors)
    return _document(root)


def _document(root: ElementTree.Element) -> str:
    """Add up the outcomes of each suite, and return the XML."""
    for suite in (root, *root):
        for count, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(count, str(sum(1 for _ in suite.iter(tag))))
    ElementTree.indent(root, " ")
    text: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode("ascii") + "\n"


def _add(parent: ElementTree.Element, tag: str, content: str = "", **attributes: str) -> ElementTree.Element:
    """Add an element. Characters that XML cannot contain even if escaped are replaced."""
    legal = {name: _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", value) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, legal)
    element.text = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", content) or None
    return element


def _add_properties(element: ElementTree.Element, properties: Iterable[tuple[str, object]]) -> None:
    parent = _add(element, "properties")
    for name, value in properties:
        _add(parent, "property", name=name, value=str(value))


def _add_outcome(case: ElementTree.Element, outcome: _Outcome, message: str, details: Iterable[str]) -> None:
    """Add the outcome of a test case; the message begins with verdict or standing."""
    text = "\n".join(details)
    if outcome == "failure":
        _add(case, "failure", text, type=message.partition(":")[0], message=message)
        return
    if outcome == "skipped":
        _add(case, "skipped", message=message)
    _add(case, "system-out", text)


def _add_cell(case: ElementTree.Element, report: CellReport, requirement: Requirement, comparison: Comparison) -> None:
    compared, verdict = report.compared, report.compared.verdict
    outcome: _Outcome = "skipped"
    notes = list(dict.fromkeys(filter(None, (compared.reason, *report.notes))))
    if verdict == "reproduced":
        outcome = "passed"
    elif compared.differs or (requirement == "reproduced" and comparison.must_reproduce(compared)):
        outcome = "failure"
    elif report.cell.row.on_request and not any(net.shown for net in compared.nets):
        notes.append("run on request only")
    if interval := compared.interval:
        bounds, tolerance = format_interval(interval), f"{report.cell.tolerance:g}"
        notes.append(f"{interval.difference:+.2f} points {bounds} at a tolerance of {tolerance}")
    _add_properties(case, _properties(report))
    message = f"{verdict}: {'; '.join(notes)}" if notes else verdict
    _add_outcome(case, outcome, message, _details(report, notes))


def _properties(report: CellReport) -> Iterator[tuple[str, object]]:
    compared = report.compared
    yield "verdict", compared.verdict
    yield "published", compared.published.value
    net = compared.nets[0]
    if len(compared.nets) == 1 and net.shown:
        if (median := net.median_or_inf) is not None:
            yield "median", percent(median)
        yield "n", len(net.errors)
    if failures := compared.failures:
        yield "failed", f"{failures.failed} of {failures.runs}"
    if interval := compared.interval:
        yield from (("difference", interval.difference), ("interval", f"{interval.low} {interval.high}"))
        yield from (("level", interval.level), ("tolerance", report.cell.tolerance))
    if noise := compared.noise:
        yield from (("noise_std", noise.std), ("noise_rests_on", noise.rests_on))
    if compared.p_value is not None:
        yield "p_value", compared.p_value


def _details(report: CellReport, notes: Iterable[str]) -> Iterator[str]:
    cell = report.cell
    yield f"{cell.row.title}, {cell.column.title}: published {published(cell)}"
    yield from notes
    for net in report.nets:
        shown = net.net.shown
        runs = f"{shown.conditions}; test error (%) by seed from 0: {net.errors or NOTHING}" if shown else "no runs"
        yield f"{net.name}: {runs}"
        yield from (f"{net.name}: not pooled: {text}" for text in net.others)
        yield from (f"external: {text}" for text in net.external_results() if net.ours)


def _add_claim(case: ElementTree.Element, judged: ClaimVerdict, profile: str) -> None:
    claim, standing = judged.claim, judged.standing
    says = f"{claim.says} ({claim.section})"
    because = judged.reason or "; ".join(judged.findings)
    outcome: _Outcome = "skipped"
    if standing == "supported":
        outcome = "passed"
    elif standing == "contradicted" and profile == "paper":
        outcome, because = "failure", says
    elif standing == "contradicted":
        because = f"profile {profile} trains other nets, data or recipes than the paper; {because}"
    _add_properties(case, {"standing": standing, "section": claim.section}.items())
    _add_outcome(case, outcome, f"{standing}: {because}", [says, method(judged), *judged.findings])
