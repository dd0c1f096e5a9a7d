from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from scipy import stats

from paperbench import __version__
from paperbench.compare.comparison import Comparison
from paperbench.report.json_format import ComparisonDocument, document, render
from paperbench.specs.table import Table
from paperbench.typed import from_json, json_schema
from tests.compare.judging import compared, external, record, records
from tests.golden import assert_golden

SCHEMA = json_schema(ComparisonDocument)


def read(comparison: Comparison, *complaints: str) -> dict[str, Any]:
    """The JSON, as parsed by another reader; it fits the schema by another validator, and reads back as it was."""
    facts = document(comparison, complaints)
    text = render(facts)
    assert text.isascii()
    assert text.endswith("}\n")
    assert from_json(ComparisonDocument, text) == facts
    value: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


def cells(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in value["cells"]}


def net_of(comparison: Comparison, cell: str) -> dict[str, Any]:
    """The only net of a cell."""
    (net,) = cells(read(comparison))[cell]["nets"]
    assert isinstance(net, dict)
    return net


def objects(value: object) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(part)


def test_schema_allows_no_unknown_keys() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    closed = [one for one in objects(SCHEMA) if isinstance(one.get("properties"), dict) and "type" in one]
    assert len(closed) > 10
    assert all(one["additionalProperties"] is False for one in closed)
    assert sum("description" in one for one in closed) > 8, "older versions of pydantic lack some"


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5"])
def test_every_table_fits_the_schema_without_runs(tables: dict[str, Table], name: str) -> None:
    found = read(compared(tables[name], on_request=True))["cells"]
    assert [cell["failures"] for cell in found] == [None] * len(tables[name].all_cells)


def test_verdicts_are_listed_and_counted(numbers: Comparison) -> None:
    value = read(numbers)
    found = [value[key] for key in ("schema", "paperbench", "table", "profile", "noise")]
    assert found == [2, __version__, "table2", "paper", "table"]
    summary = value["summary"]
    there = {verdict: count for verdict, count in summary["verdicts"].items() if count}
    assert there == Counter(cell.verdict for cell in numbers.cells)
    assert len(there) == len(summary["verdicts"]) == 6
    assert (summary["holds"], summary["all_reproduced"]) == (False, False)
    assert summary["expected_false_alarms"] == pytest.approx(0.05 * 6)
    assert sum(summary["standings"].values()) == len(value["claims"]) == len(numbers.claims) > 5


def test_table_without_differences_holds(table2: Table) -> None:
    summary = read(compared(table2))["summary"]
    assert (summary["holds"], summary["all_reproduced"]) == (True, False)
    runs = records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3))
    summary = read(compared(table2, *runs, cells="preact/resnet110"))["summary"]
    assert (summary["holds"], summary["all_reproduced"]) == (True, True)


def test_diverged_run_has_no_error(failing: Comparison, table2: Table) -> None:
    worst = cells(read(failing))["conv_shortcut/resnet110"]
    shown = worst["nets"][0]["shown"]
    assert [run["error"] for run in shown["runs"] if run["status"] == "diverged"] == [None] * 3
    assert (shown["median"], shown["median_diverged"], worst["difference"]) == (None, True, None)
    diverged = net_of(compared(table2, externals=[external(table2, "preact/resnet164", None)]), "preact/resnet164")
    assert [(run["status"], run["error"]) for run in diverged["shown"]["runs"]] == [("diverged", None)]


def test_net_of_a_reduced_profile_is_that_of_its_records(table2: Table) -> None:
    run = record(table2, "preact/resnet164", 20.0, profile="smoke")
    comparison = compared(table2, run, profile="smoke")
    assert net_of(comparison, "preact/resnet164")["net"] == run.net == "preact_resnet164(depth=20)"


def test_infinite_degrees_of_freedom_are_null(table2: Table) -> None:
    value = read(compared(table2, *records(table2, "original/resnet110", [6.7]), seeds=1))
    cell = cells(value)["original/resnet110"]
    assert (cell["noise"]["degrees"], cell["interval"]["degrees"]) == (None, None)
    assert cell["noise"]["rests_on"] == "published"
    reach = stats.norm.ppf(1 - cell["interval"]["level"]) * cell["interval"]["standard_error"]
    assert cell["interval"]["high"] == pytest.approx(cell["interval"]["difference"] + reach)
    assert value["planned"] == 1


def test_published_results_have_their_provenance(tables: dict[str, Table]) -> None:
    documents = [document(compared(table, on_request=True)) for table in tables.values()]
    lines = [f"{one.table}: {one.source}, {one.footnotes}" for one in documents]
    for cell in (cell for one in documents for cell in one.cells):
        facts = [cell.id, f"home {cell.home}", cell.dataset, cell.metric, cell.recipe, cell.evaluation]
        facts += [f"{name} {value}" for name, value in vars(cell.published).items() if value is not None]
        lines.append(", ".join(str(fact) for fact in facts if fact))
    assert_golden("published_results", "\n".join(lines))


def test_unused_and_damaged_files_are_named(table2: Table) -> None:
    one = record(table2, "preact/resnet110", 6.4, recipe={"batch_size": 256})
    comparison = compared(table2, one)
    value = read(comparison, "runs/x/record.json is\nnot JSON")
    damaged, left_out = value["left_out"]
    assert damaged == r"runs/x/record.json is\nnot JSON"
    assert one.run in left_out
